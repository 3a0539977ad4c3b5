"""The collector's loop in its plainest form, for tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.learning.data.trajectory import Trajectory, TrajectoryBuilder
from headrace.learning.envs.base import VectorEnv
from headrace.learning.envs.chunks import step_chunk

Policy = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def collect(env: VectorEnv, num_steps: int, policy: Policy | None = None, chunk_size: int = 1) -> Trajectory:
    """`num_steps` decisions of `policy` (obs -> actions, log_probs, values; default: action 0, V = 0)."""
    builder = TrajectoryBuilder(num_steps, env.num_envs, chunk_size=chunk_size)
    obs = env.reset()
    builder.start(obs)
    shape = (env.num_envs,) if chunk_size == 1 else (env.num_envs, chunk_size)
    zeros = np.zeros(env.num_envs, np.float32)
    for _ in range(num_steps):
        actions, log_probs, values = policy(obs) if policy else (np.zeros(shape, np.int64), zeros, zeros)
        chunk = step_chunk(env, actions if chunk_size > 1 else actions[:, None])
        builder.append(actions, log_probs, values, 0, chunk)
        obs = chunk.obs
    return builder.build()
