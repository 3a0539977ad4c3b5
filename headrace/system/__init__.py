"""The system wing: machines, processes and the data between them. Knows nothing of learning."""

from headrace.system.cluster.cluster import Cluster
from headrace.system.cluster.config import ClusterConfig
from headrace.system.cluster.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
)
from headrace.system.comm import context
from headrace.system.comm.channel import Channel
from headrace.system.comm.work import AsyncWork
from headrace.system.runtime import session
from headrace.system.runtime.address import WorkerAddress, WorkerInfo
from headrace.system.runtime.group import Scatter, WorkerGroup
from headrace.system.runtime.handle import Handle
from headrace.system.runtime.seat import concurrent
from headrace.system.runtime.worker import Worker

context.set_provider(session.current)

__all__ = [
    "AsyncWork",
    "Channel",
    "Cluster",
    "ClusterConfig",
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "Handle",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "PlacementStrategy",
    "Scatter",
    "Worker",
    "WorkerAddress",
    "WorkerGroup",
    "WorkerInfo",
    "concurrent",
]
