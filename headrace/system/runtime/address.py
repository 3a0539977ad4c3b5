"""Who a worker is: `group:rank`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import total_ordering

from headrace.system.comm.service import EndpointAddress


@total_ordering
class WorkerAddress:
    """A path of ranks below a group's name: `rollout:3`, and `rollout:3:1` for a worker that worker 3 launched."""

    __slots__ = ("rank_path", "root_group_name")

    def __init__(self, root_group_name: str, ranks: int | Sequence[int] = ()) -> None:
        self.root_group_name = root_group_name
        self.rank_path = (ranks,) if isinstance(ranks, int) else tuple(ranks)

    @classmethod
    def from_name(cls, name: str) -> WorkerAddress:
        """The address whose `get_name()` is `name`."""
        group, *ranks = name.split(":")
        return cls(group, [int(rank) for rank in ranks])

    @classmethod
    def from_parent_name_rank(cls, parent_name: str, rank: int) -> WorkerAddress:
        return cls.from_name(parent_name).get_child_address(rank)

    @property
    def rank(self) -> int:
        return self.rank_path[-1] if self.rank_path else 0

    def get_name(self) -> str:
        return ":".join([self.root_group_name, *(str(rank) for rank in self.rank_path)])

    def get_parent_rank(self) -> int:
        return self.rank_path[-2] if len(self.rank_path) > 1 else 0

    def get_parent_address(self) -> WorkerAddress | None:
        return WorkerAddress(self.root_group_name, self.rank_path[:-1]) if self.rank_path else None

    def get_child_address(self, rank: int) -> WorkerAddress:
        return WorkerAddress(self.root_group_name, (*self.rank_path, rank))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerAddress) and self._key() == other._key()

    def __lt__(self, other: WorkerAddress) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"WorkerAddress({self.get_name()!r})"

    def _key(self) -> tuple[str, tuple[int, ...]]:
        return self.root_group_name, self.rank_path


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What the job knows of a worker: where it runs, how to reach it, which devices it may see."""

    address: WorkerAddress
    rank: int
    group_world_size: int
    endpoint: EndpointAddress
    cluster_node_rank: int
    node_ip: str
    accelerator_type: str
    accelerator_ranks: tuple[int, ...]
    pid: int
    log_path: str
    actor_id: str = ""
