"""What endpoints exchange: addresses, requests, answers, and the port that services implement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.system.comm.payload import Payload

Reply = Callable[[bool, Any, tuple[Payload, ...]], None]


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Where a process listens. `uid` is unique; `node` says who can use the Unix socket `unix`."""

    uid: str
    node: str
    unix: str
    host: str
    port: int
    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request returns: a small value and, for data, payloads."""

    value: Any = None
    payloads: tuple[Payload, ...] = ()


@dataclass(slots=True)
class Request:
    """A call from `peer` on a service. `answer` and `fail` may come later, from any thread, once."""

    peer: str
    head: Any
    payload: Payload | None
    _reply: Reply | None

    def answer(self, value: Any = None, payloads: tuple[Payload, ...] = ()) -> None:
        if self._reply is not None:
            self._reply(True, value, payloads)

    def fail(self, error: Exception) -> None:
        if self._reply is not None:
            self._reply(False, error, ())


class Service(Protocol):
    """Something an endpoint serves. Both run under the endpoint's lock and must not block."""

    def on_request(self, request: Request) -> None: ...

    def on_peer_gone(self, peer: str, clean: bool) -> None: ...


def resolver(future: Future[Answer]) -> Reply:
    """The reply that settles `future`."""

    def resolve(ok: bool, value: Any, payloads: tuple[Payload, ...]) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled by its owner: nobody waits any more
            if ok:
                future.set_result(Answer(value, payloads))
            else:
                future.set_exception(value)

    return resolve
