"""Episode: one environment's consecutive transitions, observations one longer than actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.learning.data.trajectory import Trajectory


@dataclass(frozen=True)
class Episode:
    """A whole episode or a piece of one.

    obs [n+1, *obs], actions [n, (K,) *act], rewards [n] (summed over a chunk), num_executed [n].
    Neither flag set: the piece was cut by the end of a fragment and goes on elsewhere.
    Raises ValueError where the lengths disagree.
    """

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    num_executed: np.ndarray
    terminated: bool
    truncated: bool

    def __post_init__(self) -> None:
        n = len(self.actions)
        if len(self.obs) != n + 1:
            raise ValueError(f"Episode.obs: {len(self.obs)} observations for {n} actions, expected {n + 1}")
        if len(self.rewards) != n or len(self.num_executed) != n:
            raise ValueError(f"Episode.rewards: {len(self.rewards)} rewards for {n} actions")

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def is_done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def episode_return(self) -> float:
        return float(self.rewards.sum(dtype=np.float64))


def episodes_of(trajectory: Trajectory, env_index: int) -> Iterator[Episode]:
    """The pieces of episodes that environment `env_index` lived through in `trajectory`, in order.

    Rows that never happened are left out; one in the middle of an episode (a fault) cuts it.
    """
    finals = {(int(t), int(b)): obs for (t, b), obs in zip(trajectory.final_index, trajectory.final_obs, strict=True)}
    start: int | None = None
    for t in range(trajectory.num_steps):
        happened = trajectory.num_executed[t, env_index] > 0
        if not happened:
            if start is not None:
                yield _piece(trajectory, env_index, start, t, None)
            start = None
            continue
        start = t if start is None else start
        final_obs = finals.get((t, env_index))
        if final_obs is not None:
            yield _piece(trajectory, env_index, start, t + 1, final_obs)
            start = None
    if start is not None:
        yield _piece(trajectory, env_index, start, trajectory.num_steps, None)


def _piece(trajectory: Trajectory, b: int, start: int, stop: int, final_obs: np.ndarray | None) -> Episode:
    obs = trajectory.obs[start : stop + 1, b].copy()
    if final_obs is not None:
        obs[-1] = final_obs
    terminated = final_obs is not None and bool(trajectory.terminated[stop - 1, b])
    return Episode(
        obs=obs,
        actions=trajectory.actions[start:stop, b],
        rewards=trajectory.rewards[start:stop, b].sum(axis=-1),
        num_executed=trajectory.num_executed[start:stop, b],
        terminated=terminated,
        truncated=final_obs is not None and not terminated,
    )
