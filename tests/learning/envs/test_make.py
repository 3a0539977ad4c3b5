from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.learning.envs.config import EnvConfig
from headrace.learning.envs.make import make_vector_env
from tests.learning.toy_envs import CountingEnv


def first_obs(seed: int | None, rank: int) -> list[list[float]]:
    env = make_vector_env(EnvConfig(id="InvertedPendulum-v5", num_envs=2), seed=seed, rank=rank, num_ranks=2)
    return env.reset().tolist()


def test_first_observations_differ_between_ranks_and_environments_and_repeat_with_the_seed() -> None:
    """Case N1."""
    ranks = [*first_obs(42, 0), *first_obs(42, 1)]
    assert len({tuple(row) for row in ranks}) == 4
    assert ranks == [*first_obs(42, 0), *first_obs(42, 1)]
    assert first_obs(None, 0) != first_obs(None, 0)


@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_every_vectorization_keeps_the_registered_time_limit(vectorization: Any) -> None:
    env = make_vector_env(EnvConfig(id="CartPole-v1", num_envs=1, vectorization=vectorization), seed=0)
    assert env.max_episode_steps == 500
    assert env.reset().shape == (1, 4)
    env.close()


def test_an_own_limit_replaces_the_registered_one() -> None:
    env = make_vector_env(EnvConfig(id="Pendulum-v1", num_envs=1, max_episode_steps=5), seed=0)
    env.reset()
    cut = [bool(env.step(np.zeros((1, 1), np.float32)).truncated[0]) for _ in range(10)]
    assert cut == [False, False, False, False, True] * 2


def test_an_environment_is_found_by_module_and_attribute() -> None:
    config = EnvConfig(id="tests.learning.toy_envs:CountingEnv", num_envs=3, env_kwargs={"length": 2})
    env = make_vector_env(config, seed=0)
    assert env.reset().shape == (3, 1)
    assert env.step(np.zeros(3, np.int64)).final_index.size == 0
    assert env.step(np.zeros(3, np.int64)).final_index.tolist() == [0, 1, 2]


def native(num_envs: int) -> gym.vector.VectorEnv:
    return gym.vector.SyncVectorEnv([CountingEnv] * num_envs)


def test_a_native_factory_is_called_with_the_number_of_environments() -> None:
    config = EnvConfig(id="tests.learning.envs.test_make:native", num_envs=3, vectorization="native")
    assert make_vector_env(config, seed=0).reset().shape == (3, 1)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"id": "InvertedPendulun-v5"}, "env.id"),
        ({"id": "CartPole-v1", "env_kwargs": {"gravitee": 1}}, "env.env_kwargs"),
        ({"id": "Pendulum-v1", "vectorization": "native"}, "env.vectorization"),
    ],
)
def test_what_cannot_be_made_is_refused_by_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_vector_env(EnvConfig(num_envs=1, **config), seed=0)
    assert raised.value.key == key


@pytest.mark.parametrize(
    "bad", [{"id": ""}, {"num_envs": 0}, {"max_episode_steps": 0}, {"step_timeout_s": 0.0}, {"max_faults": 0}]
)
def test_an_impossible_config_is_refused_by_key(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        EnvConfig(**{"id": "CartPole-v1", **bad})
    assert raised.value.key in bad


def test_rendering_gives_a_picture_only_where_asked_for() -> None:
    plain = make_vector_env(EnvConfig(id="tests.learning.toy_envs:CountingEnv", num_envs=1), seed=0)
    assert plain.render_frame() is None
