from __future__ import annotations

import numpy as np
import pytest

from headrace.learning.envs.chunks import step_chunk
from headrace.learning.envs.sync import SyncVectorEnv
from tests.learning.collecting import collect
from tests.learning.toy_envs import CountingEnv


def lengths(*values: int, **kwargs: object) -> SyncVectorEnv:
    return SyncVectorEnv([lambda n=n: CountingEnv(n, **kwargs) for n in values], list(range(len(values))))  # type: ignore[arg-type]


def test_an_ending_inside_a_chunk_masks_the_rest() -> None:
    env = lengths(2, 5)
    env.reset()
    chunk = step_chunk(env, np.zeros((2, 4), np.int64))
    assert chunk.num_executed.tolist() == [2, 4]
    assert chunk.rewards.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert chunk.truncated.tolist() == [True, False]
    assert chunk.obs[:, 0].tolist() == [0, 4], "the new episode has not begun to act"
    assert (chunk.final_index.tolist(), chunk.final_obs.tolist()) == ([0], [[2]])


def test_all_environments_may_end_before_the_chunk_does() -> None:
    env = lengths(1, 2)
    env.reset()
    chunk = step_chunk(env, np.zeros((2, 5), np.int64))
    assert chunk.num_executed.tolist() == [1, 2]
    assert chunk.final_index.tolist() == [0, 1]
    assert [e.length for e in chunk.episodes] == [1, 2]


def test_a_fault_inside_a_chunk_takes_the_whole_decision_away() -> None:
    env = SyncVectorEnv([lambda: CountingEnv(9, fault="reward", fault_step=2)], [0], on_fault="reset")
    env.reset()
    chunk = step_chunk(env, np.zeros((1, 3), np.int64))
    assert chunk.num_executed.tolist() == [0]
    assert chunk.rewards.tolist() == [[0, 0, 0]]
    assert chunk.obs.tolist() == [[0]]


@pytest.mark.parametrize("chunk_size", [1, 2, 3])
def test_chunks_of_any_size_count_the_same_environment_steps_per_episode(chunk_size: int) -> None:
    trajectory = collect(lengths(6), 12 // chunk_size, chunk_size=chunk_size)
    assert trajectory.num_env_steps == 12
    assert [e.length for e in trajectory.episodes] == [6, 6]
    assert trajectory.rewards.sum() == 12


def test_actions_of_another_number_of_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="for 1 environments"):
        step_chunk(lengths(2), np.zeros((2, 1), np.int64))
