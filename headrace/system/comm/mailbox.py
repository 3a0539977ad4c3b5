"""Point to point: every worker has a mailbox; messages of one sender and stream arrive in order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from headrace.core.errors import PeerDeadError
from headrace.system.comm.endpoint import Endpoint
from headrace.system.comm.payload import Payload
from headrace.system.comm.service import Request

Source = tuple[str, Hashable]  # the sender's name, and the stream that keeps p2p and broadcasts apart


def service_name(worker_name: str) -> str:
    """The service under which a worker's mailbox is reachable."""
    return f"mailbox:{worker_name}"


class Mailbox:
    """Messages that arrived before they were asked for, and receivers that asked before they arrived."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._lock = endpoint.lock
        self._arrived: dict[Source, deque[Payload]] = defaultdict(deque)
        self._receivers: dict[Source, deque[Future[Payload]]] = defaultdict(deque)
        self._home: dict[Source, str] = {}
        self._dead: set[str] = set()

    def on_request(self, request: Request) -> None:
        source: Source = request.head
        assert request.payload is not None
        receivers = self._receivers[source]
        while receivers:
            with suppress(InvalidStateError):  # withdrawn: the next one gets it
                receivers.popleft().set_result(request.payload)
                return
        self._arrived[source].append(request.payload)

    def on_peer_gone(self, peer: str, clean: bool) -> None:
        del clean  # either way nothing more comes
        self._dead.add(peer)
        for source, receivers in self._receivers.items():
            if self._home.get(source) == peer:
                while receivers:
                    _fail(receivers.popleft(), source)

    def receive(self, source: Source, home: str) -> Future[Payload]:
        """The next message of `source`, whose process is `home` (an endpoint's uid)."""
        future: Future[Payload] = Future()
        with self._lock:
            self._home[source] = home
            if self._arrived[source]:
                future.set_result(self._arrived[source].popleft())
            elif home in self._dead:
                _fail(future, source)
            else:
                self._receivers[source].append(future)
        return future


def _fail(future: Future[Payload], source: Source) -> None:
    with suppress(InvalidStateError):
        future.set_exception(PeerDeadError(f"{source[0]} is gone and sent nothing more"))
