from __future__ import annotations

from headrace.learning.envs.seeding import env_seeds


def test_ranks_and_environments_draw_distinct_reproducible_seeds() -> None:
    """Case N1."""
    seeds = [env_seeds(42, rank=rank, num_envs=2) for rank in range(2)]
    assert len({*seeds[0], *seeds[1]}) == 4
    assert seeds == [env_seeds(42, rank=rank, num_envs=2) for rank in range(2)]
    assert all(0 <= seed < 2**31 for seed in (*seeds[0], *seeds[1]))


def test_more_environments_leave_the_first_ones_seeds_alone() -> None:
    assert env_seeds(1, rank=0, num_envs=5)[:3] == env_seeds(1, rank=0, num_envs=3)


def test_without_a_seed_every_call_differs() -> None:
    assert env_seeds(None, rank=0, num_envs=2) != env_seeds(None, rank=0, num_envs=2)
