"""Which learner rank serves which rollout rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.system.comm.weight_sync import source_of, targets_of


@pytest.mark.parametrize(
    ("learners", "rollouts", "targets"),
    [(2, 8, [[0, 2, 4, 6], [1, 3, 5, 7]]), (4, 2, [[0], [1], [], []]), (1, 3, [[0, 1, 2]]), (3, 3, [[0], [1], [2]])],
)
def test_learner_ranks_serve_every_mth_rollout_rank(learners: int, rollouts: int, targets: list[list[int]]) -> None:
    assert [targets_of(rank, learners, rollouts) for rank in range(learners)] == targets


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_rollout_rank_is_served_once_and_knows_by_whom(learners: int, rollouts: int) -> None:
    served = [(target, rank) for rank in range(learners) for target in targets_of(rank, learners, rollouts)]
    assert sorted(served) == [(rollout, source_of(rollout, learners)) for rollout in range(rollouts)]
