"""Case H3: checkpoints are whole or not there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.checkpoint import CheckpointManager, problem
from headrace.core.errors import CheckpointError

SAVER = """
import sys
from pathlib import Path
from headrace.core.checkpoint import CheckpointManager
manager = CheckpointManager(Path(sys.argv[1]), keep=3)
def write(directory):
    for i in range(20):
        (directory / f"part_{i}").write_bytes(bytes(200_000))
step = int(sys.argv[2])
print("ready", flush=True)
while True:
    step += 1
    manager.save(step, write)
    print(step, flush=True)
"""


def _save(manager: CheckpointManager, step: int, content: str = "x") -> Path:
    return manager.save(
        step, lambda directory: (directory / "weights").write_text(content) and None, {"env_steps": step}
    )


def test_the_newest_is_found_by_number_not_by_text(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=9)
    for step in (500, 2500, 100000):
        _save(manager, step)
    (tmp_path / "step_100000").rename(tmp_path / "step_0900000")
    latest = manager.latest()
    assert latest is not None
    assert latest.name == "step_0900000"
    assert [path.name for path in manager.all()] == ["step_500", "step_2500", "step_0900000"]


def test_incomplete_and_damaged_ones_are_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(tmp_path)
    good = _save(manager, 1)
    (_save(manager, 2) / "manifest.json").unlink()
    (_save(manager, 3) / "weights").write_text("y")
    assert manager.latest() == good
    assert "never finished" in caplog.text
    assert "has changed" in caplog.text
    with pytest.raises(CheckpointError, match="has changed"):
        CheckpointManager.resolve(tmp_path / "step_3")


def test_retention_never_deletes_the_only_good_one(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=1)
    for step in (1, 2):
        _save(manager, step)
    assert [path.name for path in manager.all()] == ["step_2"]
    for step in (3, 4, 5):
        (tmp_path / f"step_{step}").mkdir()
    saved = _save(manager, 1)
    assert problem(saved) is None, "what was just saved stays, though a higher number is there"
    assert manager.has(2)


def test_a_rewound_run_keeps_its_own_checkpoints(tmp_path: Path) -> None:
    before = CheckpointManager(tmp_path)
    for step in (100, 200, 300):
        _save(before, step, "old")
    manager = CheckpointManager(tmp_path)
    manager.rewind(100)
    assert not manager.has(200)
    assert (_save(manager, 200, "new") / "weights").read_text() == "new"
    assert [path.name for path in manager.all()] == ["step_100", "step_200"]
    assert CheckpointManager.resolve(tmp_path).name == "step_200"
    assert CheckpointManager.resolve(tmp_path / "superseded-1").name == "step_300"
    manager.rewind(None)
    assert manager.all() == []
    assert CheckpointManager.resolve(tmp_path / "superseded-2" / "step_100") is not None
    manager.rewind(None)
    assert not (tmp_path / "superseded-3").exists()


def test_what_a_killed_save_left_is_swept_even_under_the_same_process_number(tmp_path: Path) -> None:
    left = tmp_path / f".writing-2-{os.getpid()}"
    left.mkdir()
    (left / "half").write_text("half")
    saved = _save(CheckpointManager(tmp_path), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]
    assert not (saved / "half").exists()


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": []}', "\x00\x00"])
def test_a_manifest_that_says_nothing_is_damage_and_no_crash(tmp_path: Path, manifest: str) -> None:
    manager = CheckpointManager(tmp_path)
    good = _save(manager, 1)
    (_save(manager, 2) / "manifest.json").write_text(manifest)
    assert manager.latest() == good


def test_a_full_disk_leaves_the_earlier_one_and_no_debris(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    _save(manager, 1)

    def full(directory: Path) -> None:
        (directory / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        manager.save(2, full)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
    assert CheckpointManager.metadata(manager.path(1)) == {"step": 1, "env_steps": 1}


def test_a_run_its_checkpoints_and_one_of_them_all_resolve(tmp_path: Path) -> None:
    path = _save(CheckpointManager(tmp_path / "checkpoints"), 7)
    for place in (tmp_path, tmp_path / "checkpoints", path):
        assert CheckpointManager.resolve(place) == path
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        CheckpointManager.resolve(_empty(tmp_path))
    with pytest.raises(CheckpointError, match="no directory"):
        CheckpointManager.resolve(tmp_path / "nowhere")


def _empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    _save(manager, 1, "old")
    _save(manager, 1, "new")
    assert (manager.path(1) / "weights").read_text() == "new"
    assert problem(manager.path(1)) is None


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_save_leaves_a_loadable_one(tmp_path: Path) -> None:
    """SIGKILL, twenty times, at random moments of saving."""
    manager = CheckpointManager(tmp_path, keep=3)
    _save(manager, 0)
    rng = random.Random(0)
    confirmed = 0
    for _ in range(20):
        command = [sys.executable, "-c", SAVER, str(tmp_path), str(confirmed)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # A random number of finished saves, then a random piece of busy work: the kill falls anywhere in the next one.
        for _ in range(rng.randrange(3)):
            confirmed = int(process.stdout.readline())
        sum(range(rng.randrange(400_000)))
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        confirmed = max([confirmed, *(int(line) for line in rest.split())])
        latest = manager.latest()
        assert latest is not None
        step = CheckpointManager.metadata(latest)["step"]
        assert step >= confirmed, "what was reported as saved is there"
        confirmed = step
    _save(manager, confirmed + 1)
    assert not list(tmp_path.glob(".writing-*")), "a later save sweeps what the kills left"
