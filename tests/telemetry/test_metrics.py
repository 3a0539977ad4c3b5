"""The books: cases J2 and J4."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.telemetry.metrics import Mean, MetricLogger, best_step, mean_of, read_metrics

LOGGER = """
import sys
from pathlib import Path
from headrace.telemetry.metrics import MetricLogger
logger = MetricLogger(Path(sys.argv[1]), ("jsonl",))
step = 0
while True:
    step += 1
    logger.log(step, {"x": step})
    print(step, flush=True)
"""


def test_case_j2_a_nan_poisons_no_mean() -> None:
    assert mean_of([1.0, float("nan"), 3.0]) == Mean(2.0, 2)
    assert mean_of([]) is None
    assert mean_of([float("nan"), None]) is None


@example([sys.float_info.max] * 3)  # the sum overflows, the mean does not
@given(st.lists(st.one_of(st.none(), st.floats())))
def test_a_mean_is_of_numbers_only(values: list[float | None]) -> None:
    mean = mean_of(values)
    if mean is not None and mean.count:
        kept = [v for v in values if v is not None and abs(v) < float("inf")]
        assert mean.count == len(kept)
        low, high = min(kept), max(kept)
        assert low - 1e-6 * abs(low) - 1e-300 <= mean.value <= high + 1e-6 * abs(high) + 1e-300


def test_case_j2_the_best_checkpoint_ignores_absent_values() -> None:
    rows = [{"step": 1}, {"step": 2, "r": 5.0}, {"step": 3, "r": None}, {"step": 4, "r": 4.0}]
    assert best_step(rows, "r") == 2
    assert best_step(rows, "absent") is None


def test_absent_is_absent_and_nan_is_null_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = MetricLogger(tmp_path)
    for step in (1, 2):
        logger.log(step, {"loss": float("nan"), "return": None, "lr": 0.1})
    logger.close()
    rows = read_metrics(tmp_path)
    assert [row["loss"] for row in rows] == [None, None]
    assert all("return" not in row for row in rows)
    assert caplog.text.count("metric loss is nan") == 1


def test_steps_only_go_up(tmp_path: Path) -> None:
    logger = MetricLogger(tmp_path, ("jsonl",))
    logger.log(2, {})
    with pytest.raises(ValueError, match="step 2 after those of step 2"):
        logger.log(2, {})


def test_case_j4_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    first = MetricLogger(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"x": step})
    first.close()
    second = MetricLogger(tmp_path, resume_step=2)
    for step in (3, 4, 5):
        second.log(step, {"x": 10 * step})
    second.close()
    assert [(row["step"], row["x"]) for row in read_metrics(tmp_path)] == [(1, 1), (2, 2), (3, 30), (4, 40), (5, 50)]


def test_a_new_run_begins_anew(tmp_path: Path) -> None:
    for _ in range(2):
        logger = MetricLogger(tmp_path, ("jsonl",))
        logger.log(1, {"x": 1})
        logger.close()
    assert len(read_metrics(tmp_path)) == 1


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = MetricLogger(tmp_path)
    for step in (1, 2):
        logger.log(step, {"train/loss": 0.5 * step})
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 0.5), (2, 1.0)]


@pytest.mark.parametrize(
    ("resume_step", "expected"), [(None, [(1, 10.0), (2, 20.0)]), (2, [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)])]
)
def test_case_j4_tensorboard_repeats_no_step(
    tmp_path: Path, resume_step: int | None, expected: list[tuple[int, float]]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = MetricLogger(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"x": step})
    first.close()
    second = MetricLogger(tmp_path, resume_step=resume_step)
    for step, _ in expected[resume_step or 0 :]:
        second.log(step, {"x": 10 * step})
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("x")] == expected


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose from"):
        MetricLogger(tmp_path, ("csv",))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_case_j4_the_last_row_survives_a_kill(tmp_path: Path, signum: signal.Signals) -> None:
    command = [sys.executable, "-c", LOGGER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signum)
    rest, _ = process.communicate()
    last = max([5, *(int(line) for line in rest.split())])
    steps = [row["step"] for row in read_metrics(tmp_path)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= last


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + '\n{"step": 2, "x')
    assert read_metrics(tmp_path) == [{"step": 1}]
