"""What the sync and the async embodied run have in common: groups, channels, books, checkpoints."""

from __future__ import annotations

import abc
import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from headrace.core.checkpoint import CHECKPOINTS_DIR, CheckpointManager
from headrace.core.config import save_yaml
from headrace.learning.data.trajectory import EpisodeRecord
from headrace.runners.config import EmbodiedRecipe
from headrace.system import Channel, Handle, WorkerGroup
from headrace.telemetry.console import Console, StepReport
from headrace.telemetry.metrics import MetricLogger, mean_of
from headrace.telemetry.tracing import StageTimer

if TYPE_CHECKING:
    from headrace.workers.env import EnvWorker
    from headrace.workers.learner import LearnerWorker
    from headrace.workers.rollout import RolloutWorker

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Groups:
    """The three roles of an embodied run, launched."""

    env: WorkerGroup[EnvWorker]
    rollout: WorkerGroup[RolloutWorker]
    learner: WorkerGroup[LearnerWorker]


@dataclass(frozen=True)
class RunResult:
    """Where a run ended: steps, environment steps, mean return of the last episodes (None: none finished)."""

    global_step: int
    env_steps: int
    episode_return: float | None
    training_s: float
    checkpoint: Path
    run_dir: Path


class EmbodiedRunner(abc.ABC):
    """Begin with `init_workers`, then `run`. `groups` are launched already.

    trains_ahead: whether training may go on while weights travel.
    """

    trains_ahead: ClassVar[bool]

    def __init__(
        self, recipe: EmbodiedRecipe, groups: Groups, run_dir: Path, console: Console, *, cluster_s: float = 0.0
    ) -> None:
        self.config = recipe.runner
        self.recipe = recipe
        self.env, self.rollout, self.learner = groups.env, groups.rollout, groups.learner
        self.run_dir = run_dir
        self.console = console
        # Questions travel on `env_channel`, answers on `rollout_channel`, whole fragments on `replay_channel`.
        self.env_channel = Channel.create("env")
        self.rollout_channel = Channel.create("rollout")
        self.replay_channel = Channel.create("replay", maxsize=1)
        self.metric_channel = Channel.create("metrics")
        self.eval_env_channel = Channel.create("eval_env")
        self.eval_rollout_channel = Channel.create("eval_rollout")
        self.checkpoints = CheckpointManager(run_dir / CHECKPOINTS_DIR, keep=self.config.keep_checkpoints)
        self.timer = StageTimer()
        self.metrics: MetricLogger | None = None
        self.global_step = 0
        self.env_steps = self._env_steps_before = 0
        self.last_episodes: deque[EpisodeRecord] = deque(maxlen=self.config.return_window)
        self.started_at = time.monotonic()
        self._weight_sync: list[Handle] = []
        self._sync_is_owed = False
        self._startup = {"startup/cluster_s": cluster_s}

    # -- the workflow --------------------------------------------------------------------------------------------

    def init_workers(self) -> None:
        """Build environments, networks and optimiser; go on from a checkpoint where one is given."""
        spaces = self.env.init_worker().wait()[0]
        ready = [self.rollout.init_worker(spaces), self.learner.init_worker(spaces)]
        for handle in ready:
            handle.wait()
        if self.config.resume_dir is not None:
            self._resume(self.config.resume_dir)
        resume_step = self.global_step if self.config.resume_dir is not None else None
        self.checkpoints.rewind(resume_step)
        self.metrics = MetricLogger(self.run_dir, resume_step=resume_step)
        self.learner.set_global_step(self.global_step).wait()
        groups = (self.env, self.rollout, self.learner)
        self._startup |= {f"startup/{group.worker_group_name}_s": group.startup_s for group in groups}
        self.started_at = time.monotonic()

    @abc.abstractmethod
    def run(self) -> RunResult:
        """Train until `is_finished`, then stop every role in order and save the last checkpoint."""

    def is_finished(self) -> bool:
        """Whether the steps are done, or the target return is reached."""
        if self.global_step >= self.config.max_steps:
            return True
        target, mean = self.config.target_return, self.episode_return
        return target is not None and mean is not None and self._window_is_full() and mean >= target

    def update_rollout_weights(self, *, no_wait: bool = False) -> None:
        """Send the learner's weights to the rollout ranks. A request that meets one under way is owed, once."""
        if no_wait and any(not handle.done() for handle in self._weight_sync):
            self._sync_is_owed = True
            return
        self._await_weight_sync()
        self._sync_is_owed = False
        self._weight_sync = [self.rollout.sync_model_from_actor(), self.learner.sync_model_to_rollout()]
        if not no_wait:
            self._await_weight_sync()

    def evaluate(self) -> float | None:
        """Mean raw return of `eval_episodes` episodes under the most likely actions; training goes on untouched."""
        rollout = self.rollout.generate(self.eval_env_channel, self.eval_rollout_channel, explore=False)
        env = self.env.evaluate(self.eval_rollout_channel, self.eval_env_channel, self.config.eval_episodes)
        records = [record for rank in env.wait(unless_failed=[rollout]) for record in rank]
        rollout.wait()
        return _mean_return(records)

    def after_step(self, results: list[dict[str, float]]) -> None:
        """Books of one training step: weights, evaluation, checkpoint, metrics, all on their intervals."""
        self.global_step += 1
        if self.global_step % self.config.weight_sync_interval == 0 or self._sync_is_owed:
            with self.timer("sync_weights"):
                self.update_rollout_weights(no_wait=self.trains_ahead and self.config.sync_weight_no_wait)
        eval_return = None
        if _is_due(self.global_step, self.config.val_check_interval):
            with self.timer("evaluate"):
                eval_return = self.evaluate()
        self._take_episodes()
        if _is_due(self.global_step, self.config.save_interval):
            with self.timer("save"):
                self.save_checkpoint()
        self._log(results[0], eval_return)

    def save_checkpoint(self) -> Path:
        """Write a checkpoint of this step; atomic: it is whole, or not there."""
        if self.checkpoints.has(self.global_step):
            return self.checkpoints.path(self.global_step)
        progress = {
            "global_step": self.global_step,
            "env_steps": self.env_steps,
            "last_episodes": [asdict(record) for record in self.last_episodes],
        }
        return self.checkpoints.save(self.global_step, self._write_checkpoint, progress)

    def result(self, checkpoint: Path) -> RunResult:
        seconds = time.monotonic() - self.started_at
        return RunResult(self.global_step, self.env_steps, self.episode_return, seconds, checkpoint, self.run_dir)

    @property
    def episode_return(self) -> float | None:
        """Mean raw return of the last `return_window` training episodes."""
        return _mean_return(self.last_episodes)

    def close(self) -> None:
        """Flush the books. Safe to call at any time, more than once."""
        if self.metrics is not None:
            self.metrics.close()
        self.console.close()

    # -- for the subclasses --------------------------------------------------------------------------------------

    def interact(self, num_fragments: int | None = None) -> Handle:
        return self.env.interact(
            self.rollout_channel, self.env_channel, self.replay_channel, self.metric_channel, num_fragments
        )

    def generate(self) -> Handle:
        return self.rollout.generate(self.env_channel, self.rollout_channel)

    def _stop(self, running: list[Handle]) -> RunResult:
        """End the run in the order of the flow: env, rollout, learner; then save what was learned last."""
        self.env.stop().wait()
        self.replay_channel.close()
        self.rollout.stop().wait()
        self.learner.stop().wait()
        for handle in running:
            handle.wait(unless_failed=running)
        self._await_weight_sync()
        self._take_episodes()
        return self.result(self.save_checkpoint())

    def _save_sources(self, directory: Path) -> list[str]:
        """Save what the environments and random streams need to go on exactly; the names of what could not be."""
        del directory
        return ["environments", "random streams"]

    def _restore_sources(self, directory: Path) -> None:
        """Undo `_save_sources`."""
        del directory

    # -- books ---------------------------------------------------------------------------------------------------

    def _write_checkpoint(self, directory: Path) -> None:
        self.learner.save_checkpoint(directory).wait()
        save_yaml(self.recipe, directory / "recipe.yaml")
        missing = self._save_sources(directory)
        if missing:
            _logger.info("step %d: a resumed run will begin fresh %s", self.global_step, " and ".join(missing))

    def _resume(self, resume_dir: str) -> None:
        checkpoint = CheckpointManager.resolve(resume_dir)
        progress = CheckpointManager.metadata(checkpoint)
        self.learner.load_checkpoint(checkpoint).wait()
        self.global_step = progress["global_step"]
        self.env_steps = self._env_steps_before = progress["env_steps"]
        self.last_episodes.extend(EpisodeRecord(**record) for record in progress["last_episodes"])
        self._restore_sources(checkpoint)
        self.console.note(f"resumed {checkpoint} at step {self.global_step}")

    def _take_episodes(self) -> None:
        # By rank, so that the window holds the same episodes whoever reported first.
        for _, num_env_steps, episodes in sorted(self.metric_channel.drain(), key=lambda report: report[0]):
            self.env_steps += num_env_steps
            self.last_episodes.extend(episodes)

    def _log(self, result: dict[str, float], eval_return: float | None) -> None:
        assert self.metrics is not None
        stages = self.timer.consume()
        wall_s = time.monotonic() - self.started_at
        row: dict[str, float] = {**result, "time/env_steps": self.env_steps, "time/wall_s": wall_s}
        row |= {f"stage/{name}_s": seconds for name, seconds in stages.items()}
        row |= self._startup
        self._startup = {}  # it belongs to the first row
        row["time/env_steps_per_s"] = (self.env_steps - self._env_steps_before) / wall_s
        if self.episode_return is not None:
            row["env/episode_return"] = self.episode_return
            row["env/episode_length"] = sum(e.length for e in self.last_episodes) / len(self.last_episodes)
        if eval_return is not None:
            row["eval/episode_return"] = eval_return
        self.metrics.log(self.global_step, row)
        losses = {k.removeprefix("train/"): v for k, v in result.items() if k.endswith("_loss") or k == "train/entropy"}
        self.console.step(
            StepReport(
                step=self.global_step,
                max_steps=self.config.max_steps,
                env_steps=self.env_steps,
                env_steps_per_s=row["time/env_steps_per_s"],
                episode_return=self.episode_return,
                episodes=len(self.last_episodes),
                losses=losses,
                staleness=result.get("train/staleness"),
                stage_s=stages,
                wall_s=wall_s,
            )
        )

    def _await_weight_sync(self) -> None:
        handles, self._weight_sync = self._weight_sync, []
        for handle in handles:
            handle.wait(unless_failed=handles)

    def _window_is_full(self) -> bool:
        return len(self.last_episodes) == self.config.return_window


def _mean_return(records: Iterable[EpisodeRecord]) -> float | None:
    """None, not 0, where no episode finished."""
    mean = mean_of(record.episode_return for record in records)
    return None if mean is None else mean.value


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
