"""Losses per element: PPO and its decoupled form, value, entropy. Pure functions; aggregation.py makes them numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.learning.objectives.shapes import check_equal_shapes

MAX_LOG_RATIO = 20.0
"""Bound of a log-ratio before the exponential: e^20 is far beyond any clip range, and its gradient is finite."""


class PolicyLoss(NamedTuple):
    """loss, ratio, clipped (where the clip took the gradient away), shaped like the inputs; the last two detached."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def bounded_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """exp(log_probs - old_log_probs) with the exponent bounded to +-MAX_LOG_RATIO. NaN stays NaN."""
    return (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def ppo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(log_probs - old_log_probs). Any shape.

    dual_clip c > 1: for A < 0 the objective is at least c A. Schulman et al. (2017), eq. 7; Ye et al. (2020), eq. 5.
    """
    check_equal_shapes(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    ratio = bounded_ratio(log_probs, old_log_probs)
    plain = ratio * advantages
    limited = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    objective = torch.minimum(plain, limited)
    clipped = limited < plain
    if dual_clip is not None:
        floor = torch.where(advantages < 0, dual_clip * advantages, -torch.inf)
        clipped = clipped | (floor > objective)
        objective = torch.maximum(objective, floor)
    return PolicyLoss(-objective, ratio.detach(), clipped)


def decoupled_ppo_loss(
    log_probs: Tensor,
    proximal_log_probs: Tensor,
    behaviour_log_probs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    weight_cap: float | None = None,
) -> PolicyLoss:
    """sg(pi_prox / pi_behaviour) * PPO clipped around pi_prox. Any shape. Hilton et al. (2022), eq. 3.

    With pi_prox = pi_behaviour it is `ppo_loss` exactly. weight_cap: upper bound of the weight.
    """
    check_equal_shapes(log_probs=log_probs, behaviour_log_probs=behaviour_log_probs)
    weight = bounded_ratio(proximal_log_probs, behaviour_log_probs).detach()
    if weight_cap is not None:
        weight = weight.clamp(max=weight_cap)
    inner = ppo_loss(log_probs, proximal_log_probs, advantages, clip_low, clip_high, dual_clip)
    return PolicyLoss(weight * inner.loss, inner.ratio, inner.clipped)


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None = None, clip: float | None = None) -> Tensor:
    """(V - R)^2 / 2; with `clip`, the larger of that and the one of V held within +-clip of old_values. Any shape."""
    check_equal_shapes(values=values, returns=returns, old_values=old_values)
    plain = (values - returns).square()
    if clip is None or old_values is None:
        return 0.5 * plain
    held = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum(plain, (held - returns).square())
