"""Whole runs over Ray with several ranks of every role, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.telemetry.metrics import read_metrics
from tests.faults.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PLACEMENT = (
    "cluster.num_cpus=2",
    'cluster.component_placement.env="0-1:0-3"',
    'cluster.component_placement.rollout="0-1"',
    'cluster.component_placement.learner="0-1"',
)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_role_may_have_several_ranks(tmp_path: Path, mode: str) -> None:
    run = Run(tmp_path, *PLACEMENT, f"runner.mode={mode}", "runner.max_steps=3", "runner.val_check_interval=2")
    assert run.finish() == 0, run.output
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    # Four env ranks of eight environments, sixteen steps each: the ranks of the learner train on all of it together.
    assert [row["train/env_steps"] for row in rows] == [4 * 8 * 16] * 3
    assert "eval/episode_return" in rows[1]
    for group, ranks in (("env", 4), ("rollout", 2), ("learner", 2)):
        assert len(list((tmp_path / "logs" / group).glob("rank_*.log"))) == ranks
    if mode == "sync":
        assert all(row["train/ratio_error"] < 1e-5 for row in rows)


def test_ranks_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, *PLACEMENT, 'cluster.component_placement.env="0"')
    assert run.finish() == 1
    assert "1 env ranks do not divide evenly among 2 learner ranks" in run.output
