from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from headrace.core.errors import ConfigError, EnvironmentFaultError
from headrace.learning.envs.sync import SyncVectorEnv
from tests.learning.collecting import collect
from tests.learning.toy_envs import CountingEnv, StrictDiscreteEnv


def vector(count: int, *, on_fault: str = "raise", max_faults: int = 100, **kwargs: object) -> SyncVectorEnv:
    factories = [lambda: CountingEnv(**kwargs)] * count  # type: ignore[arg-type]
    return SyncVectorEnv(factories, list(range(count)), on_fault=on_fault, max_faults=max_faults)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_dict", [False, True])
def test_observations_in_a_reused_buffer_are_copied(as_dict: bool) -> None:
    """Case A3."""
    trajectory = collect(vector(1, reuse_buffer=True, as_dict=as_dict), 3)
    assert trajectory.obs[:3, 0, 0].tolist() == [0, 1, 2]
    assert trajectory.final_obs[0, 0] == 3


def test_results_do_not_change_after_they_were_handed_out() -> None:
    env = vector(2, reuse_buffer=True)
    first = env.reset()
    step = env.step(np.zeros(2, np.int64))
    env.step(np.zeros(2, np.int64))
    assert first[:, 0].tolist() == [0, 0]
    assert step.obs[:, 0].tolist() == [1, 1]


def test_an_environment_without_end_is_truncated_at_the_cap() -> None:
    """Case A4."""
    env = SyncVectorEnv([lambda: CountingEnv(ending="never")], [0], max_episode_steps=1000)
    trajectory = collect(env, 1000)
    assert trajectory.truncated[-1, 0] and not trajectory.terminated.any()
    assert [(e.length, e.episode_return) for e in trajectory.episodes] == [(1000, 1000.0)]


def test_inactive_environments_stay_where_they_are() -> None:
    env = vector(3)
    env.reset()
    step = env.step(np.zeros(3, np.int64), np.array([True, False, True]))
    assert step.obs[:, 0].tolist() == [1, 0, 1]
    assert step.valid.tolist() == [True, False, True]
    assert step.rewards.tolist() == [1, 0, 1]


def faulty(fault: str, on_fault: str, max_faults: int = 100) -> SyncVectorEnv:
    """Four environments of which number 2 misbehaves at its step 5."""
    factories = [lambda: CountingEnv(100)] * 4
    factories[2] = lambda: CountingEnv(100, fault=fault, fault_step=5)  # type: ignore[arg-type]
    return SyncVectorEnv(factories, [0, 1, 2, 3], on_fault=on_fault, max_faults=max_faults)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "key"), [("obs", "observation"), ("reward", "reward"), ("raise", "ZeroDivisionError")]
)
def test_a_fault_raises_naming_environment_key_and_step(fault: str, key: str) -> None:
    """Case D2, by policy "raise"."""
    with pytest.raises(EnvironmentFaultError, match=f"env 2: .*{key}.*step 5"):
        collect(faulty(fault, "raise"), 8)


def test_a_fault_names_the_part_of_a_dict_observation() -> None:
    env = vector(1, as_dict=True, fault="obs", fault_step=1)
    with pytest.raises(EnvironmentFaultError, match=r"observation\['count'\]"):
        collect(env, 2)


@pytest.mark.parametrize("fault", ["obs", "reward", "raise"])
def test_a_fault_resets_only_its_environment_and_is_counted(fault: str) -> None:
    """Case D2, by policy "reset"."""
    env = faulty(fault, "reset")
    trajectory = collect(env, 8)
    assert env.faults == 1
    assert trajectory.num_executed[:, 2].tolist() == [1, 1, 1, 1, 0, 1, 1, 1]
    assert trajectory.obs[:, 2, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert trajectory.obs[:, 1, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert all(np.isfinite(getattr(trajectory, name)).all() for name in ("obs", "rewards"))
    assert trajectory.num_env_steps == 31


def test_faults_without_end_are_given_up_on() -> None:
    env = SyncVectorEnv(
        [lambda: CountingEnv(9, fault="reward", fault_step=1)] * 3, [0, 1, 2], on_fault="reset", max_faults=2
    )
    with pytest.raises(EnvironmentFaultError, match="max_faults is 2"):
        collect(env, 2)


def test_discrete_observations_with_an_offset_become_one_hot() -> None:
    """Case E1, as observation."""
    env = SyncVectorEnv([StrictDiscreteEnv], [0])
    assert env.reset().tolist() == [[1, 0, 0, 0]]
    assert env.step(np.array([-1])).obs.tolist() == [[0, 1, 0, 0]]


def test_a_discrete_observation_outside_its_space_is_refused() -> None:
    class Outside(StrictDiscreteEnv):
        def _observe(self) -> int:
            return 0

    with pytest.raises(EnvironmentFaultError, match="is not in Discrete"):
        SyncVectorEnv([Outside], [0]).reset()


def test_images_stay_bytes() -> None:
    class Image(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (2, 2, 3), np.uint8)

        def _observe(self) -> np.ndarray:
            return np.full((2, 2, 3), 200 + self._count, np.uint8)

    trajectory = collect(SyncVectorEnv([Image], [0]), 2)
    assert trajectory.obs.dtype == np.uint8
    assert trajectory.obs[:, 0, 0, 0, 0].tolist() == [200, 201, 202]


def test_an_observation_of_another_shape_than_its_space_is_refused() -> None:
    class Short(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(-1, 1, (4,), np.float32)

    with pytest.raises(EnvironmentFaultError, match=r"shape \(1,\)"):
        SyncVectorEnv([Short], [0]).reset()


def test_a_space_without_a_fixed_size_is_refused_by_name() -> None:
    class Wordy(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Sequence(spaces.Discrete(2))

    with pytest.raises(ConfigError, match="Sequence"):
        SyncVectorEnv([Wordy], [0])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "InvertedPendulum-v5", "Pendulum-v1"])
def test_a_restored_environment_goes_on_exactly(env_id: str) -> None:
    def make() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gym.make(env_id, disable_env_checker=True)] * 2, [1, 2])

    env = make()
    env.reset()
    is_discrete = isinstance(env.action_space, spaces.Discrete)
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (60, 2)) if is_discrete else rng.uniform(-1, 1, (60, 2, 1)).astype(np.float32)
    for action in actions[:20]:
        env.step(action)
    state = env.get_state()
    assert state is not None
    other = make()
    other.reset()
    assert np.array_equal(other.set_state(state), env._obs)
    for action in actions[20:]:
        ours, theirs = env.step(action), other.step(action)
        assert np.array_equal(ours.obs, theirs.obs)
        assert ours.episodes == theirs.episodes
