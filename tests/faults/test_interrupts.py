"""Case I4: whatever interrupts a run, it ends whole: nothing left running, nothing lost, a true exit code."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from headrace.telemetry.metrics import read_metrics
from tests.faults.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.slow]
WITHIN_S = 20.0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_second_iteration_ends_everything(tmp_path: Path, signum: signal.Signals) -> None:
    run = Run(tmp_path)
    run.wait_for_line("step 2/")
    run.process.send_signal(signum)
    assert run.finish(WITHIN_S) == 130
    assert run.left_over() == []
    assert [row["step"] for row in read_metrics(tmp_path)][:2] == [1, 2]
    assert "everything that was started has ended" in run.output
    again = Run(tmp_path / "again", "runner.max_steps=1")
    assert again.finish() == 0, again.output


def test_an_impatient_second_signal_leaves_nothing_behind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.wait_for_line("step 2/")
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert run.finish(WITHIN_S) != 0
    assert run.left_over() == []


def test_a_signal_while_the_cluster_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    me = psutil.Process(run.process.pid)
    while not any("raylet" in child.name() for child in me.children()):
        assert me.is_running()
        os.sched_yield()
    run.look_around()
    run.process.send_signal(signal.SIGINT)
    assert run.finish(WITHIN_S) != 0
    assert run.left_over() == []


def test_the_death_of_a_worker_ends_the_run_and_names_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.wait_for_line("step 2/")
    rollout = next(child for child in run.descendants if "rollout" in _log_of(child))
    rollout.kill()
    assert run.finish(WITHIN_S) == 1
    assert "rollout" in run.output
    assert "rank 0" in run.output
    assert run.left_over() == []


def _log_of(process: psutil.Process) -> str:
    """Where a process's standard output goes."""
    try:
        return os.readlink(f"/proc/{process.pid}/fd/1")
    except OSError:
        return ""
