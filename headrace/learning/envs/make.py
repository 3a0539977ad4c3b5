"""From an EnvConfig to a VectorEnv."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from typing import Any

import gymnasium as gym

from headrace.core.errors import ConfigError, nearest
from headrace.core.registry import Registry
from headrace.learning.envs.base import VectorEnv
from headrace.learning.envs.config import EnvConfig
from headrace.learning.envs.gymnasium import GymnasiumVectorEnv
from headrace.learning.envs.process import ProcessVectorEnv
from headrace.learning.envs.seeding import env_seeds
from headrace.learning.envs.sync import SyncVectorEnv

ENVIRONMENTS: Registry[Any] = Registry("environment")
"""Name -> callable. Called with `env_kwargs` it returns a gymnasium.Env; with vectorization native it is called with
`num_envs` too and returns a gymnasium.vector.VectorEnv or a VectorEnv of ours."""


def make_vector_env(
    config: EnvConfig, *, num_envs: int | None = None, seed: int | None = None, rank: int = 0, num_ranks: int = 1
) -> VectorEnv:
    """The environments of rank `rank` of `num_ranks`, `num_envs` of them (default: `config.num_envs`).

    Equal seeds give equal first observations; ranks and environments differ; with None every call differs.
    Raises ConfigError naming an unknown environment, or one that cannot do what the config asks.
    """
    count = config.num_envs if num_envs is None else num_envs
    if count < 1:
        raise ConfigError("env.num_envs", count, "must be at least 1")
    if not 0 <= rank < num_ranks:
        raise ConfigError("env.rank", rank, f"must be in 0..{num_ranks - 1}")
    seeds = env_seeds(seed, rank=rank, num_envs=count)
    if config.vectorization == "sync":
        return make_sync(config, seeds, 0)
    if config.vectorization == "native":
        return _make_native(config, count, seeds)
    shards = [functools.partial(make_sync, config, [seed], index) for index, seed in enumerate(seeds)]
    return ProcessVectorEnv(shards, step_timeout_s=config.step_timeout_s)


def make_sync(config: EnvConfig, seeds: list[int], first_index: int) -> SyncVectorEnv:
    """One environment per seed, in this process."""
    factory = functools.partial(make_env, config)
    return SyncVectorEnv(
        [factory] * len(seeds),
        seeds,
        max_episode_steps=_limit(config),
        on_fault=config.on_fault,
        max_faults=config.max_faults,
        first_index=first_index,
    )


def check_id(env_id: str) -> None:
    """Raises ConfigError naming `env.id` and the nearest name, where no such environment can be made."""
    module, colon, _ = env_id.partition(":")
    if colon:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise ConfigError("env.id", env_id, f"there is no module '{module}' to import it from")
    elif env_id not in ENVIRONMENTS and not _is_gymnasium(env_id):
        raise ConfigError(
            "env.id", env_id, f"no such environment; {nearest(env_id, [*gym.registry, *ENVIRONMENTS.names()])}"
        )


def make_env(config: EnvConfig) -> gym.Env:
    """One Gymnasium environment, without those of Gymnasium's wrappers whose work the vector environment does."""
    try:
        if not _is_gymnasium(config.id):
            return ENVIRONMENTS.get(config.id, key="env.id")(**config.env_kwargs)
        spec = dataclasses.replace(gym.spec(config.id), order_enforce=False)
        return gym.make(spec, max_episode_steps=-1, disable_env_checker=True, **config.env_kwargs)
    except (TypeError, gym.error.Error) as error:
        raise ConfigError("env.env_kwargs", config.env_kwargs, f"{config.id} refuses them: {error}") from error


def _make_native(config: EnvConfig, num_envs: int, seeds: list[int]) -> VectorEnv:
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    kwargs = {**config.env_kwargs, **limit}
    if _is_gymnasium(config.id):
        try:
            envs = gym.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        except gym.error.Error as error:
            raise ConfigError("env.vectorization", "native", f"{config.id} has no vector version ({error})") from error
    else:
        envs = ENVIRONMENTS.get(config.id, key="env.id")(num_envs=num_envs, **kwargs)
    if isinstance(envs, VectorEnv):
        return envs
    return GymnasiumVectorEnv(envs, seeds=seeds, max_episode_steps=_limit(config))


def _limit(config: EnvConfig) -> int | None:
    if config.max_episode_steps is None and _is_gymnasium(config.id):
        return gym.spec(config.id).max_episode_steps
    return config.max_episode_steps


def _is_gymnasium(env_id: str) -> bool:
    return env_id in gym.registry
