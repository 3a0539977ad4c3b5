"""Aggregation: from a loss per element to one number whose gradient does not depend on how the batch was split.

Every function takes the denominator of the whole batch, so that the parts of any split (micro-batches, ranks)
add up to the undivided result. Where ranks average their gradients, multiply by the number of ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.learning.objectives.shapes import check_equal_shapes, check_rank


def masked_sum(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum of the valid elements; others are selected away, so that NaN there touches neither value nor gradient."""
    check_equal_shapes(values=values, mask=mask)
    return values.sum() if mask is None else torch.where(mask.bool(), values, 0.0).sum()


def masked_mean(values: Tensor, mask: Tensor | None = None, denominator: Tensor | float | None = None) -> Tensor:
    """Sum of the valid elements / `denominator` (the global number of valid elements; default: those here).

    0 where there is nothing. The denominator is a count: below 1 it is taken as 1.
    """
    total = masked_sum(values, mask)
    if denominator is None:
        denominator = values.numel() if mask is None else mask.bool().sum()
    return total / torch.as_tensor(denominator, dtype=values.dtype).clamp_min(1.0)


def sequence_mean(values: Tensor, mask: Tensor, num_sequences: float) -> Tensor:
    """Mean over each sequence, summed, / `num_sequences` of the global batch. values, mask [B, L].

    A sequence without a valid element adds nothing.
    """
    check_rank(2, values=values)
    check_equal_shapes(values=values, mask=mask)
    lengths = mask.bool().sum(-1).clamp_min(1)
    per_sequence = torch.where(mask.bool(), values, 0.0).sum(-1) / lengths
    return per_sequence.sum() / num_sequences
