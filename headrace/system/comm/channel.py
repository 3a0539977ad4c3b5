"""Channels: named, bounded, multi-producer multi-consumer queues with keys and weights."""

from __future__ import annotations

import itertools
import time
from collections.abc import Hashable, Iterator
from typing import Any

from headrace.core.errors import (
    ChannelClosedError,
    ChannelEmptyError,
    ChannelFullError,
    PeerDeadError,
    WaitTimeoutError,
)
from headrace.system.comm import context
from headrace.system.comm.broker import Accept, ChannelState, Deliver, Get, Instruction, Put, Reason, Take
from headrace.system.comm.context import ChannelRef
from headrace.system.comm.endpoint import Endpoint
from headrace.system.comm.payload import Payload
from headrace.system.comm.service import Answer, Request
from headrace.system.comm.work import AsyncWork

DEFAULT_KEY = "default"
CONNECT_TIMEOUT_S = 60.0


class ChannelService:
    """Serves one channel: carries the broker's instructions out. Payloads pass through it unopened."""

    def __init__(self, name: str, maxsize: int, endpoint: Endpoint) -> None:
        self._name = name
        self._state = ChannelState(maxsize)
        self._endpoint = endpoint
        self._waiting: dict[int, Request] = {}
        self._tickets = itertools.count()

    def on_request(self, request: Request) -> None:
        operation, *args = request.head
        if operation == "put":
            key, weight, wait, timeout_s = args
            ticket = self._admit(request, key, timeout_s)
            self._carry_out(self._state.put(Put(ticket, request.peer, key, request.payload, weight, wait)))
        elif operation == "get":
            key, take, amount, wait, timeout_s = args
            ticket = self._admit(request, key, timeout_s)
            self._carry_out(self._state.get(Get(ticket, request.peer, key, take, amount, wait)))
        elif operation == "size":
            request.answer(self._state.size(args[0]))
        elif operation == "summary":
            request.answer((self._state.closed, self._state.summary()))
        else:
            self._carry_out(self._state.close())
            request.answer()

    def on_peer_gone(self, peer: str, clean: bool) -> None:
        self._waiting = {ticket: r for ticket, r in self._waiting.items() if r.peer != peer}
        self._carry_out(self._state.peer_gone(peer, clean))

    def _admit(self, request: Request, key: Hashable, timeout_s: float | None) -> int:
        ticket = next(self._tickets)
        self._waiting[ticket] = request
        if timeout_s is not None:
            # The deadline is kept here, where the item is: a get that times out can not lose what it was given.
            self._endpoint.call_at(
                time.monotonic() + timeout_s, lambda: self._carry_out(self._state.expire(key, ticket))
            )
        return ticket

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            request = self._waiting.pop(instruction.ticket)  # type: ignore[arg-type]  # tickets are our own ints
            if isinstance(instruction, Accept):
                request.answer()
            elif isinstance(instruction, Deliver):
                request.answer(payloads=instruction.items)
            else:
                request.fail(self._refusal(instruction.reason))

    def _refusal(self, reason: Reason) -> Exception:
        name = f"channel '{self._name}'"
        return {
            Reason.FULL: ChannelFullError(f"{name} is full"),
            Reason.EMPTY: ChannelEmptyError(f"{name} is empty"),
            Reason.CLOSED: ChannelClosedError(f"{name} is closed"),
            Reason.TIMEOUT: WaitTimeoutError(f"{name}: nothing moved before the deadline"),
            Reason.PEER_DEAD: PeerDeadError(f"{name}: the last process at the other side died"),
        }[reason]


