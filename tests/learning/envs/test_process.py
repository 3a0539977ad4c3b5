from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import EnvironmentFaultError
from headrace.learning.envs.process import ProcessVectorEnv
from headrace.learning.envs.sync import SyncVectorEnv
from tests.learning.collecting import collect
from tests.learning.toy_envs import CountingEnv, HangingEnv, counting_shard


def two_processes(first: dict[str, Any], second: dict[str, Any]) -> ProcessVectorEnv:
    shards = [functools.partial(counting_shard, index, **kwargs) for index, kwargs in enumerate((first, second))]
    return ProcessVectorEnv(shards, step_timeout_s=20.0)


@pytest.fixture
def env() -> Iterator[ProcessVectorEnv]:
    env = two_processes({"length": 2, "reuse_buffer": True}, {"length": 3, "reuse_buffer": True, "as_dict": False})
    yield env
    env.close()


def test_processes_give_the_same_trajectory_as_a_loop(env: ProcessVectorEnv) -> None:
    """Case A3, subprocess."""
    loop = SyncVectorEnv([lambda: CountingEnv(2), lambda: CountingEnv(3)], [0, 1])
    ours, theirs = collect(env, 7), collect(loop, 7)
    assert np.array_equal(ours.obs, theirs.obs)
    assert np.array_equal(ours.truncated, theirs.truncated)
    assert np.array_equal(ours.final_index, theirs.final_index)
    assert np.array_equal(ours.final_obs, theirs.final_obs)
    assert ours.episodes == theirs.episodes
    # Only some of them, and from a saved state.
    state = env.get_state()
    assert state is not None
    step = env.step(np.zeros(2, np.int64), np.array([True, False]))
    assert step.valid.tolist() == [True, False]
    assert np.array_equal(env.set_state(state), ours.obs[-1])


def test_a_process_that_exits_is_named_with_its_exit_code() -> None:
    """Case I1."""
    env = two_processes({"length": 99}, {"length": 99, "fault": "exit", "fault_step": 7})
    with pytest.raises(EnvironmentFaultError, match=r"env 1: .*code 3 .*step 7"):
        collect(env, 10)
    env.close()


def test_a_fault_inside_a_process_keeps_its_message() -> None:
    env = two_processes({"length": 99}, {"length": 99, "fault": "reward", "fault_step": 3})
    with pytest.raises(EnvironmentFaultError, match=r"env 1: reward is not finite \(step 3"):
        collect(env, 10)
    env.close()


def hanging_shard() -> SyncVectorEnv:
    return SyncVectorEnv([HangingEnv], [0])


def test_a_reset_that_blocks_runs_into_its_timeout() -> None:
    """Case I1, other run."""
    env = ProcessVectorEnv([hanging_shard], step_timeout_s=0.5)
    with pytest.raises(EnvironmentFaultError, match=r"env 0: reset did not answer within 0.5 s"):
        env.reset()
    env.close()
