"""The connection to Ray: an own local one, one at an address, or the one that this process has already."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ClusterError
from headrace.system.cluster.config import ClusterConfig

# Shared by all jobs on purpose: in it device reservations have names, so that no two jobs take one device. Actors of
# a job live in a namespace of their own (`Cluster.namespace`).
RAY_NAMESPACE = "headrace"

REACH_TIMEOUT_S = 5.0
HANDSHAKE_TIMEOUT_S = 10.0
_ALIVE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
HEAD_RESOURCE = "node:__internal_head__"
_POLL_S = 0.1

RayNode = Mapping[str, Any]


@dataclass(frozen=True)
class Connection:
    """What `connect` made. close: ends it; does nothing to a Ray that somebody else started in this process."""

    address: str
    owns_ray: bool
    close: Callable[[], None]


def connect(config: ClusterConfig) -> Connection:
    """Use the Ray of this process if there is one, join `config.address` if it is given, else start a local Ray.

    A job of several nodes cannot be local: without an address it joins the Ray that runs on this machine.

    Raises:
        ClusterError: the address does not answer (within 20 s), or is not the Ray that this process is connected to.
    """
    import ray

    if ray.is_initialized():
        return _existing(config)
    if config.address is not None or config.num_nodes > 1:
        return _join(config.address or "auto", config)
    return _start_local(config)


def wait_for_nodes(config: ClusterConfig) -> list[RayNode]:
    """The alive nodes, when there are at least `config.num_nodes` and the head is one of them.

    Raises:
        ClusterError: that did not come about within `config.startup_timeout_s`.
    """
    import ray

    deadline = time.monotonic() + config.startup_timeout_s
    while True:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        problem = nodes_problem(nodes, config.num_nodes)
        if problem is None:
            return nodes
        if time.monotonic() >= deadline:
            raise ClusterError(f"{problem} (waited {config.startup_timeout_s:g} s)")
        time.sleep(_POLL_S)


def nodes_problem(nodes: Sequence[RayNode], num_nodes: int) -> str | None:
    """What is wrong with a cluster of these alive nodes; None if nothing is."""
    if not any(HEAD_RESOURCE in node["Resources"] for node in nodes):
        return f"the head of the Ray cluster is not alive; {len(nodes)} other nodes are"
    if len(nodes) < num_nodes:
        there = ", ".join(sorted(node["NodeManagerAddress"] for node in nodes))
        return f"cluster.num_nodes = {num_nodes}, but {len(nodes)} joined: {there}"
    return None


def _existing(config: ClusterConfig) -> Connection:
    import ray

    address = ray.get_runtime_context().gcs_address
    if config.address not in (None, "auto", address):
        raise ClusterError(f"this process is connected to Ray at {address}, not at {config.address}")
    return Connection(address, owns_ray=False, close=lambda: None)


def _start_local(config: ClusterConfig) -> Connection:
    """An own Ray. Never a bare init, which attaches to whatever cluster this machine remembers."""
    import ray

    # Else Ray hides every accelerator from processes that reserve none; which they see is for placements to say.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    wanted = {
        "num_cpus": config.num_cpus,
        "resources": config.resources,
        "object_store_memory_bytes": config.object_store_memory_bytes,
    }
    try:
        from headrace.system.cluster.local_head import LocalHead
    except ImportError:  # a Ray release without the private names that the quick start needs
        return _start_plainly(**wanted)
    with ExitStack() as undo:
        head = LocalHead(**wanted)
        undo.callback(head.stop)
        undo.callback(ray.shutdown)
        _init(head.gcs_address)
        return Connection(head.gcs_address, owns_ray=True, close=undo.pop_all().close)


def _start_plainly(
    num_cpus: int | None, resources: Mapping[str, float], object_store_memory_bytes: int | None
) -> Connection:
    import ray

    try:
        with _signals_held_back():
            ray.init(
                address="local",
                namespace=RAY_NAMESPACE,
                num_cpus=num_cpus,
                resources=dict(resources),
                object_store_memory=object_store_memory_bytes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    except BaseException:
        ray.shutdown()
        raise
    return Connection(ray.get_runtime_context().gcs_address, owns_ray=True, close=ray.shutdown)


def _join(address: str, config: ClusterConfig) -> Connection:
    import ray
    from ray.exceptions import RayError

    if address == "auto":
        address = _running_here(config)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(f"cluster.address = {address!r}: write it as 'host:port', or 'auto'")
    try:
        asks_for_token = _asks_for_token(host, int(port))
    except OSError as error:
        raise ClusterError(f"no Ray cluster at cluster.address = {address!r}: {error}") from error
    with ExitStack() as undo:
        undo.callback(ray.shutdown)  # to leave a cluster is not to end it
        try:
            if asks_for_token:
                undo.callback(_use_token())
            _init(address)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise ClusterError(f"cannot join the Ray cluster at cluster.address = {address!r}: {error}") from error
        return Connection(address, owns_ray=False, close=undo.pop_all().close)


def _running_here(config: ClusterConfig) -> str:
    """The address of the Ray that runs on this machine, or that RAY_ADDRESS names."""
    from ray._private.services import get_ray_address_from_environment

    try:
        return get_ray_address_from_environment("auto", None)
    except ConnectionError as error:
        raise ClusterError(
            f"cluster.num_nodes = {config.num_nodes}, and no Ray cluster runs on this machine: start one with"
            " `ray start`, or set cluster.address"
        ) from error


def _asks_for_token(host: str, port: int) -> bool:
    """Whether the Ray head at an address lets in only who has its user's token.

    Asked beforehand because Ray's own client may take minutes to find out that nobody answers.

    Raises:
        OSError: nobody listens there, or whoever listens is no Ray head.
    """
    import grpc

    socket.create_connection((host, port), timeout=REACH_TIMEOUT_S).close()
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            channel.unary_unary(_ALIVE_METHOD)(b"", timeout=HANDSHAKE_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:  # pyright: ignore[reportAttributeAccessIssue]
                return True
            raise OSError("something listens there, but it does not answer as a Ray head") from error
    return False


def _use_token() -> Callable[[], None]:
    """Show this user's token to the Ray that is joined next. Returns what undoes it."""
    from headrace.system.cluster.local_head import require_token

    return require_token(create=False)


def _init(address: str) -> None:
    import ray

    with _signals_held_back():
        ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Deliver an interrupt after the block, to the handler that the program had.

    Ray's native code does not survive an exception in the middle of connecting, and it installs handlers of its own,
    under which a terminated program would die without ending what it started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread has to do with signals
        return
    came: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    for signum in before:
        signal.signal(signum, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if came:
        signal.raise_signal(came[0])
