"""The books of a run: one row a step in `metrics.jsonl`, the same in TensorBoard's format, and honest means.

A metric that was not measured is absent from its row, never 0; a value that is no number is written as null, named
once in a warning, and left out of every mean.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headrace.core.errors import ConfigError

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"
STEP = "step"
BACKENDS = ("jsonl", "tensorboard")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and how many values it is of."""

    value: float
    count: int


def mean_of(values: Iterable[float | None]) -> Mean | None:
    """Mean of what is there and a number; None where nothing is."""
    kept = [value for value in values if value is not None and math.isfinite(value)]
    if not kept:
        return None
    try:
        return Mean(math.fsum(kept) / len(kept), len(kept))
    except OverflowError:  # the sum does not fit a float though the mean does: by fractions, slow and exact
        return Mean(float(statistics.mean(kept)), len(kept))


def best_step(rows: Iterable[Mapping[str, Any]], metric: str) -> int | None:
    """The step of the row with the highest `metric`; rows without it do not count."""
    scored = [(row[metric], row[STEP]) for row in rows if row.get(metric) is not None]
    return max(scored, key=lambda entry: (entry[0], -entry[1]))[1] if scored else None


class MetricLogger:
    """Writes rows, one a step, each later than the one before.

    resume_step: the step that a resumed run goes on from; later rows of the earlier run are dropped, so that no step
        stands twice. None begins anew.
    """

    def __init__(self, run_dir: Path, backends: Iterable[str] = BACKENDS, resume_step: int | None = None) -> None:
        backends = tuple(backends)
        for backend in backends:
            if backend not in BACKENDS:
                raise ConfigError("runner.metrics", backend, f"choose from {', '.join(BACKENDS)}")
        run_dir.mkdir(parents=True, exist_ok=True)
        self._path = run_dir / METRICS_FILE
        kept = [] if resume_step is None else [row for row in read_metrics(self._path) if row[STEP] <= resume_step]
        self._last_step = kept[-1][STEP] if kept else None
        self._file: IO[str] | None = _rewritten(self._path, kept) if "jsonl" in backends else None
        self._board = _Board(run_dir / TENSORBOARD_DIR, resume_step) if "tensorboard" in backends else None
        self._warned: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write the row of `step`. Absent (None) metrics are left out.

        Raises:
            ValueError: `step` is not later than the last one.
        """
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(f"metrics of step {step} after those of step {self._last_step}")
        self._last_step = step
        row: dict[str, float | None] = {}
        for name, value in metrics.items():
            if value is not None:
                row[name] = float(value) if math.isfinite(value) else self._not_a_number(name, value, step)
        if self._file is not None:
            self._file.write(json.dumps({STEP: step, **row, "time/logged_at": time.time()}) + "\n")
        if self._board is not None:
            self._board.add(step, {name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        """Everything to disk. Idempotent."""
        if self._file is not None and not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        if self._board is not None:
            self._board.close()

    def _not_a_number(self, name: str, value: float, step: int) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _logger.warning("metric %s is %s at step %d; it is written as null", name, value, step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file (or of a run's directory), in order. A last line cut short by a kill is left out."""
    file = path / METRICS_FILE if path.is_dir() else path
    if not file.exists():
        return []
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _rewritten(path: Path, rows: list[dict[str, Any]]) -> IO[str]:
    """`path` with exactly these rows, open for more; line-buffered, so that a kill loses at most the line in work."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    temporary.replace(path)
    return path.open("a", buffering=1)


class _Board:
    """TensorBoard's event files, without torch; made with the first row, since importing tensorboard takes a while."""

    def __init__(self, directory: Path, resume_step: int | None) -> None:
        self._directory = directory
        # A run that begins anew in a used directory has its metrics file to itself; so it has its board.
        self._purge_step = resume_step + 1 if resume_step is not None else 0 if directory.is_dir() else None
        self._writer: Any = None
        self._event: Any = None  # protobuf modules, imported with the first row
        self._summary: Any = None

    def add(self, step: int, row: Mapping[str, float]) -> None:
        writer = self._open()
        value_of = self._summary.Summary.Value
        values = [value_of(tag=name, simple_value=value) for name, value in row.items()]
        summary = self._summary.Summary(value=values)
        writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._event, self._summary = event_pb2, summary_pb2
            self._writer = EventFileWriter(str(self._directory))
            if self._purge_step is not None:
                # Tells TensorBoard to forget what an earlier run wrote from this step on.
                log = self._event.SessionLog(status=self._event.SessionLog.START)
                event = self._event.Event(wall_time=time.time(), step=self._purge_step, session_log=log)
                self._writer.add_event(event)
        return self._writer
