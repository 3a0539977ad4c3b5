"""Shape checks before arithmetic: broadcasting turns a wrong shape into a wrong number, silently."""

from __future__ import annotations

from torch import Tensor


def check_equal_shapes(**tensors: Tensor | None) -> None:
    """Raises ValueError naming the first tensor whose shape differs from that of the first; None is skipped."""
    given = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    first_name, first = given[0]
    for name, tensor in given[1:]:
        if tensor.shape != first.shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}, but {first_name} has {tuple(first.shape)}")


def check_rank(rank: int, **tensors: Tensor) -> None:
    """Raises ValueError naming the first tensor that has not `rank` axes."""
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {rank} axes")
