"""Seeds: every environment of every rank draws from its own stream."""

from __future__ import annotations

import numpy as np


def env_seeds(seed: int | None, *, rank: int, num_envs: int) -> list[int]:
    """`num_envs` seeds for rank `rank`, distinct across ranks and environments; other ones each time for seed None."""
    root = np.random.SeedSequence() if seed is None else np.random.SeedSequence(seed, spawn_key=(rank,))
    # Thirty-one bits: the widest seed that every simulator accepts.
    return [int(child.generate_state(1)[0]) >> 1 for child in root.spawn(num_envs)]
