"""Atomic checkpoints: whole, or not there.

A checkpoint is written beside its place, flushed to disk, listed in a manifest (written last) and renamed. A kill
or a full disk at any moment leaves the earlier ones as they were.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import CheckpointError

MANIFEST = "manifest.json"
CHECKPOINTS_DIR = "checkpoints"
SUPERSEDED = "superseded-"
_NAME = re.compile(r"(?:step_|global_step_)?(\d+)")
_TEMPORARY = ".writing-"
_CHUNK_NBYTES = 1 << 20
_logger = logging.getLogger(__name__)


class CheckpointManager:
    """The checkpoints of a run below `root`; the newest `keep` are kept."""

    def __init__(self, root: Path, keep: int = 3) -> None:
        self.root = Path(root)
        self.keep = keep

    def path(self, step: int) -> Path:
        return self.root / f"step_{step}"

    def has(self, step: int) -> bool:
        """Whether a whole checkpoint of `step` is there."""
        return self.path(step).is_dir() and problem(self.path(step)) is None

    def save(self, step: int, write: Callable[[Path], None], metadata: Mapping[str, Any] | None = None) -> Path:
        """Let `write` fill a directory and make it the checkpoint of `step`.

        Raises:
            Whatever `write` raises; then nothing has changed.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self._sweep()
        temporary = self.root / f"{_TEMPORARY}{step}-{os.getpid()}"
        temporary.mkdir()
        try:
            write(temporary)
            _seal(temporary, {"step": step, **(metadata or {})})
            target = self.path(step)
            if target.exists():
                shutil.rmtree(target)  # an incomplete one, or the same step again
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _fsync(self.root)
        self._retire(target)
        return target

    def rewind(self, step: int | None) -> None:
        """Set aside every checkpoint after `step` (None: all): they are of another course than the run that begins.

        Left in place, a later step of this run would be taken for saved already, and retention would keep the higher
        numbers. They move to `superseded-<n>` and can still be resumed by that name; nothing is deleted.
        """
        later = [path for path in _numbered(self.root) if step is None or _step_of(path) > step]
        if not later:
            return
        taken = [int(path.name.removeprefix(SUPERSEDED)) for path in self.root.glob(f"{SUPERSEDED}[0-9]*")]
        aside = self.root / f"{SUPERSEDED}{max(taken, default=0) + 1}"
        aside.mkdir()
        for path in later:
            path.rename(aside / path.name)
        _fsync(self.root)
        _logger.warning("%d checkpoints of an earlier course were set aside to %s", len(later), aside)

    def all(self) -> list[Path]:
        """The whole checkpoints, oldest first, by number. Incomplete ones are skipped with a warning."""
        return [path for path in _numbered(self.root) if _is_whole(path)]

    def latest(self) -> Path | None:
        """The newest whole checkpoint."""
        return next((path for path in reversed(_numbered(self.root)) if _is_whole(path)), None)

    @classmethod
    def resolve(cls, place: str | Path) -> Path:
        """One whole checkpoint: `place` itself, or the newest of a run or of a directory of checkpoints.

        Raises:
            CheckpointError: there is none.
        """
        path = Path(place)
        if not path.is_dir():
            raise CheckpointError(f"{path} is no directory; name a run, its checkpoints, or one checkpoint")
        if (path / MANIFEST).exists():
            damage = problem(path)
            if damage is not None:
                raise CheckpointError(f"{path} is damaged: {damage}; name an earlier one, or the run")
            return path
        root = path / CHECKPOINTS_DIR if (path / CHECKPOINTS_DIR).is_dir() else path
        latest = cls(root).latest()
        if latest is None:
            raise CheckpointError(f"{path} holds no whole checkpoint")
        return latest

    @staticmethod
    def metadata(checkpoint: Path) -> dict[str, Any]:
        """What `save` was told besides the files, and the step."""
        return json.loads((checkpoint / MANIFEST).read_text())["metadata"]

    def _retire(self, just_saved: Path) -> None:
        """Delete what is beyond `keep`. Only whole checkpoints count, so the last good one always stays."""
        for path in self.all()[: -self.keep]:
            if path != just_saved:
                shutil.rmtree(path)

    def _sweep(self) -> None:
        """Remove what a killed save left behind."""
        for path in self.root.glob(f"{_TEMPORARY}*"):
            pid = int(path.name.rpartition("-")[2])
            # In a container a restarted run often has the number of the one that was killed.
            if pid == os.getpid() or not _is_running(pid):
                shutil.rmtree(path, ignore_errors=True)


def problem(checkpoint: Path) -> str | None:
    """What keeps a checkpoint from being whole; None if it is."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text())["files"].items()
    except FileNotFoundError:
        return "it has no manifest: it was never finished"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read ({error})"
    for name, (nbytes, checksum) in files:
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != nbytes:
            return f"{name} is missing or cut short"
        if _checksum(path) != checksum:
            return f"{name} has changed since it was written"
    return None


def _is_whole(path: Path) -> bool:
    damage = problem(path)
    if damage is not None:
        _logger.warning("skipping checkpoint %s: %s", path, damage)
    return damage is None


def _numbered(root: Path) -> list[Path]:
    """Directories whose name is a step number, in the order of the numbers (not of the text)."""
    if not root.is_dir():
        return []
    return sorted(
        (path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()),
        key=lambda path: (_step_of(path), path),
    )


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _seal(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Flush every file, then write the manifest that makes the directory a checkpoint."""
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(directory))] = (path.stat().st_size, _checksum(path))
            _fsync(path)
        elif path.is_dir():
            _fsync(path)  # a file's name is on disk only once its directory is
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"metadata": metadata, "files": files}, indent=1))
    _fsync(manifest)
    _fsync(directory)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_NBYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
