"""What surrounds a worker: makes it, carries calls out, turns whatever happens into an outcome."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from headrace.core import tree
from headrace.system.cluster.accelerator import Device
from headrace.system.cluster.cluster import Cluster, ClusterSnapshot
from headrace.system.comm.endpoint import Endpoint
from headrace.system.comm.service import EndpointAddress
from headrace.system.runtime import session as sessions
from headrace.system.runtime.address import WorkerAddress, WorkerInfo
from headrace.system.runtime.handle import Failure, Outcome
from headrace.system.runtime.logs import DriverHandler, OutputFile, log_path, worker_logger
from headrace.system.runtime.seat import Seat
from headrace.system.runtime.session import Session

Packed = tuple[bytes, bytes]


def pack(item: Any) -> Packed:
    """A tree as two byte strings, for Ray's transport: no tensor meets Ray's serialiser."""
    encoded = tree.encode(item)
    body = bytearray(encoded.body_nbytes)
    encoded.write_into(memoryview(body))
    return encoded.header, bytes(body)


def unpack(packed: Packed) -> Any:
    header, body = packed
    return tree.decode(header, memoryview(bytearray(body)))


@dataclass(frozen=True)
class Order:
    """What a worker is made of: its class (pickled) and its arguments."""

    cls: bytes
    arguments: Packed


@dataclass(frozen=True)
class Boarding:
    """All that a worker's process needs to find its seat."""

    group: str
    rank: int
    world_size: int
    node_rank: int
    node_id: str
    node_ip: str
    device_type: str
    device_ranks: tuple[int, ...]
    devices: tuple[Device, ...]
    local_rank: int
    local_world_size: int
    env_vars: dict[str, str]
    cores: tuple[int, ...]
    cluster: ClusterSnapshot | None
    log_dir: str
    token: bytes
    control_plane: EndpointAddress
    driver: EndpointAddress
    sys_path: tuple[str, ...]

    def info(self, endpoint: EndpointAddress, actor_id: str = "") -> WorkerInfo:
        return WorkerInfo(
            address=WorkerAddress(self.group, self.rank),
            rank=self.rank,
            group_world_size=self.world_size,
            endpoint=endpoint,
            cluster_node_rank=self.node_rank,
            node_ip=self.node_ip,
            accelerator_type=self.device_type,
            accelerator_ranks=self.device_ranks,
            pid=os.getpid(),
            log_path=str(log_path(Path(self.log_dir), self.group, self.rank)),
            actor_id=actor_id,
        )


class WorkerHost:
    """Holds one worker. Never raises: what a call does, good or bad, is its outcome.

    log: where tracebacks are written, beside what the worker itself writes there.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._worker: Any = None
        self._ready = threading.Event()
        self._start_failure: Failure | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()

    def make(self, order: Order, seat: Seat) -> Packed:
        """Construct the worker. A failure is remembered: it is the outcome of every later call."""

        def construct() -> None:
            args, kwargs = unpack(order.arguments)
            self._worker = pickle.loads(order.cls).construct(seat, args, kwargs)

        outcome = self._attempt(construct)
        self._start_failure = outcome.failure
        self._ready.set()
        return _pack_outcome(outcome)

    def call(self, method: str, arguments: Packed) -> Packed:
        """Carry one call out, waiting for the worker to be made first."""
        self._ready.wait()
        if self._start_failure is not None:
            return _pack_outcome(Outcome(None, self._start_failure, 0.0))

        def run() -> Any:
            args, kwargs = unpack(arguments)
            result = getattr(self._worker, method)(*args, **kwargs)
            if inspect.isawaitable(result):
                return asyncio.run_coroutine_threadsafe(_awaited(result), self._event_loop()).result()
            return result

        return _pack_outcome(self._attempt(run))

    def _attempt(self, act: Callable[[], Any]) -> Outcome:
        start = time.perf_counter()
        try:
            value = act()
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # noqa: BLE001  # the one place where all ends up
            failure = _failure(raised)
            with self._log.open("a") as log:
                log.write(failure.traceback)
            return Outcome(None, failure, time.perf_counter() - start)
        return Outcome(value, None, time.perf_counter() - start)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="headrace-loop", daemon=True).start()
            return self._loop


class RemoteHost(WorkerHost):
    """A host in a process of its own: the Ray actor behind one rank."""

    def __init__(self, boarding: Boarding) -> None:
        path = log_path(Path(boarding.log_dir), boarding.group, boarding.rank)
        super().__init__(path)
        OutputFile(path).take_over()
        os.environ.update(boarding.env_vars)
        if boarding.cores:
            os.sched_setaffinity(0, boarding.cores)
        sys.path.extend(entry for entry in boarding.sys_path if entry not in sys.path)
        name = f"{boarding.group}:{boarding.rank}"
        endpoint = Endpoint(name=f"worker {name}", node=boarding.node_id, host=boarding.node_ip, token=boarding.token)
        session = Session(endpoint, boarding.control_plane, boarding.driver, boarding.node_rank, Path(boarding.log_dir))
        sessions.enter(session)
        if boarding.cluster is not None:
            sessions.adopt(Cluster.attach(boarding.cluster), session)
        handler = DriverHandler(endpoint, boarding.driver, boarding.group, boarding.rank)
        logger = worker_logger(boarding.group, boarding.rank, path, own_process=True, to_driver=handler)
        self._session = session
        self._seat = Seat(
            session,
            boarding.info(endpoint.address),
            boarding.devices,
            logger,
            boarding.local_rank,
            boarding.local_world_size,
        )

    def start(self, order: Order) -> Packed:
        return self.make(order, self._seat)

    def leave(self) -> None:
        """Say goodbye to every peer: what follows is no death."""
        sessions.leave(self._session)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _failure(raised: BaseException) -> Failure:
    summary = f"{type(raised).__name__}: {raised}"
    text = "".join(traceback.format_exception(raised))
    try:
        pickle.loads(cloudpickle.dumps(raised))
    except Exception:  # noqa: BLE001  # an exception of any kind may refuse to travel, in any way
        return Failure(summary, text)
    return Failure(summary, text, raised)


def _pack_outcome(outcome: Outcome) -> Packed:
    try:
        return pack(outcome)
    except Exception as refused:  # noqa: BLE001  # whatever a user's result does when it is pickled is the result
        failure = Failure(f"the result cannot be sent: {type(refused).__name__}: {refused}", traceback.format_exc())
        return pack(Outcome(None, failure, outcome.seconds))
