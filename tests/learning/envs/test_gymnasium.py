from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from headrace.core.errors import ConfigError, EnvironmentFaultError
from headrace.learning.envs import sync
from headrace.learning.envs.gymnasium import CopyObservation, GymnasiumVectorEnv
from tests.learning.collecting import collect
from tests.learning.toy_envs import CountingEnv

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def foreign(mode: AutoresetMode, length: int = 3, count: int = 1, **kwargs: object) -> GymnasiumVectorEnv:
    factories = [lambda: CountingEnv(length, **kwargs)] * count  # type: ignore[arg-type]
    return GymnasiumVectorEnv(SyncVectorEnv(factories, autoreset_mode=mode))


def transitions(env: GymnasiumVectorEnv, steps: int) -> list[tuple[float, float]]:
    trajectory = collect(env, steps)
    successors = trajectory.obs[1:].copy()
    successors[tuple(trajectory.final_index.T)] = trajectory.final_obs
    kept = trajectory.mask
    assert (trajectory.rewards[..., 0] == kept).all()
    return [(float(a), float(b)) for a, b in zip(trajectory.obs[:-1][kept][:, 0], successors[kept][:, 0], strict=True)]


@pytest.mark.parametrize(("mode", "count"), [(MODES[0], 6), (MODES[1], 8), (MODES[2], 8)])
def test_no_reset_row_becomes_a_transition(mode: AutoresetMode, count: int) -> None:
    """Case A2: eight vector steps of three-step episodes."""
    found = transitions(foreign(mode), 8)
    assert len(found) == count
    assert set(found) == {(0, 1), (1, 2), (2, 3)}
    assert collect(foreign(mode), 8).num_env_steps == count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("as_dict", [False, True])
def test_a_reused_buffer_does_not_leak_into_what_was_stored(mode: AutoresetMode, as_dict: bool) -> None:
    """Case A3: gymnasium's own same-step mode would report the final observation 0."""
    trajectory = collect(foreign(mode, reuse_buffer=True, as_dict=as_dict), 3)
    assert trajectory.obs[:3, 0, 0].tolist() == [0, 1, 2]
    assert trajectory.final_obs.tolist() == [[3]]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_reports_the_same_episodes(mode: AutoresetMode) -> None:
    episodes = collect(foreign(mode, length=2, count=2), 2).episodes
    assert [(e.env_index, e.length, e.episode_return) for e in episodes] == [(0, 2, 2.0), (1, 2, 2.0)]


def copying_env() -> gym.Env:
    return CopyObservation(CountingEnv(2, reuse_buffer=True))


@pytest.mark.parametrize("mode", MODES)
def test_gymnasium_subprocesses_are_adapted_too(mode: AutoresetMode) -> None:
    env = GymnasiumVectorEnv(AsyncVectorEnv([copying_env], autoreset_mode=mode))
    trajectory = collect(env, 2)
    assert trajectory.obs[:2, 0, 0].tolist() == [0, 1]
    assert trajectory.final_obs.tolist() == [[2]]
    env.close()


def test_a_native_vector_environment_agrees_with_the_loop() -> None:
    native = GymnasiumVectorEnv(
        gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point", max_episode_steps=20), seeds=[3] * 4
    )
    trajectory = collect(native, 60)
    assert trajectory.obs.dtype == np.float32
    assert trajectory.num_env_steps == 240 - np.count_nonzero(trajectory.num_executed == 0)
    lengths = [episode.length for episode in trajectory.episodes]
    # Always pushing left, a pole falls within about ten steps.
    assert 8 <= min(lengths) <= max(lengths) <= 11
    starts = trajectory.obs[:-1][trajectory.num_executed == 0]
    assert len(starts) > 0 and (np.abs(starts[:, 2]) > 0.2).all(), "reset rows hold the last observation"
    native.close()


def test_stepping_only_some_of_a_foreign_vector_environment_is_refused() -> None:
    env = foreign(AutoresetMode.DISABLED, count=2)
    env.reset()
    with pytest.raises(ConfigError, match="vectorization"):
        env.step(np.zeros(2, np.int64), np.array([True, False]))


@pytest.mark.parametrize(("fault", "key"), [("obs", "observation"), ("reward", "reward")])
def test_a_fault_of_a_foreign_vector_environment_is_named(fault: str, key: str) -> None:
    envs = [lambda: CountingEnv(9), lambda: CountingEnv(9, fault=fault, fault_step=2)]  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFaultError, match=f"env 1: {key} is not finite .step 2"):
        collect(GymnasiumVectorEnv(SyncVectorEnv(envs)), 4)


def test_the_loop_and_gymnasium_give_equal_mujoco_trajectories() -> None:
    def make() -> gym.Env:
        return gym.make("InvertedPendulum-v5", disable_env_checker=True)

    def act(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return -3.0 * obs[:, 1:2], np.zeros(2), np.zeros(2)

    theirs = SyncVectorEnv([make, make], autoreset_mode=AutoresetMode.SAME_STEP)
    expected = collect(GymnasiumVectorEnv(theirs, seeds=[5, 6]), 50, act)
    found = collect(sync.SyncVectorEnv([make, make], [5, 6]), 50, act)
    assert np.array_equal(found.obs, expected.obs)
    assert np.array_equal(found.final_obs, expected.final_obs)
    assert found.episodes == expected.episodes
