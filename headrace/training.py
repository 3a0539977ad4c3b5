"""One training run, from a recipe to a report: what `headrace train` does, for programs to call too."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.checkpoint import CHECKPOINTS_DIR, CheckpointManager
from headrace.core.config import build, load_recipe
from headrace.core.errors import ConfigError
from headrace.runners.config import EmbodiedRecipe
from headrace.runners.embodied import RunResult
from headrace.runners.launch import launched
from headrace.telemetry.console import Console
from headrace.telemetry.report import learning_curve

RUNS_DIR = Path("runs")


@dataclass(frozen=True)
class TrainOutcome:
    """Where everything is. `video` is None where none was made, and then `video_remedy` says how to get one."""

    result: RunResult
    metrics: Path
    learning_curve: Path
    video: Path | None = None
    video_remedy: str = ""

    def text(self) -> str:
        """The outcome for a person."""
        reached = self.result.episode_return
        score = "no episode finished" if reached is None else f"mean return {reached:.1f} over the last episodes"
        lines = [
            "",
            f"trained {self.result.global_step} steps, {self.result.env_steps:,} environment steps "
            f"in {self.result.training_s:.0f} s: {score}",
            f"  checkpoint      {self.result.checkpoint}",
            f"  metrics         {self.metrics}   (tensorboard --logdir {self.result.run_dir})",
            f"  learning curve  {self.learning_curve}",
        ]
        if self.video is not None:
            lines.append(f"  video           {self.video}")
        elif self.video_remedy:
            lines.append(f"  no video        {self.video_remedy}")
        lines.append(f"play it again: headrace eval {self.result.run_dir}")
        return "\n".join(lines)


def train(recipe_path: str | Path, overrides: Sequence[str] = ()) -> TrainOutcome:
    """Train by a recipe file, `key=value` overrides applied.

    Raises:
        ConfigError, CheckpointError: the recipe, or what it resumes, is wrong; before any work starts.
        HeadraceError: the run failed; nothing is left running.
    """
    recipe = build(EmbodiedRecipe, load_recipe(Path(recipe_path), overrides))
    own_dirs = (str(Path(recipe_path).resolve().parent), str(Path.cwd()))
    recipe = dataclasses.replace(recipe, import_dirs=tuple(dict.fromkeys((*recipe.import_dirs, *own_dirs))))
    recipe.make_importable()
    if recipe.runner.resume_dir is not None:
        CheckpointManager.resolve(recipe.runner.resume_dir)  # a wrong one is refused before anything is made
    run_dir = _run_dir(recipe, Path(recipe_path).stem)
    console = Console()
    with launched(recipe, run_dir, console) as runner:
        result = runner.run()
    metrics = run_dir / "metrics.jsonl"
    curve = learning_curve(run_dir)
    if not recipe.runner.video:
        return TrainOutcome(result, metrics, curve)
    from headrace.evaluation import record_video  # torch and imageio: after the run, not before it

    video, remedy = record_video(result.checkpoint, run_dir / "policy.mp4")
    return TrainOutcome(result, metrics, curve, video, remedy)


def _run_dir(recipe: EmbodiedRecipe, name: str) -> Path:
    """The run's directory, made. A resumed run goes on in its own, unless told otherwise."""
    runner = recipe.runner
    if runner.run_dir is not None:
        run_dir = Path(runner.run_dir)
    elif runner.resume_dir is not None:
        resumed = Path(runner.resume_dir).absolute()
        parents = [resumed, *resumed.parents]
        run_dir = next((p for p in parents if (p / CHECKPOINTS_DIR).is_dir()), _fresh(name))
    else:
        run_dir = _fresh(name)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise ConfigError("runner.run_dir", str(run_dir), f"cannot be made: {refused}") from refused
    return run_dir.absolute()


def _fresh(name: str) -> Path:
    return RUNS_DIR / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
