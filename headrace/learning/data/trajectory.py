"""Trajectory: T decisions of B environments, packed once, where they are produced.

A decision is one action of the policy. With action chunks (K > 1) it covers up to K environment steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.learning.data.chunk import ChunkStep


@dataclass(frozen=True)
class EpisodeRecord:
    """One finished episode: its raw (unscaled, undiscounted) return and its length in environment steps."""

    episode_return: float
    length: int
    env_index: int


@dataclass
class Trajectory:
    """T decisions of B environments.

    obs [T+1, B, *obs] (obs[t+1] is the observation after the reset where an episode ended at t),
    actions [T, B, *act] or [T, B, K, *act] (raw policy actions), log_probs, values [T, B],
    rewards [T, B, K] (zeros after an ending inside a chunk),
    num_executed [T, B] environment steps that this decision covered, 1..K; 0 marks a row that never happened
    (padding, a reset row, a fault) and is never learned from,
    terminated, truncated [T, B] (if both, termination wins),
    final_index [E, 2] (t, b) of every ending, final_obs [E, *obs] the true last observation there,
    versions [T, B] policy version behind each decision.

    Raises ValueError naming the field whose shape does not fit.
    """

    obs: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    num_executed: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_index: np.ndarray
    final_obs: np.ndarray
    versions: np.ndarray
    env_rank: int = 0
    episodes: list[EpisodeRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.validate()

    @property
    def num_steps(self) -> int:
        return self.actions.shape[0]

    @property
    def num_envs(self) -> int:
        return self.actions.shape[1]

    @property
    def chunk_size(self) -> int:
        """K, the most environment steps that one decision covers."""
        return self.rewards.shape[2]

    @property
    def num_env_steps(self) -> int:
        return int(self.num_executed.sum())

    @property
    def mask(self) -> np.ndarray:
        """[T, B] bool: the decisions that happened."""
        return self.num_executed > 0

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        values = (getattr(self, item.name) for item in dataclasses.fields(self))
        return sum(value.nbytes for value in values if isinstance(value, np.ndarray))

    def validate(self) -> None:
        """Check every shape against [T, B] of `num_executed`; ValueError names the first field that does not fit."""
        if self.num_executed.ndim != 2:
            raise ValueError(f"Trajectory.num_executed: shape {self.num_executed.shape}, expected [T, B]")
        steps, envs = self.num_executed.shape
        for name in ("log_probs", "values", "terminated", "truncated", "versions"):
            _expect(name, getattr(self, name).shape, (steps, envs))
        _expect("actions", self.actions.shape[:2], (steps, envs))
        _expect("obs", self.obs.shape[:2], (steps + 1, envs))
        if self.rewards.ndim != 3:
            raise ValueError(f"Trajectory.rewards: shape {self.rewards.shape}, expected [T, B, K]")
        _expect("rewards", self.rewards.shape[:2], (steps, envs))
        endings = self.final_index.shape[0]
        _expect("final_index", self.final_index.shape, (endings, 2))
        _expect("final_obs", self.final_obs.shape, (endings, *self.obs.shape[2:]))
        marked = int(np.count_nonzero(self.terminated | self.truncated))
        if marked != endings:
            raise ValueError(f"Trajectory.final_index: {endings} endings listed, {marked} marked in the flags")


def _expect(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(shape) != tuple(expected):
        raise ValueError(f"Trajectory.{name}: shape {tuple(shape)}, expected {tuple(expected)}")


class TrajectoryBuilder:
    """Packs decisions into preallocated arrays; `build` hands them out and never writes them again.

    One builder serves a whole run: `start` once with the first observations, then `append` per decision; after
    `build` the next fragment continues from the last observation.
    """

    def __init__(self, num_steps: int, num_envs: int, *, chunk_size: int = 1, env_rank: int = 0) -> None:
        if num_steps < 1 or num_envs < 1 or chunk_size < 1:
            raise ValueError(f"TrajectoryBuilder: num_steps={num_steps}, num_envs={num_envs}, chunk_size={chunk_size}")
        self._shape = (num_steps, num_envs)
        self._chunk_size = chunk_size
        self._env_rank = env_rank
        self._last_obs: np.ndarray | None = None
        self._length = 0

    @property
    def num_appended(self) -> int:
        return self._length

    @property
    def is_full(self) -> bool:
        return self._length == self._shape[0]

    def start(self, obs: np.ndarray) -> None:
        """Begin at `obs` [B, *obs]; anything appended and not built is dropped."""
        if obs.shape[0] != self._shape[1]:
            raise ValueError(f"TrajectoryBuilder.start: obs {obs.shape}, expected {self._shape[1]} rows")
        self._last_obs = obs.copy()
        self._length = 0

    def append(
        self,
        actions: np.ndarray,
        log_probs: np.ndarray,
        values: np.ndarray,
        versions: int | np.ndarray,
        chunk: ChunkStep,
    ) -> None:
        """Store one decision of each environment; actions [B, (K,) *act], log_probs, values, versions [B] or int."""
        if self._last_obs is None:
            raise RuntimeError("TrajectoryBuilder.append before start")
        if self.is_full:
            raise RuntimeError(f"TrajectoryBuilder is full ({self._shape[0]} decisions): call build first")
        if self._length == 0:
            self._allocate(actions)
        t = self._length
        self._actions[t] = actions
        self._log_probs[t] = log_probs
        self._values[t] = values
        self._versions[t] = versions
        self._rewards[t] = chunk.rewards
        self._num_executed[t] = chunk.num_executed
        self._terminated[t] = chunk.terminated
        self._truncated[t] = chunk.truncated
        self._obs[t + 1] = chunk.obs
        if chunk.final_index.size:
            index = np.empty((chunk.final_index.size, 2), np.int32)
            index[:, 0] = t
            index[:, 1] = chunk.final_index
            self._final_index.append(index)
            self._final_obs.append(chunk.final_obs)
        self._episodes.extend(chunk.episodes)
        self._length = t + 1

    def build(self) -> Trajectory:
        """The decisions appended since the last `build` (fewer than T: a shorter fragment). RuntimeError if none."""
        if self._length == 0:
            raise RuntimeError("TrajectoryBuilder.build: nothing was appended")
        n = self._length
        no_obs = np.empty((0, *self._obs.shape[2:]), self._obs.dtype)
        trajectory = Trajectory(
            obs=self._obs[: n + 1],
            actions=self._actions[:n],
            log_probs=self._log_probs[:n],
            values=self._values[:n],
            rewards=self._rewards[:n],
            num_executed=self._num_executed[:n],
            terminated=self._terminated[:n],
            truncated=self._truncated[:n],
            final_index=_concatenate(self._final_index, np.empty((0, 2), np.int32)),
            final_obs=_concatenate(self._final_obs, no_obs),
            versions=self._versions[:n],
            env_rank=self._env_rank,
            episodes=self._episodes,
        )
        self._last_obs = self._obs[n].copy()
        self._length = 0
        return trajectory

    def _allocate(self, actions: np.ndarray) -> None:
        """Fresh arrays for one fragment: those of the last one now belong to its consumer."""
        assert self._last_obs is not None
        steps, envs = self._shape
        self._obs = np.empty((steps + 1, *self._last_obs.shape), self._last_obs.dtype)
        self._obs[0] = self._last_obs
        self._actions = np.empty((steps, *actions.shape), actions.dtype)
        self._log_probs = np.empty((steps, envs), np.float32)
        self._values = np.empty((steps, envs), np.float32)
        self._versions = np.empty((steps, envs), np.int32)
        self._rewards = np.empty((steps, envs, self._chunk_size), np.float32)
        self._num_executed = np.empty((steps, envs), np.int32)
        self._terminated = np.empty((steps, envs), np.bool_)
        self._truncated = np.empty((steps, envs), np.bool_)
        self._final_index: list[np.ndarray] = []
        self._final_obs: list[np.ndarray] = []
        self._episodes: list[EpisodeRecord] = []


def _concatenate(parts: Sequence[np.ndarray], empty: np.ndarray) -> np.ndarray:
    return np.concatenate(parts) if parts else empty
