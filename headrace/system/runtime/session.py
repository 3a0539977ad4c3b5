"""This process's place in a job: its endpoint, its way to the managers, the channels that it hosts."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.core.errors import ClusterError, ConfigError
from headrace.system.cluster.cluster import Cluster
from headrace.system.comm.channel import ChannelService
from headrace.system.comm.context import ChannelRef
from headrace.system.comm.endpoint import Endpoint
from headrace.system.comm.service import EndpointAddress
from headrace.system.runtime.address import WorkerAddress, WorkerInfo
from headrace.system.runtime.control_plane import ACTOR_NAME, SERVICE, ControlPlane, ManagersClient, ManagersService
from headrace.system.runtime.logs import LOG_SERVICE, DriverLogService

FIND_WORKER_TIMEOUT_S = 120.0


class Session:
    """One a process. `driver` is where warnings are shown; `log_dir` is where workers' logs go."""

    def __init__(
        self, endpoint: Endpoint, control_plane: EndpointAddress, driver: EndpointAddress, node_rank: int, log_dir: Path
    ) -> None:
        self.endpoint = endpoint
        self.control_plane = control_plane
        self.driver = driver
        self.node_rank = node_rank
        self.log_dir = log_dir
        self.managers = ManagersClient(endpoint, control_plane)
        self.group_names: set[str] = set()  # launched from this process
        self.hosts: list[Any] = []  # actors that keep a channel on another node: alive while the session is
        self._found: dict[WorkerAddress, WorkerInfo] = {}
        endpoint.watch(control_plane)

    def register_worker(self, info: WorkerInfo) -> None:
        self.managers.ask("worker", "register", info)

    def find_worker(self, address: WorkerAddress, timeout_s: float = FIND_WORKER_TIMEOUT_S) -> WorkerInfo:
        """Where a worker is, waiting for it to be launched.

        Raises:
            WaitTimeoutError: nobody registered it within `timeout_s`.
            PeerDeadError: it was there and its process is gone.
        """
        info = self._found.get(address)
        if info is None or self.endpoint.is_gone(info.endpoint):
            info = self.managers.ask("worker", "find", address, timeout_s=timeout_s)
            self._found[address] = info
        return info

    def host_channel(self, name: str, maxsize: int, node_rank: int | None) -> ChannelRef:
        """Start a channel's broker here, or on another node, and publish its name."""
        if maxsize < 0:
            raise ConfigError("maxsize", maxsize, f"channel '{name}' holds 1 or more items, or 0 for no bound")
        if node_rank is None or node_rank == self.node_rank:
            self.endpoint.serve(f"channel:{name}", ChannelService(name, maxsize, self.endpoint))
            broker = self.endpoint.address
        else:
            broker = self._host_elsewhere(name, maxsize, node_rank)
        ref = ChannelRef(name, maxsize, broker)
        self.managers.ask("collective", "publish_channel", ref)
        return ref

    def find_channel(self, name: str, timeout_s: float) -> ChannelRef:
        return self.managers.ask("collective", "find_channel", name, timeout_s=timeout_s)

    def lease_port(self) -> int:
        """A TCP port of this node that is free now and that no other worker of the job was given."""
        host = self.endpoint.address.host
        while True:
            with socket.socket() as probe:
                probe.bind((host, 0))
                port = probe.getsockname()[1]
            if self.managers.ask("port_lock", "lease", host, port):
                return port

    def close(self) -> None:
        self.endpoint.close()

    def _host_elsewhere(self, name: str, maxsize: int, node_rank: int) -> EndpointAddress:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = self.managers.ask("node", "nodes")
        if not 0 <= node_rank < len(nodes):
            raise ConfigError("node_rank", node_rank, f"channel '{name}': the cluster has nodes 0 to {len(nodes) - 1}")
        node = nodes[node_rank]
        strategy = NodeAffinitySchedulingStrategy(node.ray_id, soft=False)
        host = (
            ray.remote(num_cpus=0)(ChannelHost)
            .options(scheduling_strategy=strategy)
            .remote(node.ray_id, node.address, self.endpoint.token, self.control_plane, name, maxsize)
        )
        self.hosts.append(host)
        return ray.get(host.address.remote())  # type: ignore[attr-defined]


class ChannelHost:
    """An actor that only keeps one channel's broker."""

    def __init__(
        self, node: str, host: str, token: bytes, control_plane: EndpointAddress, name: str, maxsize: int
    ) -> None:
        self._endpoint = Endpoint(name=f"channel {name}", node=node, host=host, token=token)
        self._endpoint.serve(f"channel:{name}", ChannelService(name, maxsize, self._endpoint))
        self._endpoint.watch(control_plane)

    def address(self) -> EndpointAddress:
        return self._endpoint.address


_sessions: list[Session] = []  # this process's sessions, the newest last
_of_cluster: weakref.WeakKeyDictionary[Cluster, Session] = weakref.WeakKeyDictionary()
_starting = threading.Lock()


def current() -> Session:
    """This process's session: its cluster's, or, in a process without a cluster, a job of its own."""
    if not _sessions:
        with _starting:
            if not _sessions and Cluster.has_initialized():
                of_cluster(Cluster())
            elif not _sessions:
                enter(_inline_session(Path.cwd() / "runs" / "inline" / "logs"))
    return _sessions[-1]


def enter(session: Session) -> None:
    """Make `session` this process's current one, until it is left."""
    _sessions.append(session)


def leave(session: Session) -> None:
    """Close `session`; the one before it is current again. Idempotent."""
    if session in _sessions:
        _sessions.remove(session)
    session.close()


@contextlib.contextmanager
def inline(log_dir: Path) -> Iterator[Session]:
    """A job that lives in this process alone, without Ray."""
    session = _inline_session(log_dir)
    enter(session)
    try:
        yield session
    finally:
        leave(session)


def adopt(cluster: Cluster, session: Session) -> None:
    """In a worker: `cluster` is the driver's, and this process's session on it is there already."""
    _of_cluster[cluster] = session


def of_cluster(cluster: Cluster) -> Session:
    """The driver's session on `cluster`; begun at the first call, ended when the cluster shuts down."""
    session = _of_cluster.get(cluster)
    if session is None:
        session = _driver_session(cluster)
        _of_cluster[cluster] = session
        cluster.on_shutdown(lambda: leave(session))
        enter(session)
    return session


def _inline_session(log_dir: Path) -> Session:
    endpoint = Endpoint(name=f"driver {os.getpid()}")
    endpoint.serve(SERVICE, ManagersService(endpoint))
    endpoint.serve(LOG_SERVICE, DriverLogService())
    return Session(endpoint, endpoint.address, endpoint.address, 0, log_dir)


def _driver_session(cluster: Cluster) -> Session:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = next((node for node in cluster.nodes if node.ray_id == ray.get_runtime_context().get_node_id()), None)
    if here is None:
        raise ClusterError("this driver runs on a node that is not part of the cluster")
    endpoint = Endpoint(name="driver", node=here.ray_id, host=here.address)
    endpoint.serve(LOG_SERVICE, DriverLogService())
    actor = (
        ray.remote(num_cpus=0)(ControlPlane)
        .options(
            name=ACTOR_NAME,
            namespace=cluster.namespace,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here.ray_id, soft=False),
        )
        .remote(here.ray_id, here.address, endpoint.token, tuple(cluster.nodes))
    )
    control_plane: Any = ray.get(actor.address.remote())  # type: ignore[attr-defined]
    session = Session(endpoint, control_plane, endpoint.address, here.node_rank, Path(cluster.log_dir))
    session.hosts.append(actor)
    return session
