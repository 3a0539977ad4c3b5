"""What a person sees: progress lines, the live table, stage times, the picture."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from headrace.telemetry.console import Console, StepReport, line_of
from headrace.telemetry.metrics import MetricLogger
from headrace.telemetry.report import learning_curve
from headrace.telemetry.tracing import StageTimer


def _report(**changes: object) -> StepReport:
    fields: dict = {
        "step": 3,
        "max_steps": 10,
        "env_steps": 4096,
        "env_steps_per_s": 2000.0,
        "episode_return": 12.5,
        "episodes": 20,
        "wall_s": 2.0,
        "staleness": 0.5,
        "losses": {"policy_loss": -0.01},
        "stage_s": {"train": 0.25},
    }
    return StepReport(**{**fields, **changes})


def test_a_line_has_step_speed_return_losses_staleness_and_stages() -> None:
    line = line_of(_report())
    for part in (
        "step 3/10",
        "4096 env steps",
        "2000/s",
        "return 12.5",
        "policy_loss -0.01",
        "staleness 0.50",
        "train 0.25 s",
    ):
        assert part in line


def test_no_finished_episode_is_said_and_not_shown_as_zero() -> None:
    assert "no episode finished" in line_of(_report(episode_return=None))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_steps_and_notes_are_shown(is_terminal: bool) -> None:
    out = io.StringIO()
    console = Console(is_terminal, RichConsole(file=out, force_terminal=is_terminal, width=200))
    console.note("resumed [runs/x]")
    console.step(_report())
    console.step(_report(step=4))
    console.close()
    console.close()
    text = out.getvalue()
    assert "resumed [runs/x]" in text
    assert "12.5" in text
    assert ("step 4/10" in text) is not is_terminal


def test_stages_add_up_until_they_are_consumed() -> None:
    now = iter([0.0, 1.0, 10.0, 12.0, 20.0, 21.5])
    timer = StageTimer(clock=lambda: next(now))
    with timer("train"):
        pass
    with timer("train"):
        pass
    with timer("save"):
        pass
    assert timer.consume() == {"train": 3.0, "save": 1.5}
    assert timer.consume() == {}


def test_a_picture_is_drawn_from_whatever_was_measured(tmp_path: Path) -> None:
    logger = MetricLogger(tmp_path, ("jsonl",))
    logger.log(1, {"time/env_steps": 10, "train/policy_loss": float("nan")})
    logger.log(2, {"time/env_steps": 20, "env/episode_return": 5.0, "stage/train_s": 0.1, "eval/episode_return": 6.0})
    logger.close()
    picture = learning_curve(tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_row_still_gets_a_picture(tmp_path: Path) -> None:
    MetricLogger(tmp_path, ("jsonl",)).close()
    assert learning_curve(tmp_path).exists()
