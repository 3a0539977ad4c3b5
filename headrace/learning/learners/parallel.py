"""Parallel: the port between a learner and its data-parallel peers, and its two implementations."""

from __future__ import annotations

import abc
import datetime

import torch.distributed as dist
from torch import Tensor


class Parallel(abc.ABC):
    """Rank `rank` of `world_size` learners. Collective calls are made by every rank in the same order."""

    rank: int
    world_size: int

    @abc.abstractmethod
    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over all ranks, in place; returns it."""

    @abc.abstractmethod
    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with rank 0's, in place; returns it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the group; safe to call twice."""


class Single(Parallel):
    """One learner, nobody to talk to."""

    rank = 0
    world_size = 1

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor

    def close(self) -> None:
        pass


class DDP(Parallel):
    """Data-parallel learners over torch.distributed. Joins the group on construction: all ranks at the same time.

    A collective call to which some rank does not come raises (torch's RuntimeError) after `timeout_s`.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        master_addr: str,
        master_port: int,
        backend: str = "gloo",
        timeout_s: float = 300.0,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"DDP: rank {rank} of {world_size}")
        self.rank = rank
        self.world_size = world_size
        dist.init_process_group(
            backend,
            init_method=f"tcp://{master_addr}:{master_port}",
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        self._is_open = True

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        dist.broadcast(tensor, 0)
        return tensor

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            dist.destroy_process_group()
