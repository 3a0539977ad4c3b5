"""Advantages: generalised advantage estimation, whitening, group-relative. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.learning.objectives.shapes import check_equal_shapes, check_rank

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all data-parallel ranks; every rank calls it, also one that has no data."""


def alone(tensor: Tensor) -> Tensor:
    """The all-reduce of a single rank."""
    return tensor


class Advantages(NamedTuple):
    """advantages, returns (value targets) [T, B]; 0 where not valid."""

    advantages: Tensor
    returns: Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discounts: Tensor | float,
    lam: float,
    mask: Tensor | None = None,
) -> Advantages:
    """delta_t = r_t + gamma_t V(s_{t+1}) - V(s_t);  A_t = delta_t + gamma_t lambda A_{t+1}.

    All [T, B]. next_values[t]: value of the true successor of row t: V of the last observation (before the reset)
    where truncated; never read where terminated (if both flags are set, termination wins). The recursion stops at
    both, and at rows that `mask` (default: all valid) excludes; what stands there, NaN included, is never read.
    discounts: gamma per decision (gamma^n where a decision took n environment steps).
    Schulman et al. (2016), eq. 16; time limits as in Pardo et al. (2018).
    """
    check_rank(2, rewards=rewards)
    check_equal_shapes(
        rewards=rewards, values=values, next_values=next_values, terminated=terminated, truncated=truncated, mask=mask
    )
    valid = torch.ones_like(terminated) if mask is None else mask.bool()
    discounts = torch.as_tensor(discounts, dtype=values.dtype).expand_as(values)
    zero = torch.zeros((), dtype=values.dtype)
    values = torch.where(valid, values, zero)
    bootstrap = torch.where(valid & ~terminated, discounts * next_values, zero)
    delta = torch.where(valid, rewards, zero) + bootstrap - values
    decay = torch.where(valid & ~(terminated | truncated), discounts * lam, zero)
    advantages = torch.empty_like(values)
    running = torch.zeros_like(values[0])
    for t in range(values.shape[0] - 1, -1, -1):
        running = torch.addcmul(delta[t], decay[t], running)
        advantages[t] = running
    return Advantages(advantages, advantages + values)


def chunk_rewards(rewards: Tensor, num_executed: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Reward and discount of decisions that took several environment steps.

    rewards [T, B, K], num_executed [T, B] -> sum_k gamma^k r_k [T, B], gamma^n [T, B]; unexecuted steps are not read.
    """
    check_rank(3, rewards=rewards)
    check_equal_shapes(num_executed=num_executed, rewards=rewards[..., 0])
    step = torch.arange(rewards.shape[-1])
    executed = step < num_executed.unsqueeze(-1)
    powers = torch.full((), gamma, dtype=rewards.dtype) ** step
    total = torch.where(executed, rewards * powers, 0.0).sum(-1)
    return total, torch.full((), gamma, dtype=rewards.dtype) ** num_executed


def whiten(advantages: Tensor, mask: Tensor | None = None, reduce: AllReduce = alone, epsilon: float = 1e-8) -> Tensor:
    """(A - mean) / std over all valid elements of all ranks; 0 elsewhere. Any shape, empty included.

    Population standard deviation from n, sum and sum of squares in float64, summed by `reduce`. With n <= 1, or
    no spread at all, nothing is divided.
    """
    check_equal_shapes(advantages=advantages, mask=mask)
    valid = torch.ones_like(advantages, dtype=torch.bool) if mask is None else mask.bool()
    clean = torch.where(valid, advantages, 0.0)
    precise = clean.double()
    sums = reduce(torch.stack([valid.sum().double(), precise.sum(), precise.square().sum()]))
    count, total, squares = sums.unbind()
    if count <= 1:
        return clean
    mean = total / count
    variance = (squares / count - mean.square()).clamp_min(0.0)
    # Below this the variance is rounding error of equal numbers.
    has_spread = variance > 1e-12 * (squares / count)
    scale = torch.where(has_spread, (variance.sqrt() + epsilon).reciprocal(), 1.0)
    return torch.where(valid, (precise - mean) * scale, 0.0).to(advantages.dtype)


def group_relative(
    rewards: Tensor, groups: Tensor, mask: Tensor | None = None, *, scale: bool = True, epsilon: float = 1e-6
) -> Tensor:
    """A = (R - mean_g) / (std_g + epsilon) by group id. rewards, groups, mask: [N] -> [N].

    Unbiased std; 0 in a group of one, or whose rewards are all equal. Rows that `mask` excludes (abstained) leave
    their group and get 0. `scale=False`: R - mean_g only (Dr. GRPO). Shao et al. (2024), eq. 4.1.
    """
    check_rank(1, rewards=rewards)
    check_equal_shapes(rewards=rewards, groups=groups, mask=mask)
    valid = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask.bool()
    _, index = torch.unique(groups, return_inverse=True)
    size = int(index.max()) + 1 if index.numel() else 0
    index = index[valid]
    kept = rewards[valid].double()
    count = torch.zeros(size, dtype=torch.float64).index_add_(0, index, torch.ones_like(kept))
    mean = torch.zeros(size, dtype=torch.float64).index_add_(0, index, kept) / count.clamp_min(1)
    centred = kept - mean[index]
    squares = torch.zeros(size, dtype=torch.float64).index_add_(0, index, centred.square())
    std = (squares / (count - 1).clamp_min(1)).sqrt()
    highest = torch.full((size,), -torch.inf, dtype=torch.float64).scatter_reduce(0, index, kept, "amax")
    lowest = torch.full((size,), torch.inf, dtype=torch.float64).scatter_reduce(0, index, kept, "amin")
    flat = highest == lowest
    result = torch.where(flat[index], 0.0, centred / (std[index] + epsilon) if scale else centred)
    return torch.zeros_like(rewards).masked_scatter(valid, result.to(rewards.dtype))
