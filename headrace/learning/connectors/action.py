"""Module to environment: raw policy actions become actions that the environment accepts.

The trajectory keeps the raw action, of which the log-probability is; only the environment sees the mapped one.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from gymnasium import spaces

from headrace.core.errors import ConfigError

ActionMode = Literal["clip", "squash"]


class ActionMapping:
    """Callable: raw actions [..., *act] -> environment actions [..., *act], any leading axes (batch, chunk).

    Box, "clip": the raw action, cut to the bounds. Box, "squash": the raw action, cut to [-1, 1], scaled onto
    [low, high] (unbounded dimensions pass unchanged). Discrete, MultiDiscrete: 0..n-1 shifted by `start`.
    MultiBinary: as is. Raises ConfigError naming any other space.
    """

    def __init__(self, space: spaces.Space, mode: ActionMode = "clip") -> None:
        self.space = space
        self.mode = mode
        if isinstance(space, spaces.Box):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
            bounded = np.isfinite(low) & np.isfinite(high)
            self._low, self._high = low, high
            self._bounded = bounded
            self._scale = np.where(bounded, (np.where(bounded, high, 1) - np.where(bounded, low, -1)) / 2, 1)
            self._scale = self._scale.astype(np.float32)
            self._middle = np.where(bounded, (np.where(bounded, high, 0) + np.where(bounded, low, 0)) / 2, 0)
            self._middle = self._middle.astype(np.float32)
            self._map = self._clip if mode == "clip" else self._squash
        elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            self._start = np.asarray(space.start, space.dtype)
            self._map = self._shift if np.any(self._start) else self._cast
        elif isinstance(space, spaces.MultiBinary):
            self._map = self._cast
        else:
            raise ConfigError(
                "env.action_space", space, "only Box, Discrete, MultiDiscrete and MultiBinary can be acted in"
            )

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        return self._map(actions)

    def _clip(self, actions: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(actions, self._low), self._high).astype(self.space.dtype, copy=False)

    def _squash(self, actions: np.ndarray) -> np.ndarray:
        inside = np.where(self._bounded, np.clip(actions, -1.0, 1.0), actions)
        return self._clip(inside * self._scale + self._middle)

    def _shift(self, actions: np.ndarray) -> np.ndarray:
        return actions.astype(self.space.dtype, copy=False) + self._start

    def _cast(self, actions: np.ndarray) -> np.ndarray:
        return actions.astype(self.space.dtype, copy=False)

    def to_policy(self, actions: np.ndarray) -> np.ndarray:
        """The raw actions behind environment actions (offline data). Raises ValueError outside the space."""
        if isinstance(self.space, spaces.Box):
            inside = np.all((actions >= self._low) & (actions <= self._high))
            raw = actions if self.mode == "clip" else (actions - self._middle) / self._scale
        else:
            raw = actions - getattr(self, "_start", 0)
            limit = {spaces.Discrete: "n", spaces.MultiDiscrete: "nvec"}.get(type(self.space))
            upper = getattr(self.space, limit) if limit else 2
            inside = np.all((raw >= 0) & (raw < upper))
        if not inside:
            raise ValueError(f"actions outside {self.space}")
        return raw
