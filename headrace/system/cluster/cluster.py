"""The cluster of a job: its connection to Ray, its nodes and devices, and the order in which it ends."""

from __future__ import annotations

import atexit
import dataclasses
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from headrace.core.errors import ConfigError, nearest
from headrace.system.cluster.config import CLUSTER_LABEL, ClusterConfig, as_cluster_config
from headrace.system.cluster.connection import connect, wait_for_nodes
from headrace.system.cluster.node import NodeGroupInfo, NodeInfo
from headrace.system.cluster.placement import Placement
from headrace.system.cluster.probe import NodeProbe
from headrace.system.cluster.reservation import Reservations


@dataclass(frozen=True)
class ClusterSnapshot:
    """What another process of the job needs to know the cluster."""

    config: ClusterConfig
    nodes: tuple[NodeInfo, ...]
    groups: Mapping[str, NodeGroupInfo]
    job_id: str
    run_dir: Path
    log_dir: Path


class Cluster:
    """A job's hold on machines. Use as a context manager, or call `shutdown()`; at exit that happens anyway.

    config: a ClusterConfig, its mapping (OmegaConf too), or a number of nodes; `cluster_cfg` is the same.
    address: overrides `config.address`.
    run_dir, distributed_log_dir: where the job writes; by default runs/<job> and its `logs`. Nothing is made here.

    `Cluster()` without arguments is the newest cluster that this process has, if it has one.

    Raises:
        ConfigError: a configuration that cannot be, or that does not fit the nodes.
        ClusterError: no connection, too few nodes, or nodes that do not agree.
    """

    _open: ClassVar[list[Cluster]] = []  # this process's clusters, the newest last

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        newest = cls._open[-1] if cls._open else None
        if not args and not kwargs and isinstance(newest, cls):
            return newest
        return super().__new__(cls)

    def __init__(
        self,
        config: ClusterConfig | Mapping[str, Any] | int | None = None,
        *,
        num_nodes: int | None = None,
        cluster_cfg: ClusterConfig | Mapping[str, Any] | None = None,
        address: str | None = None,
        distributed_log_dir: str | Path | None = None,
        run_dir: str | Path | None = None,
    ) -> None:
        if self in Cluster._open:
            return
        if config is not None and cluster_cfg is not None:
            raise ConfigError("cluster_cfg", cluster_cfg, "is another name of config; give one of them")
        read = as_cluster_config(config if cluster_cfg is None else cluster_cfg, num_nodes)
        self.config = read if address is None else dataclasses.replace(read, address=address)
        self.job_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self.run_dir = Path(run_dir) if run_dir is not None else Path.cwd() / "runs" / self.job_id
        self.log_dir = Path(distributed_log_dir) if distributed_log_dir is not None else self.run_dir / "logs"
        self._ending = ExitStack()
        try:
            self._start()
        except BaseException:  # also on Ctrl-C: what was started is ended again
            self._ending.close()
            raise
        atexit.register(self.shutdown)
        Cluster._open.append(self)

    @classmethod
    def attach(cls, snapshot: ClusterSnapshot) -> Cluster:
        """The driver's cluster, in a worker that is connected to it: `Cluster()` returns it from now on."""
        cluster = object.__new__(cls)
        cluster.config = snapshot.config
        cluster.job_id = snapshot.job_id
        cluster.run_dir, cluster.log_dir = snapshot.run_dir, snapshot.log_dir
        cluster._ending = ExitStack()
        cluster.owns_ray = False
        cluster.address = ""
        cluster._adopt(list(snapshot.nodes), dict(snapshot.groups))
        Cluster._open.append(cluster)
        return cluster

    def snapshot(self) -> ClusterSnapshot:
        """What `attach` needs, to be sent to a worker."""
        return ClusterSnapshot(
            self.config, tuple(self.nodes), dict(self._groups), self.job_id, self.run_dir, self.log_dir
        )

    @classmethod
    def has_initialized(cls) -> bool:
        """Whether this process has a cluster."""
        return bool(Cluster._open)

    @classmethod
    def find_free_port(cls) -> int:
        """A TCP port of this machine that is free now. Nobody keeps it so: workers lease theirs from the job."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]

    # -- machines ------------------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """Where the names of this job's actors live."""
        return f"headrace-{self.job_id}"

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    @property
    def node_groups(self) -> list[NodeGroupInfo]:
        return list(self._groups.values())

    @property
    def num_accelerators(self) -> int:
        """How many devices placements count on the whole cluster: accelerators, or CPU slots where there are none."""
        return self.get_node_group().hardware_resource_count

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """The hardware ranks of each node's devices, in the order of nodes."""
        return self.get_node_group().local_hardware_ranks

    def get_node_info(self, node_rank: int) -> NodeInfo:
        if not 0 <= node_rank < len(self.nodes):
            raise ConfigError("node_rank", node_rank, f"the cluster has nodes 0 to {len(self.nodes) - 1}")
        return self.nodes[node_rank]

    def get_node_ip(self, node_rank: int) -> str:
        return self.get_node_info(node_rank).address

    def get_node_group(self, label: str = CLUSTER_LABEL) -> NodeGroupInfo:
        if label not in self._groups:
            raise ConfigError("node_group", label, nearest(label, self._groups))
        return self._groups[label]

    # -- devices -------------------------------------------------------------------------------------------------

    def reserve(self, placements: Sequence[Placement]) -> list[Any]:
        """Make the devices of `placements` this job's own, until it ends; its workers share them.

        Returns one Ray `scheduling_strategy` a placement, for actors that ask for no resources themselves. A placement
        on a node as a whole reserves nothing.

        Raises:
            ResourceError: they are not there, or not free within `config.reserve_timeout_s`.
        """
        return self._reservations.reserve(placements)

    # -- the end -------------------------------------------------------------------------------------------------

    def on_shutdown(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the cluster shuts down, before what was there earlier ends: last in, first out."""
        self._ending.callback(callback)

    def shutdown(self) -> None:
        """End everything that this job started, in reverse order. Idempotent.

        A callback that raises does not keep the others from running; its error is raised at the end.
        """
        atexit.unregister(self.shutdown)
        if self in Cluster._open:
            Cluster._open.remove(self)
        self._ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"Cluster({self.num_nodes} nodes, {self.num_accelerators} devices, job {self.job_id})"

    def _start(self) -> None:
        connection = connect(self.config)
        self._ending.callback(connection.close)
        self.owns_ray = connection.owns_ray
        self.address = connection.address
        probe = NodeProbe(self.config, wait_for_nodes(self.config))
        self._adopt(probe.nodes, probe.groups)

    def _adopt(self, nodes: list[NodeInfo], groups: dict[str, NodeGroupInfo]) -> None:
        self.nodes = nodes
        self._groups = groups
        self._reservations = Reservations(nodes, self.config.cores_per_slot, self.config.reserve_timeout_s)
        self._ending.callback(self._reservations.release)
