"""Exact state of one Gymnasium environment, as plain picklable data, where that is possible.

Pickling the environment itself is no answer: many define pickling as "construct me again", which silently begins
anew. So each wrapper's and the environment's own attributes are taken, and MuJoCo's simulation state by its own
call.
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import gymnasium as gym
import numpy as np

_SKIPPED = frozenset({"env", "spec", "observation_space", "action_space", "screen", "clock", "metadata"})


def snapshot(env: gym.Env) -> bytes | None:
    """The state of `env` and its wrappers, or None where some part of it cannot be pickled."""
    layers = [_attributes(layer) for layer in _layers(env)]
    if _is_mujoco(env.unwrapped):
        layers[-1] = {"np_random": env.unwrapped.np_random, "mujoco": _mujoco_state(env.unwrapped)}
    try:
        return pickle.dumps(layers)
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError, RuntimeError):
        return None


def restore(env: gym.Env, state: bytes) -> None:
    """Put `env`, constructed the same way, into the state that `snapshot` saw."""
    for layer, attributes in zip(_layers(env), pickle.loads(state), strict=True):
        simulation = attributes.pop("mujoco", None)
        if simulation is None:
            vars(layer).update(attributes)
        else:
            layer.np_random = attributes["np_random"]
            _set_mujoco_state(layer, simulation)


def _layers(env: gym.Env) -> list[gym.Env]:
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _attributes(layer: gym.Env) -> dict[str, Any]:
    return {name: value for name, value in vars(layer).items() if name not in _SKIPPED}


def _is_mujoco(env: Any) -> bool:
    return hasattr(env, "model") and hasattr(env, "data") and type(env.data).__module__.startswith("mujoco")


def _mujoco_state(env: Any) -> np.ndarray:
    mujoco: Any = importlib.import_module("mujoco")  # a compiled module without types
    state = np.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(env.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def _set_mujoco_state(env: Any, state: np.ndarray) -> None:
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.mj_setState(env.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    # Positions of bodies follow from the state; the warm start of the solver must not change on the way.
    warm_start = env.data.qacc_warmstart.copy()
    mujoco.mj_forward(env.model, env.data)
    env.data.qacc_warmstart[:] = warm_start
