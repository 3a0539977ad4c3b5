"""What a recipe says: one dataclass a section, each owned by the room that it configures."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Literal

from headrace.core.errors import ConfigError
from headrace.learning.envs.config import EnvConfig
from headrace.learning.learners.config import PPOSettings
from headrace.learning.models.config import ModelConfig
from headrace.system import ClusterConfig
from headrace.system.cluster.config import read_placements
from headrace.workers.config import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """mode: "sync" (collect, then train) or "async" (both at once).
    max_steps: training steps of the run, those of the run that it resumes included.
    trajectories_per_step: in a training step, over all learner ranks; default: one of every env rank.
    target_return: stop early once the mean return of the last `return_window` training episodes reaches it.
    weight_sync_interval: steps between two weight syncs; sync_weight_no_wait: in async mode, train on while they
        travel; a sync that falls due while one is under way is done once, after it.
    val_check_interval: steps between two evaluations of `eval_episodes` episodes (0: never).
    save_interval: steps between two checkpoints (0: only the last); keep_checkpoints: how many are kept.
    resume_dir: a run, its checkpoints, or one checkpoint to go on from.
    run_dir: where everything is written; default: runs/<recipe>-<time>, or the resumed run's.
    data_wait_s: how long a step waits for data before it is skipped.
    """

    mode: Literal["sync", "async"] = "async"
    max_steps: int
    trajectories_per_step: int | None = None
    target_return: float | None = None
    return_window: int = 20
    weight_sync_interval: int = 1
    sync_weight_no_wait: bool = False
    val_check_interval: int = 0
    eval_episodes: int = 10
    save_interval: int = 0
    keep_checkpoints: int = 3
    resume_dir: str | None = None
    run_dir: str | None = None
    data_wait_s: float = 30.0
    video: bool = True

    def __post_init__(self) -> None:
        for key in ("max_steps", "return_window", "weight_sync_interval", "eval_episodes", "keep_checkpoints"):
            if getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "must be at least 1")
        for key in ("val_check_interval", "save_interval"):
            if getattr(self, key) < 0:
                raise ConfigError(key, getattr(self, key), "must be 0 (never) or a number of steps")
        if self.data_wait_s <= 0:
            raise ConfigError("data_wait_s", self.data_wait_s, "must be positive")


@dataclass(frozen=True, kw_only=True)
class EmbodiedRecipe:
    """A whole embodied run: environments ask a policy, a learner trains it.

    cluster: None runs every role in this process, without Ray. Its `component_placement` places the components
    `env`, `rollout` and `learner`.
    import_dirs: where modules that the recipe names are looked for besides Python's own path; a run adds the recipe's
        directory and the working directory, so that its checkpoints can be played from anywhere.
    """

    env: EnvConfig
    runner: RunnerConfig
    cluster: ClusterConfig | None = None
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: PPOSettings = field(default_factory=PPOSettings)
    seed: int | None = None
    import_dirs: tuple[str, ...] = ()

    def make_importable(self) -> None:
        """Put `import_dirs` on this process's path; workers get it from there."""
        sys.path.extend(directory for directory in self.import_dirs if directory not in sys.path)

    def __post_init__(self) -> None:
        if self.cluster is None:
            return
        placed = {entry.component for entry in read_placements(self.cluster.component_placement)}
        missing = [name for name in COMPONENTS if name not in placed]
        if missing:
            remedy = f"place {', '.join(missing)} too: an embodied run has the components {', '.join(COMPONENTS)}"
            raise ConfigError("cluster.component_placement", sorted(placed), remedy)
        foreign = sorted(placed - set(COMPONENTS))
        if foreign:
            remedy = f"an embodied run has the components {', '.join(COMPONENTS)}"
            raise ConfigError("cluster.component_placement", foreign, remedy)


COMPONENTS = ("env", "rollout", "learner")
