"""EnvConfig: which environment, how many, and what to do when one misbehaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """id: a Gymnasium id, a registered name or "module:attribute" (a callable returning an environment).
    num_envs: environments of one rank.
    max_episode_steps: truncate there; None keeps the environment's own limit.
    env_kwargs: handed to the environment's constructor.
    vectorization: sync (a loop in this process), async (one process per environment) or native (the environment's
        own vector version).
    on_fault: an environment that emits NaN or inf, or that raises: "raise", or "reset" it, dropping that step.
    max_faults: faults after which "reset" gives up and raises.
    step_timeout_s: async only; how long a step or a reset may take.
    action_mode: what happens to actions of a Box: "clip" to the bounds, or "squash" [-1, 1] onto them.
    """

    id: str
    num_envs: int = 8
    max_episode_steps: int | None = None
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    vectorization: Literal["sync", "async", "native"] = "sync"
    on_fault: Literal["raise", "reset"] = "raise"
    max_faults: int = 100
    step_timeout_s: float = 60.0
    action_mode: Literal["clip", "squash"] = "clip"

    def __post_init__(self) -> None:
        if not self.id:
            raise ConfigError("id", self.id, "name an environment, for example CartPole-v1")
        if self.num_envs < 1:
            raise ConfigError("num_envs", self.num_envs, "must be at least 1")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError("max_episode_steps", self.max_episode_steps, "must be at least 1, or absent")
        if self.step_timeout_s <= 0:
            raise ConfigError("step_timeout_s", self.step_timeout_s, "must be positive")
        if self.max_faults < 1:
            raise ConfigError("max_faults", self.max_faults, "must be at least 1")
        if self.vectorization == "native" and self.on_fault == "reset":
            raise ConfigError("on_fault", self.on_fault, "a native vector environment cannot reset one; use 'raise'")
