"""SyncVectorEnv: Gymnasium environments stepped in a plain loop into preallocated rows."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Literal

import gymnasium as gym
import numpy as np

from headrace.core.errors import ConfigError, EnvironmentFaultError
from headrace.learning.connectors.observation import ObservationMapping
from headrace.learning.data.trajectory import EpisodeRecord
from headrace.learning.envs import snapshot
from headrace.learning.envs.base import StepResult, VectorEnv

_log = logging.getLogger(__name__)

EnvFactory = Callable[[], gym.Env]


class SyncVectorEnv(VectorEnv):
    """One Gymnasium environment per factory, all with equal spaces, stepped one after the other.

    Faster than gymnasium.vector.SyncVectorEnv and able to step only some of its environments.
    `first_index` is the number of the first environment in messages and records (a shard of a larger vector).
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        seeds: Sequence[int],
        *,
        max_episode_steps: int | None = None,
        on_fault: Literal["raise", "reset"] = "raise",
        max_faults: int = 100,
        first_index: int = 0,
    ) -> None:
        self._envs = [factory() for factory in factories]
        self._steps = [env.step for env in self._envs]
        self._seeds: list[int | None] = list(seeds)
        self.num_envs = len(self._envs)
        self.action_space = self._envs[0].action_space
        self._mapping = ObservationMapping(self._envs[0].observation_space)
        self.observation_space = self._mapping.space
        for index, env in enumerate(self._envs):
            if env.observation_space != self._envs[0].observation_space or env.action_space != self.action_space:
                raise ConfigError("env.id", f"environment {index}", "its spaces differ from those of environment 0")
        self.max_episode_steps = max_episode_steps
        self._limit = max_episode_steps or float("inf")
        self._on_fault = on_fault
        self._max_faults = max_faults
        self._first_index = first_index
        self._is_float = self.observation_space.dtype != np.uint8
        # Row views, made once: writing through them is the whole cost of a copy.
        self._obs = np.zeros((self.num_envs, *self.observation_space.shape), self.observation_space.dtype)
        self._rows = [self._obs[i, ...] for i in range(self.num_envs)]
        self._lengths = [0] * self.num_envs
        self._returns = [0.0] * self.num_envs
        self._all = list(range(self.num_envs))
        self._no_index = np.empty(0, np.int64)
        self._no_obs = np.empty((0, *self.observation_space.shape), self._obs.dtype)

    def reset(self) -> np.ndarray:
        for i in self._all:
            self._reset_one(i)
        return self._obs.copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepResult:
        n = self.num_envs
        rewards = np.zeros(n, np.float32)
        terminated = np.zeros(n, np.bool_)
        truncated = np.zeros(n, np.bool_)
        valid = np.ones(n, np.bool_) if active is None else active.copy()
        endings: list[int] = []
        faults: dict[int, EnvironmentFaultError] = {}
        for i in self._all if active is None else np.flatnonzero(active).tolist():
            length = self._lengths[i] = self._lengths[i] + 1
            try:
                obs, reward, ended, cut, _ = self._steps[i](actions[i])
                self._mapping.write(obs, self._rows[i])
            except Exception as error:
                fault = self._fault(i, "step", f"raised {type(error).__name__}: {error}")
                if self._on_fault == "raise":
                    raise fault from error
                faults[i] = fault
                continue
            rewards[i] = reward
            self._returns[i] += float(reward)
            if ended or cut or length >= self._limit:
                terminated[i] = ended
                truncated[i] = cut or length >= self._limit
                endings.append(i)
        if not self._is_finite(rewards):
            faults.update(self._non_finite(rewards))
        for i, fault in faults.items():
            self._drop(i, fault)
            rewards[i] = 0.0
            terminated[i] = truncated[i] = valid[i] = False
        if faults:
            endings = [i for i in endings if i not in faults]
        if not endings:
            return StepResult(self._obs.copy(), rewards, terminated, truncated, valid, self._no_index, self._no_obs)
        final_obs = self._obs[endings]
        episodes = [self._finish(i) for i in endings]
        return StepResult(
            self._obs.copy(), rewards, terminated, truncated, valid, np.array(endings), final_obs, episodes
        )

    def _finish(self, i: int) -> EpisodeRecord:
        record = EpisodeRecord(self._returns[i], self._lengths[i], self._first_index + i)
        self._reset_one(i)
        return record

    def _reset_one(self, i: int) -> None:
        seed, self._seeds[i] = self._seeds[i], None
        self._lengths[i] = 0
        self._returns[i] = 0.0
        try:
            obs, _ = self._envs[i].reset(seed=seed)
            self._mapping.check_shape(obs)
            self._mapping.write(obs, self._rows[i])
        except Exception as error:
            raise self._fault(i, "reset", f"raised {type(error).__name__}: {error}") from error
        if self._is_float and not np.isfinite(self._rows[i]).all():
            raise self._fault(i, self._mapping.non_finite_key(self._rows[i]), "is not finite after reset")

    def _is_finite(self, rewards: np.ndarray) -> bool:
        return bool(np.isfinite(rewards).all() and (not self._is_float or np.isfinite(self._obs).all()))

    def _non_finite(self, rewards: np.ndarray) -> dict[int, EnvironmentFaultError]:
        faults: dict[int, EnvironmentFaultError] = {}
        for i in self._all:
            key = "reward" if not np.isfinite(rewards[i]) else self._mapping.non_finite_key(self._rows[i])
            if key:
                faults[i] = self._fault(i, key, "is not finite")
        return faults

    def _drop(self, i: int, fault: EnvironmentFaultError) -> None:
        """Reset environment i, losing its running episode, or give up."""
        self.faults += 1
        if self._on_fault == "raise":
            raise fault
        if self.faults > self._max_faults:
            raise EnvironmentFaultError(
                f"{fault} (fault {self.faults}, env.max_faults is {self._max_faults})"
            ) from fault
        _log.warning("%s; resetting it and dropping its episode", fault)
        self._reset_one(i)

    def _fault(self, i: int, key: str, what: str) -> EnvironmentFaultError:
        return EnvironmentFaultError(
            f"env {self._first_index + i}: {key} {what} (step {self._lengths[i]} of its episode)"
        )

    def get_state(self) -> bytes | None:
        states = [snapshot.snapshot(env) for env in self._envs]
        if any(state is None for state in states):
            return None
        return pickle.dumps((states, self._obs, self._lengths, self._returns, self._seeds, self.faults))

    def set_state(self, state: bytes) -> np.ndarray:
        states, obs, self._lengths, self._returns, self._seeds, self.faults = pickle.loads(state)
        for env, env_state in zip(self._envs, states, strict=True):
            snapshot.restore(env, env_state)
        self._obs[...] = obs
        return self._obs.copy()

    def render_frame(self) -> np.ndarray | None:
        if self._envs[0].render_mode != "rgb_array":
            return None
        return np.asarray(self._envs[0].render())

    def close(self) -> None:
        for env in self._envs:
            env.close()
