"""Staleness: how many versions a decision's policy lags behind. Decided here, acted on by whoever feeds the learner."""

from __future__ import annotations

import numpy as np

from headrace.learning.data.trajectory import Trajectory


def staleness(trajectory: Trajectory, version: int) -> int:
    """Versions between the oldest decision that happened in `trajectory` and `version`; 0 where none happened."""
    happened = trajectory.versions[trajectory.mask]
    return int(version - happened.min()) if happened.size else 0


def is_too_stale(trajectory: Trajectory, version: int, max_staleness: int | None) -> bool:
    """Whether any decision lags more than `max_staleness` versions behind `version` (None: no bound)."""
    return max_staleness is not None and staleness(trajectory, version) > max_staleness


def mean_staleness(trajectory: Trajectory, version: int) -> float:
    """Mean lag of the decisions that happened; NaN where none did."""
    happened = trajectory.versions[trajectory.mask]
    return float(version - np.mean(happened, dtype=np.float64)) if happened.size else float("nan")
