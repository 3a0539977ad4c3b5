"""ChunkStep: what one decision of the policy did to the environments."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headrace.learning.data.trajectory import EpisodeRecord


@dataclass(slots=True)
class ChunkStep:
    """Outcome of up to K environment steps of B environments.

    obs [B, *obs] next observation (after the reset where an episode ended), rewards [B, K] (zeros after an ending),
    num_executed [B] steps really taken (0: the row never happened), terminated, truncated [B],
    final_index [E] environments whose episode ended, final_obs [E, *obs] their true last observations,
    episodes: finished now.
    """

    obs: np.ndarray
    rewards: np.ndarray
    num_executed: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_index: np.ndarray
    final_obs: np.ndarray
    episodes: list[EpisodeRecord] = field(default_factory=list)
