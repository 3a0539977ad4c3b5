"""PPOSettings: everything that the update of the PPO family can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """gamma: discount per environment step. gae_lambda.
    loss: ppo (ratio to the behaviour policy) or decoupled_ppo (ratio to the policy before the update, weighted by
        how far that is from the behaviour policy, at most behaviour_weight_cap).
    clip_low, clip_high: the ratio is held within [1 - clip_low, 1 + clip_high]. dual_clip: bound c > 1 for A < 0.
    value_coef, value_clip, entropy_coef. reward_scale: rewards are multiplied by it, for learning only.
    lr, lr_schedule: constant, or linear to 0 over total_updates. adam_epsilon, adam_beta2, max_grad_norm.
    epochs, minibatch_size: in decisions, over all learner ranks together. normalize_advantages.
    target_kl: no further epoch once the mean KL to the policy before the update exceeds it.
    max_staleness: decisions of an older policy than this many versions are not trained on.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.95
    loss: Literal["ppo", "decoupled_ppo"] = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    behaviour_weight_cap: float = 5.0
    value_coef: float = 0.5
    value_clip: float | None = None
    entropy_coef: float = 0.0
    reward_scale: float = 1.0
    lr: float = 3e-4
    lr_schedule: Literal["constant", "linear"] = "constant"
    total_updates: int | None = None
    adam_epsilon: float = 1e-5
    adam_beta2: float = 0.999
    max_grad_norm: float = 0.5
    epochs: int = 10
    minibatch_size: int = 256
    normalize_advantages: bool = True
    target_kl: float | None = None
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        for key in ("gamma", "gae_lambda"):
            _check(0.0 <= getattr(self, key) <= 1.0, key, getattr(self, key), "must be in [0, 1]")
        for key in ("lr", "clip_low", "clip_high", "max_grad_norm", "reward_scale", "behaviour_weight_cap"):
            _check(getattr(self, key) > 0.0, key, getattr(self, key), "must be positive")
        for key in ("value_coef", "entropy_coef"):
            _check(getattr(self, key) >= 0.0, key, getattr(self, key), "must not be negative")
        for key in ("epochs", "minibatch_size"):
            _check(getattr(self, key) >= 1, key, getattr(self, key), "must be at least 1")
        _check(self.clip_low < 1.0, "clip_low", self.clip_low, "must be below 1")
        _check(
            self.dual_clip is None or self.dual_clip > 1.0, "dual_clip", self.dual_clip, "must be above 1, or absent"
        )
        _check(
            self.max_staleness is None or self.max_staleness >= 0, "max_staleness", self.max_staleness, "must be >= 0"
        )
        if self.lr_schedule == "linear" and not self.total_updates:
            raise ConfigError("total_updates", self.total_updates, "a linear lr_schedule needs the number of updates")

    def lr_at(self, update: int) -> float:
        """Learning rate of the update with this number (from 0)."""
        if self.lr_schedule == "constant":
            return self.lr
        assert self.total_updates is not None
        return self.lr * max(0.0, 1.0 - update / self.total_updates)


def _check(holds: bool, key: str, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigError(key, value, remedy)
