"""The base of every role: rank, devices, logger, timers, messages to other workers."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.core.errors import ConfigError, HeadraceError
from headrace.system.cluster.accelerator import Device, torch_device_for
from headrace.system.comm.channel import CONNECT_TIMEOUT_S, Channel
from headrace.system.comm.mailbox import Mailbox, Source, service_name
from headrace.system.comm.payload import Payload
from headrace.system.comm.work import AsyncWork
from headrace.system.runtime.address import WorkerAddress, WorkerInfo
from headrace.system.runtime.device_lock import DeviceLock
from headrace.system.runtime.group import WorkerGroup
from headrace.system.runtime.seat import Seat

F = TypeVar("F", bound=Callable[..., Any])
W = TypeVar("W", bound="Worker")
GroupRanks = tuple[str, int | Sequence[int]]
_P2P = "p2p"
RENDEZVOUS_TIMEOUT_S = 120.0


class Worker:
    """One rank of a role. Subclass it, write methods, launch it as a group:

        class Counter(Worker):
            def add(self, x: int) -> int:
                return self.rank + x

        group = Counter.create_group().launch(cluster, name="counter")
        group.add(1).wait()   # one result a rank

    Calls of ordinary methods run one after the other; coroutines, and methods marked `concurrent`, beside them.
    """

    def __init__(
        self, parent_address: WorkerAddress | None = None, world_size: int | None = None, rank: int | None = None
    ):
        # Who it is was settled by its seat; the arguments are accepted for subclasses that pass them on.
        del parent_address, world_size, rank

    @classmethod
    def construct(cls: type[W], seat: Seat, args: tuple[Any, ...], kwargs: dict[str, Any]) -> W:
        """Make a worker that knows its seat already while its `__init__` runs. Called by the runtime."""
        worker = cls.__new__(cls)
        worker._take_seat(seat)
        worker.__init__(*args, **kwargs)
        return worker

    def _take_seat(self, seat: Seat) -> None:
        self._seat = seat
        self._rank = seat.info.rank
        self._world_size = seat.info.group_world_size
        self._group_name = seat.info.address.root_group_name
        self._address = seat.info.address
        self._mailbox = Mailbox(seat.session.endpoint)
        self._times: dict[str, float] = defaultdict(float)
        self._times_lock = threading.Lock()
        seat.session.endpoint.serve(service_name(self.get_name()), self._mailbox)
        seat.session.register_worker(seat.info)

    # -- who and where -------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def worker_address(self) -> WorkerAddress:
        return self._address

    @property
    def worker_info(self) -> WorkerInfo:
        return self._seat.info

    @property
    def local_rank(self) -> int:
        """Rank among the group's workers of this node."""
        return self._seat.local_rank

    @property
    def node_rank(self) -> int:
        return self._seat.info.cluster_node_rank

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of this worker's placement; empty for node placement."""
        return self._seat.devices

    @property
    def has_accelerator(self) -> bool:
        return any(device.type != "cpu" for device in self.devices)

    @property
    def hardware_type(self) -> str:
        return self._seat.info.accelerator_type

    @property
    def torch_device(self) -> str:
        """The device string for torch: "cuda:0" and the like, as this process sees it."""
        return torch_device_for(self.devices[0]) if self.devices else "cpu"

    @property
    def logger(self) -> logging.Logger:
        return self._seat.logger

    def get_name(self) -> str:
        return self._address.get_name()

    def get_parent_rank(self) -> int:
        return self._address.get_parent_rank()

    # -- groups and channels -------------------------------------------------------------------------------------

    @classmethod
    def create_group(cls: type[W], *args: Any, **kwargs: Any) -> WorkerGroup[W]:
        """A group of this class, not launched yet; the arguments go to every rank's `__init__`."""
        return WorkerGroup(cls, args, kwargs)

    def create_channel(
        self,
        channel_name: str,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int | None = None,
        local: bool = False,
    ) -> Channel:
        """`Channel.create` with this worker's process as the default home."""
        return Channel.create(channel_name, maxsize, distributed, node_rank, local)

    def connect_channel(self, channel_name: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Channel:
        return Channel.connect(channel_name, self, timeout_s)

    # -- messages ------------------------------------------------------------------------------------------------

    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: int | Sequence[int],
        async_op: bool = False,
        options: Any = None,
        piggyback_payload: Any = None,
    ) -> AsyncWork[None] | None:
        """Send any tree to a worker; in order per pair. Returns once the bytes are copied out of `object`.

        Raises:
            WaitTimeoutError: the receiver was not launched.
            PeerDeadError: the receiver is gone.
        """
        del options
        message = (object, piggyback_payload) if piggyback_payload is not None else object
        return self._send(message, [WorkerAddress(dst_group_name, dst_rank)], _P2P, async_op)

    def recv(
        self,
        src_group_name: str,
        src_rank: int | Sequence[int],
        async_op: bool = False,
        options: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The next message of a worker. With `async_op`, an `AsyncWork`.

        Raises:
            PeerDeadError: the sender is gone and nothing of it is left.
            WaitTimeoutError: nothing came within `timeout_s`.
        """
        del options
        work = self._recv(WorkerAddress(src_group_name, src_rank), _P2P)
        return work if async_op else work.wait(timeout_s)

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: int | Sequence[int],
        async_op: bool = False,
        options: Any = None,
    ) -> AsyncWork[None] | None:
        """Send one tensor, to be received by `recv_tensor` or `recv`."""
        return self.send(tensor, dst_group_name, dst_rank, async_op, options)

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: int | Sequence[int],
        async_op: bool = False,
        options: Any = None,
    ) -> Any:
        """Receive into `tensor`, in place.

        Raises:
            ConfigError: what arrives has another shape.
        """
        del options
        source = WorkerAddress(src_group_name, src_rank)

        def fill(payload: Payload) -> Any:
            received = payload.decode()
            if tuple(received.shape) != tuple(tensor.shape):
                remedy = f"{source.get_name()} sent shape {tuple(received.shape)}; make both ends agree"
                raise ConfigError("tensor.shape", tuple(tensor.shape), remedy)
            tensor.copy_(received)
            return tensor

        work = AsyncWork(self._receive(source, _P2P), fill)
        return work if async_op else work.wait()

    def broadcast(
        self,
        object: Any = None,
        groups: Sequence[GroupRanks] | None = None,
        src: GroupRanks | None = None,
        async_op: bool = False,
        options: Any = None,
    ) -> Any:
        """Every worker of `groups` calls this; all get the source's `object`.

        groups: (group name, rank or ranks) pairs; default: all ranks of the own group. src: default the first.
        """
        del options
        members = _members(groups or [(self._group_name, range(self._world_size))])
        source = _members([src])[0] if src is not None else members[0]
        if self._address not in members or source not in members:
            raise ConfigError(
                "groups", [m.get_name() for m in members], f"add {self.get_name()} and the source to them"
            )
        stream = ("broadcast", tuple(m.get_name() for m in members))
        if self._address == source:
            others = [m for m in members if m != source]
            work: AsyncWork[Any] = self._send_work(object, others, stream).then(lambda: object)
        else:
            work = self._recv(source, stream)
        return work if async_op else work.wait()

    def _send(self, message: Any, to: list[WorkerAddress], stream: Any, async_op: bool) -> AsyncWork[None] | None:
        work = self._send_work(message, to, stream)
        return work if async_op else work.wait()

    def _send_work(self, message: Any, to: list[WorkerAddress], stream: Any) -> AsyncWork[None]:
        # The payload owns its bytes, so the caller's part ends here; a dead receiver is this work's error.
        future: Future[None] = Future()
        payload = Payload.of(message)
        source: Source = (self.get_name(), stream)
        try:
            for address in to:
                info = self._seat.session.find_worker(address)
                self._seat.session.endpoint.notify(info.endpoint, service_name(address.get_name()), source, payload)
        except HeadraceError as failure:
            future.set_exception(failure)
        else:
            future.set_result(None)
        return AsyncWork(future, lambda none: none)

    def _recv(self, source: WorkerAddress, stream: Any) -> AsyncWork[Any]:
        future = self._receive(source, stream)
        return AsyncWork(future, lambda payload: payload.decode(), withdraw=future.cancel)

    def _receive(self, source: WorkerAddress, stream: Any) -> Any:
        info = self._seat.session.find_worker(source)
        future = self._mailbox.receive((source.get_name(), stream), info.endpoint.uid)
        if not future.done():
            self._seat.session.endpoint.watch(info.endpoint)
        return future

    # -- devices, ports, time, log -------------------------------------------------------------------------------

    @functools.cached_property
    def device_lock(self) -> DeviceLock:
        """The lock on this worker's devices, shared with every worker placed on one of them."""
        return DeviceLock(self._seat.session.managers, self.get_name(), self.devices)

    def acquire_free_port(self) -> int:
        """A TCP port of this node, free now, leased to this worker's process."""
        return self._seat.session.lease_port()

    def rendezvous(self, name: str, timeout_s: float = RENDEZVOUS_TIMEOUT_S) -> tuple[str, int]:
        """Host and port, leased to rank 0, where all ranks of this group meet; every rank calls it.

        Raises:
            WaitTimeoutError: rank 0 did not come within `timeout_s`.
        """
        key = f"{self._group_name}/{name}"
        managers = self._seat.session.managers
        if self._rank == 0:
            place = (self._seat.session.endpoint.address.host, self.acquire_free_port())
            managers.ask("collective", "publish_rendezvous", key, place)
            return place
        return managers.ask("collective", "find_rendezvous", key, timeout_s=timeout_s)

    @contextlib.contextmanager
    def worker_timer(self, tag: str | None = None) -> Iterator[None]:
        """Add the time spent inside to `tag` (default: "timer"); read it by `pop_execution_times`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._times_lock:
                self._times[tag or "timer"] += time.perf_counter() - start

    @staticmethod
    def timer(tag: str | None = None) -> Callable[[F], F]:
        """`worker_timer` around a whole method; default tag: the method's name."""

        def decorate(method: F) -> F:
            @functools.wraps(method)
            def timed(self: Worker, *args: Any, **kwargs: Any) -> Any:
                with self.worker_timer(tag or method.__name__):
                    return method(self, *args, **kwargs)

            return timed  # type: ignore[return-value]

        return decorate

    def pop_execution_time(self, tag: str) -> float:
        """Seconds under `tag` since it was last popped."""
        with self._times_lock:
            return self._times.pop(tag, 0.0)

    def pop_execution_times(self) -> dict[str, float]:
        """All timers' seconds since they were last popped."""
        with self._times_lock:
            times, self._times = dict(self._times), defaultdict(float)
        return times

    def log_debug(self, msg: str) -> None:
        self.logger.debug(msg)

    def log_info(self, msg: str) -> None:
        self.logger.info(msg)

    def log_warning(self, msg: str) -> None:
        self.logger.warning(msg)

    def log_error(self, msg: str) -> None:
        self.logger.error(msg)

    def log_on_first_rank(self, msg: str) -> None:
        if self._rank == 0:
            self.logger.info(msg)

    def log_on_last_rank(self, msg: str) -> None:
        if self._rank == self._world_size - 1:
            self.logger.info(msg)


def _members(groups: Sequence[GroupRanks]) -> list[WorkerAddress]:
    return [
        WorkerAddress(name, rank) for name, ranks in groups for rank in ([ranks] if isinstance(ranks, int) else ranks)
    ]
