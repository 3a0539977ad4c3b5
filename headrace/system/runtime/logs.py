"""Where a worker's words go: everything to `<logs>/<group>/rank_<r>.log`, warnings also to the driver."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.system.comm.endpoint import Endpoint
from headrace.system.comm.service import EndpointAddress, Request

LOG_SERVICE = "log"
LOG_MAX_NBYTES = 16 * 1024 * 1024
CHECK_INTERVAL_S = 0.5
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_path(log_dir: Path, group: str, rank: int) -> Path:
    return log_dir / group / f"rank_{rank}.log"


class OutputFile:
    """Takes over this process's stdout and stderr (the descriptors: C code too), live and size-capped.

    At half of `max_nbytes` the file becomes `<name>.1` and a new one is begun, so that both together stay below the
    cap. Python's own output is counted as it is written; what C code writes is looked at now and then. No line waits
    in a pipe on its way to the file: a crash loses none.
    """

    def __init__(self, path: Path, max_nbytes: int = LOG_MAX_NBYTES) -> None:
        self.path = path
        self._rotate_at_nbytes = max_nbytes // 2
        self._unlooked_nbytes = 0
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def take_over(self) -> None:
        """Redirect descriptors 1 and 2 and Python's streams, and look after the size from now on."""
        self._redirect()
        sys.stdout, sys.stderr = self._stream(1), self._stream(2)
        threading.Thread(target=self._look_after, name="headrace-log", daemon=True).start()

    def rotate_if_large(self) -> bool:
        """Begin a new file if this one has reached its share; whether it did."""
        with self._lock:
            self._unlooked_nbytes = 0
            if self.path.stat().st_size < self._rotate_at_nbytes:
                return False
            self.path.replace(self.path.with_suffix(".log.1"))
            self._redirect()
            return True

    def count(self, nbytes: int) -> None:
        """Python wrote `nbytes` more."""
        self._unlooked_nbytes += nbytes
        if self._unlooked_nbytes >= self._rotate_at_nbytes // 4:
            self.rotate_if_large()

    def _stream(self, fd: int) -> io.TextIOWrapper:
        buffered = io.BufferedWriter(_CountedWrites(fd, self))
        return io.TextIOWrapper(buffered, errors="backslashreplace", line_buffering=True)

    def _redirect(self) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)

    def _look_after(self) -> None:
        pause = threading.Event()
        while not pause.wait(CHECK_INTERVAL_S):
            self.rotate_if_large()


class _CountedWrites(io.RawIOBase):
    """Writes to a descriptor and tells how much."""

    def __init__(self, fd: int, output: OutputFile) -> None:
        self._fd = fd
        self._output = output

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        written = os.write(self._fd, data)
        self._output.count(written)
        return written


class DriverHandler(logging.Handler):
    """Sends warnings and worse to the driver, with who says so."""

    def __init__(self, endpoint: Endpoint, driver: EndpointAddress, group: str, rank: int) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._driver = driver
        self._who = (group, rank)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._endpoint.notify(self._driver, LOG_SERVICE, (*self._who, record.levelno, record.getMessage()))
        except HeadraceError:
            self.handleError(record)  # the driver is gone; the line is in the file


class DriverLogService:
    """The driver's end: shows workers' warnings under `headrace.workers`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("headrace.workers")

    def on_request(self, request: Request) -> None:
        group, rank, level, message = request.head
        self._logger.log(level, "[%s %d] %s", group, rank, message)

    def on_peer_gone(self, peer: str, clean: bool) -> None:
        del peer, clean


def worker_logger(
    group: str, rank: int, path: Path, *, own_process: bool, to_driver: logging.Handler
) -> logging.Logger:
    """The logger of one worker: a file of its own, and warnings to the driver."""
    logger = logging.getLogger(f"headrace.worker.{group}.{rank}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for old in list(logger.handlers):
        logger.removeHandler(old)
    if own_process:
        to_file: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        to_file = logging.FileHandler(path, delay=True)
    to_file.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(to_file)
    logger.addHandler(to_driver)
    return logger
