"""Environments whose right transitions are known by heart."""

from __future__ import annotations

import os
import threading
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from headrace.learning.envs.sync import SyncVectorEnv

Ending = Literal["terminated", "truncated", "both", "never"]


class CountingEnv(gym.Env):
    """The observation is the number of steps since the reset, the reward 1; an episode lasts `length` steps.

    `reuse_buffer`: hands out one array that it goes on changing. `fault_step`: emits `fault` there.
    """

    def __init__(
        self,
        length: int = 3,
        ending: Ending = "truncated",
        *,
        reuse_buffer: bool = False,
        as_dict: bool = False,
        fault: Literal["obs", "reward", "raise", "exit"] | None = None,
        fault_step: int = 0,
    ) -> None:
        box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = spaces.Dict({"count": box}) if as_dict else box
        self.action_space = spaces.Discrete(2)
        self._length, self._ending, self._as_dict = length, ending, as_dict
        self._reuse_buffer = reuse_buffer
        self._fault, self._fault_step = fault, fault_step
        self._buffer = np.zeros(1, np.float32)
        self._count = 0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        self.steps += 1
        is_over = self._ending != "never" and self._count >= self._length
        obs, reward = self._observe(), 1.0
        if self.steps == self._fault_step:
            if self._fault == "raise":
                raise ZeroDivisionError("simulator broke")
            if self._fault == "exit":
                os._exit(3)
            if self._fault == "obs":
                obs = {"count": np.array([np.inf])} if self._as_dict else np.array([np.inf], np.float32)
            if self._fault == "reward":
                reward = float("nan")
        terminated = is_over and self._ending in ("terminated", "both")
        return obs, reward, terminated, is_over and self._ending in ("truncated", "both"), {}

    def _observe(self) -> Any:
        if self._reuse_buffer:
            self._buffer[0] = self._count
            array = self._buffer
        else:
            array = np.array([self._count], np.float32)
        return {"count": array} if self._as_dict else array


class StrictDiscreteEnv(CountingEnv):
    """Discrete(3, start=-1) actions and Discrete(4, start=2) observations, both checked."""

    def __init__(self) -> None:
        super().__init__(length=2)
        self.observation_space = spaces.Discrete(4, start=2)
        self.action_space = spaces.Discrete(3, start=-1)
        self.seen: set[int] = set()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.seen.add(int(action))
        return super().step(action)

    def _observe(self) -> Any:
        return 2 + self._count


class GoalEnv(gym.Env):
    """One step, one reward: 1 for action 1 where the observation is positive, for action 0 where it is negative."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._obs = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs, float((self._obs[0] > 0) == bool(action)), True, False, {}


def counting_shard(first_index: int, **kwargs: Any) -> SyncVectorEnv:
    """A picklable shard of one CountingEnv for process environments."""
    return SyncVectorEnv([lambda: CountingEnv(**kwargs)], [first_index], first_index=first_index)


class HangingEnv(CountingEnv):
    """Its reset never returns."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        threading.Event().wait()
        raise AssertionError("unreachable")
