"""Who sends weights to whom: M learner ranks serve N rollout ranks."""

from __future__ import annotations


def targets_of(learner_rank: int, num_learners: int, num_rollouts: int) -> list[int]:
    """Rollout ranks that learner rank i serves: i, i+M, i+2M, … below N.

    M=2, N=8: 0 → 0, 2, 4, 6 and 1 → 1, 3, 5, 7. M=4, N=2: 0 → 0, 1 → 1, the others serve none.
    """
    return list(range(learner_rank, num_rollouts, num_learners))


def source_of(rollout_rank: int, num_learners: int) -> int:
    """The learner rank that serves `rollout_rank`: the inverse of `targets_of`."""
    return rollout_rank % num_learners
