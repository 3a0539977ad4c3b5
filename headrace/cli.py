"""The command line: `headrace train`, `headrace eval`, `headrace probe`."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console as RichConsole

from headrace.core.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="Reinforcement learning on the fastest course that the machine at hand allows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = RichConsole(highlight=False, soft_wrap=True)
err = RichConsole(stderr=True, highlight=False, soft_wrap=True)

EXIT_FAULT = 1
EXIT_INTERRUPTED = 130


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a YAML or Python file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value …, such as runner.mode=sync")] = None,
) -> None:
    """Train by a recipe; say where checkpoint, metrics, learning curve and video are."""
    from headrace import training

    with _faults_are_answers():
        outcome = training.train(recipe, overrides or [])
    out.print(outcome.text())


@app.command("eval")
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run (its latest checkpoint).")],
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes to play.")] = 10,
    seed: Annotated[int | None, typer.Option(help="Seed of the episodes; without one they differ each time.")] = None,
    video: Annotated[Path | None, typer.Option(help="Record one episode to this file (mp4).")] = None,
) -> None:
    """Play a checkpoint under its most likely actions and print the returns."""
    from headrace.evaluation import Player, record_video

    with _faults_are_answers():
        player = Player.load(checkpoint)
        result = player.evaluate(episodes, seed)
        out.print(
            f"{player.checkpoint}\n{len(result.returns)} episodes of {player.recipe.env.id}: "
            f"mean return {result.mean_return:.1f} (min {min(result.returns):.1f}, max {max(result.returns):.1f}), "
            f"mean length {sum(result.lengths) / len(result.lengths):.0f}"
        )
        if video is not None:
            made, remedy = record_video(player.checkpoint, video)
            out.print(f"video: {made}" if made else f"no video: {remedy}")


@app.command()
def probe(
    address: Annotated[str | None, typer.Option(help="A Ray cluster to join; without it, this machine.")] = None,
) -> None:
    """Print the cluster: nodes, groups, accelerators, versions."""
    from headrace.system import Cluster, ClusterConfig
    from headrace.system.cluster.describe import describe

    with _faults_are_answers(), Cluster(ClusterConfig(address=address)) as cluster:
        out.print(describe(cluster))


@contextlib.contextmanager
def _faults_are_answers() -> Iterator[None]:
    """A user's fault is printed, not traced; an interrupt ends everything first. Exit codes are true."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    before = {signum: signal.signal(signum, _interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
        for signum, handler in before.items():
            signal.signal(signum, handler)
    except HeadraceError as fault:
        err.print(f"[bold red]{type(fault).__name__}[/]: ", end="")
        err.print(str(fault), markup=False)
        raise typer.Exit(EXIT_FAULT) from fault
    except KeyboardInterrupt as interrupt:
        err.print("interrupted; everything that was started has ended")
        raise typer.Exit(EXIT_INTERRUPTED) from interrupt


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Begin to end. Whoever is impatient and asks again would only leave things behind."""
    del frame
    for impatient in (signal.SIGINT, signal.SIGTERM):
        signal.signal(impatient, signal.SIG_IGN)
    raise KeyboardInterrupt(f"signal {signum}")


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    sys.exit(main())
