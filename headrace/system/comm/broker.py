"""The state of a channel, as a pure machine: events in, instructions out; no clock, no socket, no thread.

A channel is a set of bounded FIFO queues, one a key. Producers and consumers are processes (their endpoint's uid).
Every put and get carries a ticket; each ticket gets exactly one instruction: `Accept`, `Deliver` or `Refuse`.
Items are opaque here (a payload's reference, never its bytes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Ticket = Hashable


class Take(Enum):
    """How much a get takes: one item; items up to a total weight; all that is there (at least one)."""

    ONE = "one"
    WEIGHT = "weight"
    AVAILABLE = "available"


class Reason(Enum):
    FULL = "full"
    EMPTY = "empty"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    PEER_DEAD = "peer dead"


@dataclass(frozen=True, slots=True)
class Put:
    ticket: Ticket
    peer: str
    key: Hashable
    item: Any
    weight: int = 0
    wait: bool = True


@dataclass(frozen=True, slots=True)
class Get:
    """`amount`: the total weight for Take.WEIGHT, the most items for Take.AVAILABLE (0: no limit)."""

    ticket: Ticket
    peer: str
    key: Hashable
    take: Take = Take.ONE
    amount: int = 0
    wait: bool = True


@dataclass(frozen=True, slots=True)
class Accept:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Deliver:
    ticket: Ticket
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    ticket: Ticket
    reason: Reason


Instruction = Accept | Deliver | Refuse


@dataclass(slots=True)
class _Queue:
    items: deque[tuple[Any, int]] = field(default_factory=deque)
    weight: int = 0
    puts: deque[Put] = field(default_factory=deque)
    gets: deque[Get] = field(default_factory=deque)

    def idle(self) -> bool:
        return not (self.items or self.puts or self.gets)


@dataclass(slots=True)
class _Side:
    """The processes at one side. `bereft`: its last one died, so waiting for this side is in vain."""

    alive: set[str] = field(default_factory=set)
    bereft: bool = False

    def join(self, peer: str) -> None:
        self.alive.add(peer)
        self.bereft = False

    def leave(self, peer: str, clean: bool) -> None:
        if peer in self.alive:
            self.alive.discard(peer)
            self.bereft = not self.alive and not clean


class ChannelState:
    """`maxsize`: the most items a key holds; 0 means no bound."""

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize = maxsize
        self.closed = False
        self._queues: dict[Hashable, _Queue] = {}
        self._producers = _Side()
        self._consumers = _Side()

    def put(self, event: Put) -> list[Instruction]:
        """Accept, hold back (the queue is full and `wait`), or refuse an item."""
        self._producers.join(event.peer)
        if self.closed:
            return [Refuse(event.ticket, Reason.CLOSED)]
        queue = self._queues.setdefault(event.key, _Queue())
        if not self._has_room(queue) and not event.wait:
            return [Refuse(event.ticket, Reason.FULL)]
        queue.puts.append(event)
        return self._settle(event.key)

    def get(self, event: Get) -> list[Instruction]:
        """Deliver, hold back (nothing there and `wait`), or refuse."""
        self._consumers.join(event.peer)
        queue = self._queues.setdefault(event.key, _Queue())
        queue.gets.append(event)
        instructions = self._settle(event.key)
        if not event.wait and event in queue.gets:
            queue.gets.remove(event)
            instructions.append(Refuse(event.ticket, Reason.CLOSED if self.closed else Reason.EMPTY))
            self._forget_if_idle(event.key)
        return instructions

    def expire(self, key: Hashable, ticket: Ticket) -> list[Instruction]:
        """A deadline passed: refuse the ticket if it still waits."""
        queue = self._queues.get(key)
        if queue is None:
            return []
        for waiting in (queue.puts, queue.gets):
            for event in waiting:
                if event.ticket == ticket:
                    waiting.remove(event)  # type: ignore[arg-type]  # each deque holds its own kind
                    return [Refuse(ticket, Reason.TIMEOUT), *self._settle(key)]
        return []

    def close(self) -> list[Instruction]:
        """No more puts. What is queued can still be taken; waiting producers are refused."""
        self.closed = True
        instructions: list[Instruction] = []
        for key, queue in list(self._queues.items()):
            instructions += [Refuse(p.ticket, Reason.CLOSED) for p in queue.puts]
            queue.puts.clear()
            instructions += self._settle(key)
        return instructions

    def peer_gone(self, peer: str, clean: bool) -> list[Instruction]:
        """A process left: forget its requests; if it was the last of its side and died, free who waits for it."""
        self._producers.leave(peer, clean)
        self._consumers.leave(peer, clean)
        instructions: list[Instruction] = []
        for key, queue in list(self._queues.items()):
            queue.puts = deque(p for p in queue.puts if p.peer != peer)
            queue.gets = deque(g for g in queue.gets if g.peer != peer)
            instructions += self._settle(key)
        return instructions

    def size(self, key: Hashable) -> int:
        queue = self._queues.get(key)
        return len(queue.items) if queue else 0

    def summary(self) -> dict[Hashable, tuple[int, int, int, int]]:
        """Per key: items, their weight, producers that wait, consumers that wait."""
        return {key: (len(q.items), q.weight, len(q.puts), len(q.gets)) for key, q in self._queues.items()}

    def _has_room(self, queue: _Queue) -> bool:
        return not self.maxsize or len(queue.items) < self.maxsize

    def _settle(self, key: Hashable) -> list[Instruction]:
        """Match producers, items and consumers of one key until nothing moves."""
        queue = self._queues[key]
        instructions: list[Instruction] = []
        moved = True
        while moved:
            moved = False
            while queue.puts and self._has_room(queue):
                event = queue.puts.popleft()
                queue.items.append((event.item, event.weight))
                queue.weight += event.weight
                instructions.append(Accept(event.ticket))
                moved = True
            if queue.gets and self._satisfiable(queue, queue.gets[0]):
                event = queue.gets.popleft()
                instructions.append(Deliver(event.ticket, self._take(queue, event)))
                moved = True
        instructions += self._hopeless(queue)
        self._forget_if_idle(key)
        return instructions

    def _satisfiable(self, queue: _Queue, get: Get) -> bool:
        if not queue.items:
            return False
        if get.take is not Take.WEIGHT or queue.weight >= get.amount:
            return True
        # No more can come: what is there is all there will be.
        return self.closed or self._producers.bereft or not self._has_room(queue)

    def _take(self, queue: _Queue, get: Get) -> tuple[Any, ...]:
        """At least one item. By weight: as many as fit in `amount`; an oversize first item comes alone."""
        taken, weight = [], 0
        while queue.items:
            item, item_weight = queue.items[0]
            if taken and not self._goes_on(get, len(taken), weight, item_weight):
                break
            queue.items.popleft()
            queue.weight -= item_weight
            weight += item_weight
            taken.append(item)
        return tuple(taken)

    @staticmethod
    def _goes_on(get: Get, count: int, weight: int, next_weight: int) -> bool:
        if get.take is Take.WEIGHT:
            return weight < get.amount and weight + next_weight <= get.amount
        return get.take is Take.AVAILABLE and (not get.amount or count < get.amount)

    def _hopeless(self, queue: _Queue) -> list[Instruction]:
        """Refuse those who wait for what cannot come."""
        instructions: list[Instruction] = []
        if queue.puts and self._consumers.bereft:
            instructions += [Refuse(p.ticket, Reason.PEER_DEAD) for p in queue.puts]
            queue.puts.clear()
        if queue.gets and (self.closed or self._producers.bereft):
            reason = Reason.CLOSED if self.closed else Reason.PEER_DEAD
            instructions += [Refuse(g.ticket, reason) for g in queue.gets]
            queue.gets.clear()
        return instructions

    def _forget_if_idle(self, key: Hashable) -> None:
        queue = self._queues.get(key)
        if queue is not None and queue.idle():
            del self._queues[key]
