"""The vector environment contract. Every adapter gives the same transitions, whatever its simulator's habits.

    obs = env.reset()                     # [B, *obs], owned by the caller
    step = env.step(actions)              # actions [B, *act] as the environment understands them
    step.obs                              # next observation; after the reset where an episode ended
    step.final_obs                        # the true last observations, copied before the reset

An environment whose episode ended has already begun its next one when `step` returns. Rows of `step.valid` that
are False never happened (a reset row of a simulator that needs a step for it, an inactive or a faulted
environment) and must not be learned from.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces

from headrace.learning.data.trajectory import EpisodeRecord


@dataclass(slots=True)
class StepResult:
    """One environment step of B environments; every array is the caller's own.

    obs [B, *obs], rewards [B] float32, terminated, truncated, valid [B] bool,
    final_index [E] int, final_obs [E, *obs], episodes: those finished now (raw return, length).
    """

    obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    final_index: np.ndarray
    final_obs: np.ndarray
    episodes: list[EpisodeRecord] = field(default_factory=list)


class VectorEnv(abc.ABC):
    """B environments stepped together. Spaces are those of one environment.

    observation_space: a Box whose dtype is that of the observations handed out.
    max_episode_steps: steps after which an episode is truncated; None where it may never end.
    faults: environments reset because they emitted something unusable (`on_fault="reset"`).
    """

    num_envs: int
    observation_space: spaces.Box
    action_space: spaces.Space
    max_episode_steps: int | None = None
    faults: int = 0

    @abc.abstractmethod
    def reset(self) -> np.ndarray:
        """Begin a new episode everywhere; the first call uses the seeds. Returns [B, *obs]."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepResult:
        """Step the environments, or only those of `active` [B] bool; the others stay where they are (valid False).

        Raises EnvironmentFaultError (naming env index, key and step) for a non-finite observation or reward, a
        crash or a timeout; ConfigError where `active` is given and the simulator can only step as a whole.
        """

    def get_state(self) -> bytes | None:
        """Everything `set_state` needs to go on exactly here, or None where this simulator cannot tell."""
        return None

    def set_state(self, state: bytes) -> np.ndarray:
        """Go on from `get_state`'s answer; returns the current observations [B, *obs]."""
        raise NotImplementedError(f"{type(self).__name__} cannot restore its state")

    def render_frame(self) -> np.ndarray | None:
        """Picture of environment 0 [H, W, 3] uint8, or None where it was not made with render_mode rgb_array."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Release the simulators; safe to call twice."""
