"""Pictures of a run, from its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.telemetry.metrics import STEP, read_metrics

CURVE_FILE = "learning_curve.png"
_RETURN, _EVAL, _ENV_STEPS = "env/episode_return", "eval/episode_return", "time/env_steps"
_LOSSES = ("train/policy_loss", "train/value_loss", "train/entropy")
_STAGE = "stage/"


def learning_curve(run_dir: Path) -> Path:
    """Write `learning_curve.png`: return over environment steps, losses and staleness, where the time goes."""
    # Not pyplot: it would keep a figure manager, and look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read_metrics(run_dir)
    figure = Figure(figsize=(10, 9), layout="constrained")
    FigureCanvasAgg(figure)
    top, middle, bottom = figure.subplots(3, 1, height_ratios=(3, 2, 1.5))
    _draw_returns(top, rows)
    _draw_losses(middle, rows)
    _draw_stages(bottom, rows)
    path = run_dir / CURVE_FILE
    figure.savefig(path, dpi=110)
    return path


def _draw_returns(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    x, y = _series(rows, _ENV_STEPS, _RETURN)
    axes.plot(x, y, color="tab:blue", linewidth=2, label="training: mean of the last episodes")
    x, y = _series(rows, _ENV_STEPS, _EVAL)
    if x:
        axes.plot(x, y, "o-", color="tab:orange", markersize=5, label="evaluation")
    axes.set(title="return", xlabel="environment steps", ylabel="episode return")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def _draw_losses(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    for name in _LOSSES:
        x, y = _series(rows, STEP, name)
        if x:
            axes.plot(x, y, label=name.removeprefix("train/").replace("_", " "))
    axes.set(xlabel="training step", ylabel="loss")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.grid(alpha=0.3)
    x, y = _series(rows, STEP, "train/staleness")
    if x:
        lag = axes.twinx()
        lag.plot(x, y, color="gray", linestyle=":", label="staleness")
        lag.set_ylabel("staleness (versions)")
        lag.set_ylim(bottom=0)
        lag.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    if axes.lines:
        # Above the axes: inside, it hides the lines of a long run.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(_LOSSES), frameon=False)


def _draw_stages(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    """The driver's own stages, stacked; what happens inside a role (stage/learner_…) overlaps them."""
    names = sorted({name for row in rows for name in row if name.startswith(_STAGE) and "learner_" not in name})
    steps = [row[STEP] for row in rows]
    if names:
        columns = [[row.get(name) or 0.0 for row in rows] for name in names]
        labels = [name.removeprefix(_STAGE).removesuffix("_s").replace("_", " ") for name in names]
        axes.stackplot(steps, columns, labels=labels, alpha=0.8, step="mid")  # a long step is a bar, not a hill
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(names), frameon=False)
    axes.set(xlabel="training step", ylabel="seconds a step")
    axes.grid(alpha=0.3)


def _series(rows: Sequence[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    """The rows that have both; a metric that is absent or null leaves a gap, not a 0."""
    points = [(row[x], row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]
    return [point[0] for point in points], [point[1] for point in points]
