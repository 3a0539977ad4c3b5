"""One endpoint a process: its door to every other process of the job.

Services (a channel's broker, the managers, a worker's mailbox) are registered by name; peers send them notices
(one way) and requests (answered now or later). On one node the bytes go over an abstract Unix socket, between
nodes over TCP, inside one process by a direct call. A connection that ends tells everyone who waited on it.

Threads: one I/O thread reads every socket. Services run under the endpoint's lock, one at a time, and never block.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import resource
import selectors
import socket
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.core.errors import HeadraceError, PeerDeadError
from headrace.system.comm.connection import TOKEN_NBYTES, Connection, dial, listen
from headrace.system.comm.payload import Payload
from headrace.system.comm.service import Answer, EndpointAddress, Request, Service, resolver
from headrace.system.comm.wire import Frame, Kind, ProtocolError

_logger = logging.getLogger(__name__)
_live_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


class Endpoint:
    """See the module's docstring. `node` is the node's identity, `host` the address peers on other nodes use."""

    def __init__(self, *, name: str, node: str = "local", host: str = "127.0.0.1", token: bytes | None = None) -> None:
        _allow_many_descriptors()
        self.lock = threading.RLock()
        self.token = token or os.urandom(TOKEN_NBYTES)
        uid = uuid.uuid4().hex
        self._unix, self._tcp = listen(uid, host)
        self.address = EndpointAddress(uid, node, f"headrace-{uid}", host, self._tcp.getsockname()[1], name)
        self._services: dict[str, Service] = {}
        self._connections: dict[str, Connection] = {}
        self._all: set[Connection] = set()
        self._gone: dict[str, bool] = {}
        self._asked_myself: set[Future[Answer]] = set()
        self._tickets = itertools.count(1)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._chores: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        for listener in (self._unix, self._tcp):
            self._selector.register(listener, selectors.EVENT_READ, listener)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, None)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"headrace-io-{name}", daemon=True)
        self._thread.start()
        _live_endpoints.add(self)

    def serve(self, name: str, service: Service) -> None:
        """Make `service` reachable under `name`."""
        with self.lock:
            self._services[name] = service

    def withdraw(self, name: str) -> None:
        with self.lock:
            self._services.pop(name, None)

    def notify(self, to: EndpointAddress, service: str, head: Any, payload: Payload | None = None) -> None:
        """One-way message; in order per pair of endpoints.

        Raises:
            PeerDeadError: `to` is gone.
        """
        if to.uid == self.address.uid:
            self._dispatch(service, Request(self.address.uid, head, payload, None))
            return
        self._send(to, Frame(Kind.NOTICE, (service, head), payload))

    def request(self, to: EndpointAddress, service: str, head: Any, payload: Payload | None = None) -> Future[Answer]:
        """Call a service. The future fails with `PeerDeadError` when the peer is gone before it answers."""
        future: Future[Answer] = Future()
        if to.uid == self.address.uid:
            self._ask_myself(service, head, payload, future)
            return future
        try:
            connection = self._connect(to)
        except PeerDeadError as dead:
            future.set_exception(dead)
            return future
        ticket = next(self._tickets)
        with self.lock:
            if connection not in self._all:
                future.set_exception(_peer_dead(to))
                return future
            connection.waiting[ticket] = future
        with contextlib.suppress(ConnectionError):  # the reader meets the same end and fails the future
            connection.writer.send(Frame(Kind.REQUEST, (ticket, service, head), payload), block=self._may_block())
        return future

    def watch(self, to: EndpointAddress) -> None:
        """Hold a connection to `to`, so that its end is noticed even if it never sends.

        Raises:
            PeerDeadError: `to` is gone already.
        """
        if to.uid != self.address.uid:
            self._connect(to)

    def is_gone(self, peer: EndpointAddress) -> bool:
        """Whether this endpoint has seen the end of `peer`."""
        return peer.uid in self._gone

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        """Run `function` under the lock, on the I/O thread, at `time.monotonic()` ≥ `when`."""
        with self.lock:
            heapq.heappush(self._timers, (when, next(self._tickets), function))
        self._wake()

    def close(self) -> None:
        """Say goodbye to every peer and stop. Idempotent."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            connections = list(self._all)
            asked_myself = list(self._asked_myself)
        for future in asked_myself:
            resolver(future)(False, _left_the_job(), ())
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                connection.writer.send(Frame(Kind.GOODBYE, None), block=False)
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _ask_myself(self, service: str, head: Any, payload: Payload | None, future: Future[Answer]) -> None:
        with self.lock:
            if self._closed:
                future.set_exception(_left_the_job())
                return
            self._asked_myself.add(future)
        future.add_done_callback(self._asked_myself.discard)
        self._dispatch(service, Request(self.address.uid, head, payload, resolver(future)))

    # -- sending -------------------------------------------------------------------------------------------------

    def _may_block(self) -> bool:
        return threading.current_thread() is not self._thread

    def _send(self, to: EndpointAddress, frame: Frame) -> None:
        connection = self._connect(to)
        try:
            connection.writer.send(frame, block=self._may_block())
        except ConnectionError:
            raise _peer_dead(to) from None

    def _connect(self, to: EndpointAddress) -> Connection:
        known = self._connections.get(to.uid)
        if known is not None:
            return known
        if to.uid in self._gone:
            raise _peer_dead(to)
        try:
            sock = dial(to, same_node=to.node == self.address.node)
            sock.sendall(self.token)
        except OSError as failure:
            raise PeerDeadError(f"{to.name} cannot be reached: {failure}") from failure
        with self.lock:
            winner = self._connections.get(to.uid)  # another thread may have dialled meanwhile
            if winner is not None or self._closed:
                sock.close()
                if winner is None:
                    raise _left_the_job()
                return winner
            connection = Connection(sock, to, self._want_write)
            connection.writer.send(Frame(Kind.HELLO, self.address), block=False)
            self._connections[to.uid] = connection
            self._adopt(connection)
            return connection

    def _adopt(self, connection: Connection) -> None:
        self._all.add(connection)
        self._do_soon(lambda: self._register(connection))

    def _register(self, connection: Connection) -> None:
        if connection in self._all:
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _want_write(self, connection: Connection) -> None:
        self._do_soon(lambda: self._watch_writes(connection, on=True))

    def _watch_writes(self, connection: Connection, *, on: bool) -> None:
        if connection in self._all:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if on else 0)
            self._selector.modify(connection.sock, events, connection)

    def _do_soon(self, chore: Callable[[], None]) -> None:
        self._chores.append(chore)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    # -- the I/O thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            for key, events in self._selector.select(self._until_next_timer()):
                self._on_ready(key, events)
            self._run_chores()
            self._run_timers()
        self._tear_down()

    def _until_next_timer(self) -> float | None:
        with self.lock:
            if self._chores:
                return 0.0
            return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_chores(self) -> None:
        while self._chores:
            self._chores.popleft()()

    def _run_timers(self) -> None:
        with self.lock:
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()

    def _on_ready(self, key: selectors.SelectorKey, events: int) -> None:
        if key.data is None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        elif isinstance(key.data, socket.socket):
            with contextlib.suppress(BlockingIOError):
                sock, _ = key.data.accept()
                with self.lock:
                    self._adopt(Connection(sock, None, self._want_write))
        else:
            if events & selectors.EVENT_WRITE and key.data.writer.on_writable():
                self._watch_writes(key.data, on=False)
            if events & selectors.EVENT_READ:
                self._on_readable(key.data)

    def _on_readable(self, connection: Connection) -> None:
        try:
            if not connection.is_trusted(self.token):
                return
            frames = connection.reader.read()
        except ProtocolError as misunderstanding:
            _logger.error("%s: dropping a connection: %s", self.address.name, misunderstanding)
            frames = None
        except OSError:  # the peer died
            frames = None
        if frames is None:
            self._drop(connection)
            return
        for frame in frames:
            self._on_frame(connection, frame)

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is Kind.REPLY:
            ticket, ok, value = frame.head
            with self.lock:
                future = connection.waiting.pop(ticket, None)
            if future is not None:
                last = () if frame.payload is None else (frame.payload,)
                resolver(future)(ok, value, (*connection.parts.pop(ticket, ()), *last))
        elif frame.kind is Kind.PART:
            assert frame.payload is not None
            connection.parts.setdefault(frame.head, []).append(frame.payload)
        elif frame.kind is Kind.HELLO:
            connection.peer = frame.head
            with self.lock:
                self._connections.setdefault(frame.head.uid, connection)
        elif frame.kind is Kind.GOODBYE:
            connection.clean = True
        else:
            assert connection.peer is not None, "the first frame of a connection is HELLO"
            peer = connection.peer.uid
            if frame.kind is Kind.NOTICE:
                service, head = frame.head
                self._dispatch(service, Request(peer, head, frame.payload, None))
            else:
                ticket, service, head = frame.head
                self._dispatch(service, Request(peer, head, frame.payload, connection.replier(ticket)))

    def _dispatch(self, service: str, request: Request) -> None:
        with self.lock:
            handler = self._services.get(service)
            if handler is None:
                request.fail(PeerDeadError(f"{self.address.name} serves no '{service}' (any more)"))
                return
            try:
                handler.on_request(request)
            except HeadraceError as refused:
                request.fail(refused)
            except Exception as bug:  # a service's mistake must not end the thread that all share
                _logger.exception("service '%s' failed", service)
                request.fail(HeadraceError(f"service '{service}' failed: {type(bug).__name__}: {bug}"))

    def _drop(self, connection: Connection) -> None:
        with self.lock:
            if connection not in self._all:
                return
            self._all.discard(connection)
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection.sock)
            waiting, connection.waiting = connection.waiting, {}
            peer = connection.peer
            if peer is not None and self._connections.get(peer.uid) is connection:
                del self._connections[peer.uid]
        connection.writer.fail(ConnectionError("the peer is gone"))
        connection.reader.close()
        connection.sock.close()
        for future in waiting.values():
            assert peer is not None
            resolver(future)(False, _peer_dead(peer), ())
        if peer is not None:
            self._announce_gone(peer.uid, connection.clean)

    def _announce_gone(self, uid: str, clean: bool) -> None:
        with self.lock:
            if uid in self._gone:
                return
            self._gone[uid] = clean
            for service in list(self._services.values()):
                service.on_peer_gone(uid, clean)

    def _tear_down(self) -> None:
        with self.lock:
            connections = list(self._all)
        for connection in connections:
            connection.clean = True
            self._drop(connection)
        self._announce_gone(self.address.uid, clean=True)  # for services that wait for this very process
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._selector.close()
        self._unix.close()
        self._tcp.close()
        wake_fd, self._wake_fd = self._wake_fd, -1  # a late wake must not write to a number in new use
        os.close(wake_fd)

    def _abandon_in_child(self) -> None:
        """After a fork: the child must not hold its parent's connections open past the parent's death."""
        self._closed = True
        for connection in self._all:
            connection.sock.close()
        self._close_descriptors()


def _left_the_job() -> PeerDeadError:
    return PeerDeadError("this process has left the job")


def _peer_dead(peer: EndpointAddress) -> PeerDeadError:
    return PeerDeadError(f"{peer.name} is gone")


def _allow_many_descriptors() -> None:
    """A queued large item holds a descriptor, and the usual soft limit is for programs of another kind."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _abandon_all_in_child() -> None:
    for endpoint in list(_live_endpoints):
        endpoint._abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all_in_child)
