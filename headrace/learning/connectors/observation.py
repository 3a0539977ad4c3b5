"""Environment to module: every observation space becomes one Box, and each observation one owned array row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.core.errors import ConfigError, EnvironmentFaultError


class ObservationMapping:
    """Maps observations of `space` onto rows of a Box.

    A Box keeps its shape; uint8 stays uint8 (images are scaled once, in the module), other types become float32.
    Discrete (with its start), MultiDiscrete, MultiBinary, Dict and Tuple are flattened into one float32 vector
    (one-hot where discrete). Raises ConfigError naming a space that has no fixed size.
    """

    def __init__(self, space: spaces.Space) -> None:
        self._space = space
        self._is_box = isinstance(space, spaces.Box)
        self.space = _box_of(space)

    def write(self, obs: Any, row: np.ndarray) -> None:
        """Copy one observation into `row`. Raises EnvironmentFaultError for one outside the space (not for a Box)."""
        if self._is_box:
            row[...] = obs
            return
        _check_discrete(self._space, obs, "observation")
        row[...] = spaces.flatten(self._space, obs)

    def check_shape(self, obs: Any) -> None:
        """Raises EnvironmentFaultError where a Box observation has another shape than its space says."""
        if self._is_box and np.shape(obs) != self.space.shape:
            raise EnvironmentFaultError(f"observation has shape {np.shape(obs)}, its space says {self.space.shape}")

    def non_finite_key(self, row: np.ndarray) -> str:
        """Path within the original observation of what is not finite in `row`, or "" where all is."""
        return _non_finite_key(row if self._is_box else spaces.unflatten(self._space, row)) or ""

    def write_batch(self, obs: Any, rows: np.ndarray, batched_space: spaces.Space) -> None:
        """Copy a vector environment's batched observation into `rows` [B, *obs]."""
        if self._is_box:
            rows[...] = np.asarray(obs).reshape(rows.shape)
            return
        from_batch = _iterate(batched_space, obs)
        for row, single in zip(rows, from_batch, strict=True):
            self.write(single, row)


def _non_finite_key(obs: Any, key: str = "observation") -> str | None:
    """Path of the first array in `obs` (nested dicts and tuples) that holds NaN or inf, or None."""
    if isinstance(obs, Mapping):
        found = (_non_finite_key(value, f"{key}[{name!r}]") for name, value in obs.items())
        return next((path for path in found if path is not None), None)
    if isinstance(obs, tuple):
        found = (_non_finite_key(value, f"{key}[{index}]") for index, value in enumerate(obs))
        return next((path for path in found if path is not None), None)
    array = np.asarray(obs)
    is_number = np.issubdtype(array.dtype, np.number)
    return None if not is_number or np.isfinite(array).all() else key


def _check_discrete(space: spaces.Space, obs: Any, key: str) -> None:
    """One-hot encoding would wrap a number outside its space around, or drop it, silently."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            _check_discrete(part, obs[name], f"{key}[{name!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            _check_discrete(part, obs[index], f"{key}[{index}]")
    elif not isinstance(space, spaces.Box) and not space.contains(obs):
        raise EnvironmentFaultError(f"{key} {obs!r} is not in {space}")


def _box_of(space: spaces.Space) -> spaces.Box:
    if isinstance(space, spaces.Box):
        if space.dtype in (np.uint8, np.float32):
            return space
        with np.errstate(over="ignore"):
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), space.shape, np.float32)
    try:
        flat = spaces.flatten_space(space)
    except NotImplementedError:
        flat = space
    if not isinstance(flat, spaces.Box):
        raise ConfigError("env.observation_space", space, "has no fixed size; wrap the environment to give a Box")
    return spaces.Box(-np.inf, np.inf, flat.shape, np.float32)


def _iterate(batched_space: spaces.Space, obs: Any) -> Any:
    # The vector part of gymnasium is only needed for foreign vector environments.
    from gymnasium.vector.utils import iterate

    return iterate(batched_space, obs)
