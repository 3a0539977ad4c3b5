"""Playing whole episodes with a fixed policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.core.errors import ConfigError
from headrace.learning.data.trajectory import EpisodeRecord
from headrace.learning.envs.base import VectorEnv
from headrace.learning.envs.chunks import step_chunk

Act = Callable[[np.ndarray], np.ndarray]
"""obs [B, *obs] -> actions [B, K, *act], as the environment understands them."""

PATIENCE = 10_000
"""Decisions within one episode after which an environment without a limit of its own counts as one that never ends."""


def play_episodes(env: VectorEnv, act: Act, num_episodes: int) -> list[EpisodeRecord]:
    """The first `num_episodes` episodes, shared out to the environments beforehand, in the order in which they end.

    Taking whichever finish first would favour short episodes.

    Raises:
        ConfigError: an environment without `max_episode_steps` does not end its episode.
    """
    quota = np.array([len(range(index, num_episodes, env.num_envs)) for index in range(env.num_envs)])
    running = np.zeros(env.num_envs, np.int64)
    records: list[EpisodeRecord] = []
    obs = env.reset()
    while quota.any():
        chunk = step_chunk(env, act(obs))
        obs = chunk.obs
        running += 1
        running[chunk.final_index] = 0
        if env.max_episode_steps is None and (running[quota > 0] > PATIENCE).any():
            raise ConfigError(
                "env.max_episode_steps", None, f"an episode did not end within {PATIENCE} decisions: set it"
            )
        for record in chunk.episodes:
            if quota[record.env_index]:
                quota[record.env_index] -= 1
                records.append(record)
    return records
