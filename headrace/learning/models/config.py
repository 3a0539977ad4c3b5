"""ModelConfig: the shape of the default network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """hidden: layer sizes. activation. log_std_init: of the Gaussian's free log standard deviation.
    normalize_obs: running mean and variance, updated by the learner. separate_value: a value network of its own;
    False shares the hidden layers. policy_gain, value_gain: scale of the last layers' initial weights.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "silu", "elu"] = "tanh"
    log_std_init: float = 0.0
    normalize_obs: bool = True
    separate_value: bool = True
    policy_gain: float = 0.01
    value_gain: float = 1.0

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden):
            raise ConfigError("hidden", self.hidden, "layer sizes must be at least 1")
        if not self.separate_value and not self.hidden:
            raise ConfigError("separate_value", self.separate_value, "there is no hidden layer to share")
