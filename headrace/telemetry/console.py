"""Progress for a person: a live table on a terminal, a plain line a step elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(frozen=True)
class StepReport:
    """What is shown of a training step. Absent: no episode has finished, nothing is stale."""

    step: int
    max_steps: int
    env_steps: int
    env_steps_per_s: float
    episode_return: float | None
    episodes: int
    wall_s: float
    staleness: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    stage_s: Mapping[str, float] = field(default_factory=dict)


class Console:
    """Shows steps and notes. is_terminal: whether to draw a live table; None: as standard output is."""

    def __init__(self, is_terminal: bool | None = None, rich_console: RichConsole | None = None) -> None:
        self._rich = rich_console or RichConsole(highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._draws = self._rich.is_terminal if is_terminal is None else is_terminal

    def step(self, report: StepReport) -> None:
        """Show the newest step."""
        if self._draws:
            self._draw(report)
        else:
            self._rich.print(line_of(report))

    def note(self, text: str) -> None:
        """Say something once, above the table."""
        self._rich.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last state standing. Idempotent."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, report: StepReport) -> None:
        if self._live is None or self._bar is None:
            self._bar = Progress(
                TextColumn("step"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn(), console=self._rich
            )
            self._bar.add_task("steps", total=report.max_steps)
            self._live = Live(console=self._rich, auto_refresh=False)
            self._live.start()
        self._bar.update(self._bar.task_ids[0], completed=report.step)
        self._live.update(Group(self._bar, table_of(report)), refresh=True)


def line_of(report: StepReport) -> str:
    """A step on one line."""
    parts = [
        f"step {report.step}/{report.max_steps}",
        f"{report.env_steps} env steps",
        f"{report.env_steps_per_s:.0f}/s",
        f"return {_return_text(report)}",
        *(f"{name} {value:.4g}" for name, value in report.losses.items()),
    ]
    if report.staleness is not None:
        parts.append(f"staleness {report.staleness:.2f}")
    parts += [f"{stage} {seconds:.2f} s" for stage, seconds in report.stage_s.items()]
    return "  ".join(parts)


def table_of(report: StepReport) -> Table:
    """A step as a table: what is reached, how it learns, where the time goes."""
    table = Table.grid(padding=(0, 3))
    reached = Table.grid(padding=(0, 1))
    reached.add_row("return", f"[bold]{_return_text(report)}[/]")
    reached.add_row("env steps", f"{report.env_steps:,}")
    reached.add_row("env steps/s", f"{report.env_steps_per_s:,.0f}")
    learning = Table.grid(padding=(0, 1))
    for name, value in report.losses.items():
        learning.add_row(name.replace("_", " "), f"{value:.4g}")
    if report.staleness is not None:
        learning.add_row("staleness", f"{report.staleness:.2f}")
    time = Table.grid(padding=(0, 1))
    for stage, seconds in report.stage_s.items():
        time.add_row(stage.replace("_", " "), f"{seconds:.2f} s")
    table.add_row(reached, learning, time)
    return table


def _return_text(report: StepReport) -> str:
    if report.episode_return is None:
        return "– (no episode finished)"
    return f"{report.episode_return:.1f} (last {report.episodes})"
