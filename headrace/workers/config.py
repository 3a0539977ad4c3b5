"""How experience is collected: RolloutConfig."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """fragment_length: decisions in a trajectory (T). num_action_chunks: environment steps for one decision (K)."""

    fragment_length: int = 128
    num_action_chunks: int = 1

    def __post_init__(self) -> None:
        for key in ("fragment_length", "num_action_chunks"):
            if getattr(self, key) < 1:
                raise ConfigError(key, getattr(self, key), "must be at least 1")
