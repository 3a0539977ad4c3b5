"""An environment of your own, and a recipe in Python: everything in one file, every role in this process, no Ray.

headrace train recipes/own_environment.py
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from headrace.learning.envs.config import EnvConfig
from headrace.learning.learners.config import PPOSettings
from headrace.runners.config import EmbodiedRecipe, RunnerConfig
from headrace.workers.config import RolloutConfig


class Reach(gym.Env):
    """Push a point along a line to where it should be. Observation: position and target; reward: minus the distance."""

    observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space = gym.spaces.Box(-0.2, 0.2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position, self.target = self.np_random.uniform(-1.0, 1.0, 2)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position = np.clip(self.position + action[0], -2.0, 2.0)
        return self._observe(), -abs(self.position - self.target), False, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.position, self.target], np.float32)


recipe = EmbodiedRecipe(
    seed=1,
    env=EnvConfig(id="own_environment:Reach", num_envs=16, max_episode_steps=20, action_mode="squash"),
    rollout=RolloutConfig(fragment_length=40),
    algorithm=PPOSettings(gamma=0.9, lr=1e-3, minibatch_size=160),
    runner=RunnerConfig(mode="sync", max_steps=60, target_return=-3.0, return_window=100),
)
