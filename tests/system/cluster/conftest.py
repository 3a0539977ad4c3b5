"""Machines that are not there: nodes with devices, for everything that decides before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.core.errors import ConfigError, nearest
from headrace.system.cluster.config import CLUSTER_LABEL, ClusterConfig
from headrace.system.cluster.connection import HEAD_RESOURCE
from headrace.system.cluster.node import NodeGroupInfo, NodeInfo, NodeReport, build_groups, build_node

GIB = 2**30


@dataclass(frozen=True)
class FakeMachines:
    nodes: list[NodeInfo]
    groups: dict[str, NodeGroupInfo]

    def get_node_group(self, label: str = CLUSTER_LABEL) -> NodeGroupInfo:
        if label not in self.groups:
            raise ConfigError("node_group", label, nearest(label, self.groups))
        return self.groups[label]


MakeMachines = Callable[..., FakeMachines]


@pytest.fixture
def report() -> Callable[..., NodeReport]:
    """A probe's report: four cores, 16 GiB."""

    def make(rank: int = 0, **changes: Any) -> NodeReport:
        values: dict[str, Any] = {
            "ray_id": f"id{rank}",
            "cores": (0, 1, 2, 3),
            "memory_bytes": 16 * GIB,
            "python_interpreter_path": "/usr/bin/python3",
            "ray_version": "2.60.0",
            "python_version": "3.11.7",
            "headrace_version": "0.1.0",
        }
        return NodeReport(**{**values, **changes})

    return make


@pytest.fixture
def machines(report: Callable[..., NodeReport]) -> MakeMachines:
    """`machines({"GPU": 8}, {"CPU": 4})`: a cluster from what Ray counts on each node."""

    def make(*resources: Mapping[str, float], node_groups: Sequence[Mapping[str, Any]] = (), **config: Any):
        read = ClusterConfig.from_mapping({"node_groups": list(node_groups), **config})
        nodes = []
        for rank, counted in enumerate(resources):
            head = {HEAD_RESOURCE: 1.0} if rank == 0 else {}
            there = {"CPU": 4.0, "memory": 8.0 * GIB, **counted, **head}
            nodes.append(build_node(rank, report(rank), f"10.0.0.{rank}", there, read))
        return FakeMachines(nodes, build_groups(nodes, read))

    return make
