"""Returns and advantages: the published traps, each with its right number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.learning.envs.sync import SyncVectorEnv
from headrace.learning.objectives.advantages import chunk_rewards, gae, group_relative, whiten
from tests.learning.collecting import collect
from tests.learning.toy_envs import CountingEnv


def _column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def _flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)[:, None]


def _collected_advantages(*, terminated: bool, truncated: bool) -> list[float]:
    """Case A1: obs = step count, V(s) = 2s + 1, r = 1, gamma .9, lambda .5, an ending at step 3, autoreset to 0."""
    env = SyncVectorEnv([lambda: CountingEnv(3)], [0])
    trajectory = collect(env, 3)

    def value(obs: np.ndarray) -> torch.Tensor:
        return 2 * torch.from_numpy(np.asarray(obs, np.float32)).reshape(-1) + 1

    values = value(trajectory.obs[:-1])[:, None]
    next_values = value(trajectory.obs[1:])[:, None]
    next_values[trajectory.final_index[:, 0], trajectory.final_index[:, 1]] = value(trajectory.final_obs)
    ones = _column(1, 1, 1)
    ending = torch.from_numpy(trajectory.terminated | trajectory.truncated)
    assert ending.flatten().tolist() == [False, False, True]
    result = gae(ones, values, next_values, ending & terminated, ending & truncated, 0.9, 0.5)
    return result.advantages.flatten().tolist()


def test_case_a1_truncation_bootstraps_from_the_true_last_observation() -> None:
    assert _collected_advantages(terminated=False, truncated=True) == pytest.approx([4.29075, 3.535, 2.3], abs=1e-5)


def test_case_a1_termination_does_not_bootstrap_and_wins_over_truncation() -> None:
    for truncated in (False, True):
        assert _collected_advantages(terminated=True, truncated=truncated)[-1] == pytest.approx(-4.0)


@pytest.mark.parametrize("padding", [100.0, float("nan"), float("inf")])
def test_case_b1_values_on_padding_never_enter(padding: float) -> None:
    mask = _flags(1, 1, 1, 0, 0)
    values = _column(0.5, 0.4, 0.2, padding, -padding).requires_grad_()
    none = torch.zeros(5, 1, dtype=torch.bool)
    next_values = torch.cat([values[1:], torch.zeros(1, 1)])
    next_values = torch.where(_flags(1, 1, 0, 0, 0), next_values, 0.0)
    result = gae(_column(0, 0, 1, padding, 0), values, next_values, none, none, 1.0, 0.9, mask)
    assert result.advantages.flatten().tolist() == pytest.approx([0.368, 0.52, 0.8, 0.0, 0.0], abs=1e-6)
    result.advantages.sum().backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()


@given(st.integers(1, 6), st.integers(1, 3), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**31))
def test_gae_is_the_sum_of_discounted_deltas_up_to_each_ending(
    steps: int, envs: int, gamma: float, lam: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values, following = (torch.randn(steps, envs, generator=generator, dtype=torch.float64) for _ in range(3))
    terminated = torch.rand(steps, envs, generator=generator) < 0.3
    truncated = torch.rand(steps, envs, generator=generator) < 0.3
    result = gae(rewards, values, following, terminated, truncated, gamma, lam).advantages
    for b in range(envs):
        for t in range(steps):
            expected, weight = 0.0, 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if terminated[k, b] else gamma * following[k, b].item()
                expected += weight * (rewards[k, b].item() + bootstrap - values[k, b].item())
                if terminated[k, b] or truncated[k, b]:
                    break
                weight *= gamma * lam
            assert result[t, b].item() == pytest.approx(expected, abs=1e-9)


def test_the_discount_of_a_chunk_counts_its_executed_steps() -> None:
    rewards = torch.tensor([[[1.0, 2.0, 4.0]], [[1.0, 2.0, float("nan")]]])
    total, discount = chunk_rewards(rewards, torch.tensor([[3], [2]]), 0.5)
    assert total.flatten().tolist() == [3.0, 2.0]
    assert discount.flatten().tolist() == [0.125, 0.25]


def test_case_b2_whitening_ignores_padding() -> None:
    advantages = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool)
    expected = torch.tensor([[-1.22474, 0.0, 0.0], [1.22474, 0.0, 0.0]])
    torch.testing.assert_close(whiten(advantages, mask), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(whiten(torch.where(mask, advantages, torch.nan), mask), expected, atol=1e-5, rtol=0)


def test_case_b2_one_valid_element_is_left_unscaled() -> None:
    mask = torch.tensor([False, True, False])
    assert whiten(torch.tensor([1.0, 7.0, 2.0]), mask).tolist() == [0.0, 7.0, 0.0]
    assert whiten(torch.zeros(0)).shape == (0,)


def test_equal_advantages_whiten_to_exactly_zero() -> None:
    assert whiten(torch.full((8,), 0.7)).abs().max() < 1e-6


def test_case_b3_ranks_whiten_with_common_statistics() -> None:
    parts = [torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([5.0, 7.0]), torch.zeros(0)]
    sums = sum(torch.tensor([len(p), p.sum(), p.square().sum()], dtype=torch.float64) for p in parts)
    whitened = [whiten(part, reduce=lambda own: sums) for part in parts]
    assert torch.cat(whitened).tolist() == pytest.approx([-0.68680] * 4 + [0.96152, 1.78569], abs=1e-5)


@given(st.permutations(range(3)))
def test_case_b4_groups_go_by_their_id_in_any_order(order: list[int]) -> None:
    rewards, groups = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1])
    centred = torch.tensor([-1.0, 1.0, 0.0])
    index = torch.tensor(order)
    result = group_relative(rewards[index], groups[index], scale=False)
    assert torch.equal(result, centred[index])


def test_equal_rewards_of_a_group_give_exactly_zero() -> None:
    assert torch.equal(group_relative(torch.full((8,), 0.7), torch.zeros(8, dtype=torch.int64)), torch.zeros(8))


def test_case_k1_an_abstained_reward_leaves_its_group() -> None:
    rewards = torch.tensor([1.0, torch.nan, 0.0, 1.0])
    mask = torch.tensor([True, False, True, True])
    result = group_relative(rewards, torch.zeros(4, dtype=torch.int64), mask, scale=False)
    assert result.tolist() == pytest.approx([1 / 3, 0.0, -2 / 3, 1 / 3], abs=1e-4)
    nobody = group_relative(rewards, torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool))
    assert nobody.tolist() == [0.0] * 4


def test_wrong_shapes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="values: shape"):
        gae(torch.zeros(3, 2), torch.zeros(3, 1), torch.zeros(3, 2), _flags(0), _flags(0), 0.9, 0.9)
