"""Adapter over Gymnasium's own vector environments, in any of their autoreset modes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from headrace.core.errors import ConfigError, EnvironmentFaultError
from headrace.learning.connectors.observation import ObservationMapping
from headrace.learning.data.trajectory import EpisodeRecord
from headrace.learning.envs.base import StepResult, VectorEnv


class CopyObservation(gym.Wrapper):
    """Hands out copies of the observations of an environment that reuses its buffers."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return _copied(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return _copied(obs), reward, terminated, truncated, info


class GymnasiumVectorEnv(VectorEnv):
    """A gymnasium.vector.VectorEnv of any autoreset mode.

    Next-step mode: the row that only resets is marked not valid. Same-step mode: the final observation comes from
    the infos; inside a gymnasium SyncVectorEnv it is copied before the reset (an AsyncVectorEnv over environments
    that reuse their buffer must wrap them in CopyObservation itself). Disabled: reset here, by mask.
    Actions are given as rows; all environments step together.
    """

    def __init__(
        self, envs: gym.vector.VectorEnv, *, seeds: list[int] | None = None, max_episode_steps: int | None = None
    ):
        self._envs = envs
        self._mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        if isinstance(envs, SyncVectorEnv) and self._mode is AutoresetMode.SAME_STEP:
            envs.envs[:] = [CopyObservation(env) for env in envs.envs]
        self._seeds = seeds
        self.num_envs = envs.num_envs
        self.action_space = envs.single_action_space
        self._mapping = ObservationMapping(envs.single_observation_space)
        self.observation_space = self._mapping.space
        self.max_episode_steps = max_episode_steps
        self._resetting = np.zeros(self.num_envs, np.bool_)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._returns = np.zeros(self.num_envs)

    def reset(self) -> np.ndarray:
        obs, _ = self._envs.reset(seed=self._take_seeds())
        self._resetting[:] = False
        self._lengths[:] = 0
        self._returns[:] = 0.0
        return self._rows(obs)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepResult:
        if active is not None and not active.all():
            raise ConfigError(
                "env.vectorization", "native", "it can only step as a whole; action chunks need sync or async"
            )
        raw_obs, raw_rewards, ended, cut, infos = self._envs.step(self._pack(actions))
        obs = self._rows(raw_obs)
        valid = ~self._resetting if self._mode is AutoresetMode.NEXT_STEP else np.ones(self.num_envs, np.bool_)
        rewards = np.where(valid, raw_rewards, 0.0).astype(np.float32)
        terminated = np.logical_and(ended, valid)
        truncated = np.logical_and(cut, valid)
        endings = terminated | truncated
        self._lengths += valid
        self._returns += rewards
        index = np.flatnonzero(endings)
        final_obs = self._final_obs(obs, infos, index)
        self._check_finite(rewards, obs, final_obs)
        episodes = [EpisodeRecord(float(self._returns[i]), int(self._lengths[i]), int(i)) for i in index]
        self._lengths[index] = 0
        self._returns[index] = 0.0
        self._resetting = endings
        if self._mode is AutoresetMode.DISABLED and index.size:
            obs = self._rows(self._envs.reset(options={"reset_mask": endings})[0])
        return StepResult(obs, rewards, terminated, truncated, valid, index, final_obs, episodes)

    def render_frame(self) -> np.ndarray | None:
        if self._envs.render_mode != "rgb_array":
            return None
        frames = self._envs.render()
        return None if not frames else np.asarray(frames[0])

    def close(self) -> None:
        self._envs.close()

    def _take_seeds(self) -> Any:
        seeds, self._seeds = self._seeds, None
        if seeds is None:
            return None
        # Native vector environments draw all their environments from one stream.
        return seeds if isinstance(self._envs, SyncVectorEnv | AsyncVectorEnv) else seeds[0]

    def _rows(self, obs: Any) -> np.ndarray:
        rows = np.empty((self.num_envs, *self.observation_space.shape), self.observation_space.dtype)
        self._mapping.write_batch(obs, rows, self._envs.observation_space)
        return rows

    def _pack(self, actions: np.ndarray) -> Any:
        return np.asarray(actions, dtype=self._envs.action_space.dtype)

    def _final_obs(self, obs: np.ndarray, infos: dict[str, Any], index: np.ndarray) -> np.ndarray:
        final_obs = obs[index]
        if self._mode is AutoresetMode.SAME_STEP:
            for row, i in enumerate(index):
                self._mapping.write(infos["final_obs"][i], final_obs[row])
        return final_obs

    def _check_finite(self, rewards: np.ndarray, obs: np.ndarray, final_obs: np.ndarray) -> None:
        if not np.isfinite(rewards).all():
            i = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise EnvironmentFaultError(f"env {i}: reward is not finite (step {self._lengths[i]} of its episode)")
        if obs.dtype == np.uint8 or (np.isfinite(obs).all() and np.isfinite(final_obs).all()):
            return
        bad = ~np.isfinite(obs.reshape(self.num_envs, -1)).all(axis=1)
        i = int(np.flatnonzero(bad)[0]) if bad.any() else -1
        where = f"env {i}" if i >= 0 else "an environment's final"
        key = self._mapping.non_finite_key(obs[i]) if i >= 0 else "observation"
        raise EnvironmentFaultError(f"{where}: {key} is not finite (step {self._lengths[i]} of its episode)")


def _copied(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {name: _copied(value) for name, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_copied(value) for value in obs)
    return np.array(obs) if isinstance(obs, np.ndarray) else obs
