"""Cases I3 and J4 seen from outside: too much asked, too much said."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.system.runtime.logs import LOG_MAX_NBYTES
from tests.faults.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TALKER = """
import gymnasium as gym

class Talker(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        print("x" * 1_000_000)
        return self.env.step(action)
"""


def test_case_i3_more_devices_than_there_are_is_an_answer_not_a_hang(tmp_path: Path) -> None:
    run = Run(tmp_path, "cluster.num_cpus=2", 'cluster.component_placement.env="0-63"')
    assert run.finish(60.0) == 1
    assert "cluster.component_placement.env = '0-63'" in run.output
    assert "needs resource 63, but there are 2" in run.output
    assert "Traceback" not in run.output
    assert run.left_over() == []


def test_case_j4_an_environment_that_prints_without_end_fills_no_disk(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(TALKER)
    overrides = ("env.id=talker:Talker", "env.num_envs=2", "rollout.fragment_length=250", "runner.max_steps=1")
    run = Run(tmp_path / "run", *overrides, "runner.mode=sync", cwd=tmp_path)
    assert run.finish() == 0, run.output
    for rank in (0, 1):
        files = list((tmp_path / "run" / "logs" / "env").glob(f"rank_{rank}.log*"))
        total = sum(path.stat().st_size for path in files)
        assert 0 < total < 2 * LOG_MAX_NBYTES
    assert "x" * 100 not in run.output
