"""Estimators of KL(pi || ref) from samples of pi, by their names. Schulman, "Approximating KL divergence" (2020).

log_ratio = log pi(a) - log ref(a), any shape; each estimate has the same shape. In a reward, k1 (detached) is right.
In a loss, the gradient of k1 is 0 in expectation, that of k2 is grad KL(pi || ref), that of k3 grad KL(ref || pi).
"""

from __future__ import annotations

from torch import Tensor

from headrace.learning.objectives.losses import MAX_LOG_RATIO


def k1(log_ratio: Tensor) -> Tensor:
    """log_ratio: unbiased, of high variance, can be negative."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """log_ratio^2 / 2: biased, of low variance."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """exp(-log_ratio) - 1 + log_ratio: unbiased, never negative. The exponent is bounded, so it stays finite."""
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (-bounded).exp() - 1.0 + bounded
