"""Action chunks: K environment steps for one decision, none of them beyond an episode's end."""

from __future__ import annotations

import numpy as np

from headrace.learning.data.chunk import ChunkStep
from headrace.learning.data.trajectory import EpisodeRecord
from headrace.learning.envs.base import VectorEnv


def step_chunk(env: VectorEnv, actions: np.ndarray) -> ChunkStep:
    """Execute actions [B, K, *act] (as the environment understands them) until the chunk or the episode ends.

    What is left of an environment's chunk after an ending, or after a fault, is not executed. A decision with a
    fault in it counts as one that never happened (num_executed 0).
    """
    num_envs, chunk_size = actions.shape[:2]
    if num_envs != env.num_envs:
        raise ValueError(f"step_chunk: actions {actions.shape} for {env.num_envs} environments")
    first = env.step(actions[:, 0])
    chunk = ChunkStep(
        obs=first.obs,
        rewards=np.zeros((num_envs, chunk_size), np.float32),
        num_executed=first.valid.astype(np.int32),
        terminated=first.terminated,
        truncated=first.truncated,
        final_index=first.final_index,
        final_obs=first.final_obs,
        episodes=first.episodes,
    )
    chunk.rewards[:, 0] = first.rewards
    if chunk_size > 1:
        _step_the_rest(env, actions, chunk, alive=first.valid & ~(first.terminated | first.truncated))
    return chunk


def _step_the_rest(env: VectorEnv, actions: np.ndarray, chunk: ChunkStep, alive: np.ndarray) -> None:
    indices, finals = [chunk.final_index], [chunk.final_obs]
    episodes: list[EpisodeRecord] = list(chunk.episodes)
    for k in range(1, actions.shape[1]):
        if not alive.any():
            break
        step = env.step(actions[:, k], alive)
        faulted = alive & ~step.valid
        chunk.obs = step.obs
        chunk.rewards[:, k] = step.rewards
        chunk.num_executed += step.valid
        chunk.num_executed[faulted] = 0
        chunk.rewards[faulted] = 0.0
        chunk.terminated |= step.terminated
        chunk.truncated |= step.truncated
        alive = alive & step.valid & ~(step.terminated | step.truncated)
        indices.append(step.final_index)
        finals.append(step.final_obs)
        episodes += step.episodes
    chunk.final_index = np.concatenate(indices)
    chunk.final_obs = np.concatenate(finals)
    chunk.episodes = episodes