class Channel:
    """A named queue between any processes of a job. Picklable: pass it to workers, or `connect` by name.

    Every key has its own FIFO of at most `maxsize` items (0: unbounded). Every operation may raise
    `ChannelClosedError` (closed, and for a consumer drained), `PeerDeadError` (the last process at the other
    side, or the broker, died) and, with `timeout_s`, `WaitTimeoutError`. With `async_op` it returns an `AsyncWork`.
    """

    def __init__(self, ref: ChannelRef) -> None:
        self._ref = ref
        self._service = f"channel:{ref.name}"

    @classmethod
    def create(
        cls, name: str, maxsize: int = 0, distributed: bool = False, node_rank: int | None = None, local: bool = False
    ) -> Channel:
        """Create a channel whose broker lives in this process, or on node `node_rank`.

        One broker serves every key whether `distributed` or not, and a `local` channel is one like any other:
        both are promises about where it is used, accepted for callers that make them.
        """
        del distributed, local
        return cls(context.current().host_channel(name, maxsize, node_rank))

    @classmethod
    def connect(cls, name: str, current_worker: object = None, timeout_s: float = CONNECT_TIMEOUT_S) -> Channel:
        """The channel called `name`, created in any process of the job.

        Raises:
            WaitTimeoutError: no such channel within `timeout_s`.
        """
        del current_worker  # the process knows who it is
        return cls(context.current().find_channel(name, timeout_s))

    @property
    def name(self) -> str:
        return self._ref.name

    @property
    def maxsize(self) -> int:
        return self._ref.maxsize

    @property
    def is_local(self) -> bool:
        """Whether the broker is in this process."""
        return self._ref.broker.uid == context.current().endpoint.address.uid

    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncWork[None] | None:
        """Append `item`; blocks while `key` holds `maxsize` items. The item is copied: it may change afterwards."""
        work = self._ask(("put", key, weight, True, timeout_s), lambda answer: None, Payload.of(item))
        return work if async_op else work.wait()

    def put_nowait(self, item: Any, weight: int = 0, key: Hashable = DEFAULT_KEY) -> None:
        """Append `item` or raise `ChannelFullError`."""
        self._ask(("put", key, weight, False, None), lambda answer: None, Payload.of(item)).wait()

    def get(self, key: Hashable = DEFAULT_KEY, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Take the oldest item of `key`; blocks while there is none."""
        work = self._ask(("get", key, Take.ONE, 0, True, timeout_s), _only_item)
        return work if async_op else work.wait()

    def get_nowait(self, key: Hashable = DEFAULT_KEY) -> Any:
        """Take the oldest item or raise `ChannelEmptyError`."""
        return self._ask(("get", key, Take.ONE, 0, False, None), _only_item).wait()

    def get_batch(
        self,
        target_weight: int = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Items in order, as many as fit in `target_weight`, once that much weight is there (or no more can come).

        Never empty: a first item heavier than `target_weight` comes alone.
        """
        work = self._ask(("get", key, Take.WEIGHT, target_weight, True, timeout_s), _all_items)
        return work if async_op else work.wait()

    def get_available(
        self,
        max_items: int = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Wait for one item, then take with it all that are there, `max_items` at most (0: no limit)."""
        work = self._ask(("get", key, Take.AVAILABLE, max_items, True, timeout_s), _all_items)
        return work if async_op else work.wait()

    def drain(self, key: Hashable = DEFAULT_KEY) -> list[Any]:
        """Take all that is there now; perhaps nothing."""
        try:
            return self._ask(("get", key, Take.AVAILABLE, 0, False, None), _all_items).wait()
        except ChannelEmptyError:
            return []

    def qsize(self, key: Hashable = DEFAULT_KEY) -> int:
        """Items that wait under `key`."""
        return self._ask(("size", key), lambda answer: answer.value).wait()

    def empty(self, key: Hashable = DEFAULT_KEY) -> bool:
        return self.qsize(key) == 0

    def full(self, key: Hashable = DEFAULT_KEY) -> bool:
        return 0 < self.maxsize <= self.qsize(key)

    def close(self) -> None:
        """No more puts: waiting producers get `ChannelClosedError`, consumers drain what is there first."""
        self._ask(("close",), lambda answer: None).wait()

    def items(self, key: Hashable = DEFAULT_KEY) -> Iterator[Any]:
        """Every item of `key` until the channel is closed and drained."""
        while True:
            try:
                item = self.get(key)
            except ChannelClosedError:
                return
            yield item

    def __iter__(self) -> Iterator[Any]:
        return self.items()

    def __str__(self) -> str:
        closed, queues = self._ask(("summary",), lambda answer: answer.value).wait()
        lines = [f"Channel '{self.name}' ({'closed' if closed else 'open'}, maxsize {self.maxsize or 'unbounded'})"]
        for key, (items, weight, puts, gets) in sorted(queues.items(), key=lambda entry: str(entry[0])):
            lines.append(f"  {key}: {items} items, weight {weight}; waiting: {puts} producers, {gets} consumers")
        return "\n".join(lines)

    def _ask(self, head: Any, finish: Any, payload: Payload | None = None) -> AsyncWork[Any]:
        future = context.current().endpoint.request(self._ref.broker, self._service, head, payload)
        return AsyncWork(future, finish)


def _only_item(answer: Answer) -> Any:
    (payload,) = answer.payloads
    return payload.decode()


def _all_items(answer: Answer) -> list[Any]:
    return [payload.decode() for payload in answer.payloads]
