"""The channel's state machine, against a model that is a plain list."""

from __future__ import annotations

from collections import defaultdict, deque

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.system.comm.broker import Accept, ChannelState, Deliver, Get, Put, Reason, Refuse, Take


def _put(state: ChannelState, ticket: int, item: object, **fields):
    return state.put(Put(ticket, fields.pop("peer", "producer"), fields.pop("key", "k"), item, **fields))


def _get(state: ChannelState, ticket: int, **fields):
    return state.get(Get(ticket, fields.pop("peer", "consumer"), fields.pop("key", "k"), **fields))


def test_a_put_is_delivered_to_the_first_waiter() -> None:
    state = ChannelState()
    assert _get(state, 1) == []
    assert _get(state, 2) == []
    assert _put(state, 3, "a") == [Accept(3), Deliver(1, ("a",))]
    assert _put(state, 4, "b") == [Accept(4), Deliver(2, ("b",))]


def test_a_full_channel_holds_the_producer_back_until_an_item_leaves() -> None:
    state = ChannelState(maxsize=1)
    assert _put(state, 1, "a") == [Accept(1)]
    assert _put(state, 2, "b") == []
    assert _put(state, 3, "c", wait=False) == [Refuse(3, Reason.FULL)]
    assert _get(state, 4) == [Deliver(4, ("a",)), Accept(2)]


def test_keys_do_not_block_each_other() -> None:
    state = ChannelState(maxsize=1)
    _put(state, 1, "a", key=0)
    assert _put(state, 2, "b", key=1) == [Accept(2)]
    assert _get(state, 3, key=1) == [Deliver(3, ("b",))]


def test_a_non_blocking_get_of_an_empty_key_is_refused() -> None:
    assert _get(ChannelState(), 1, wait=False) == [Refuse(1, Reason.EMPTY)]


def test_close_refuses_producers_and_lets_consumers_drain() -> None:
    state = ChannelState(maxsize=1)
    _put(state, 1, "a")
    _put(state, 2, "b")
    assert state.close() == [Refuse(2, Reason.CLOSED)]
    assert _get(state, 3) == [Deliver(3, ("a",))]
    assert _get(state, 4) == [Refuse(4, Reason.CLOSED)]
    assert _put(state, 5, "c") == [Refuse(5, Reason.CLOSED)]


def test_close_wakes_waiting_consumers() -> None:
    state = ChannelState()
    _get(state, 1)
    assert state.close() == [Refuse(1, Reason.CLOSED)]


def test_case_i2_the_death_of_the_last_consumer_frees_a_blocked_producer() -> None:
    state = ChannelState(maxsize=2)
    _put(state, 1, "a")
    _get(state, 2)
    for ticket in (3, 4):
        _put(state, ticket, ticket)
    assert _put(state, 5, "late") == []
    assert state.peer_gone("consumer", clean=False) == [Refuse(5, Reason.PEER_DEAD)]
    assert state.size("k") == 2, "what was accepted is still there for a new consumer"
    assert _get(state, 6, peer="another") == [Deliver(6, (3,))]


def test_case_i2_the_death_of_the_last_producer_frees_a_blocked_consumer() -> None:
    state = ChannelState()
    _put(state, 1, "a")
    _get(state, 2)
    assert _get(state, 3) == []
    assert state.peer_gone("producer", clean=False) == [Refuse(3, Reason.PEER_DEAD)]


def test_a_producer_that_leaves_in_order_leaves_consumers_waiting_for_others() -> None:
    state = ChannelState()
    _put(state, 1, "a")
    _get(state, 2)
    _get(state, 3)
    assert state.peer_gone("producer", clean=True) == []
    assert _put(state, 4, "b", peer="another") == [Accept(4), Deliver(3, ("b",))]


def test_puts_of_a_dead_producer_that_were_accepted_stay() -> None:
    state = ChannelState()
    _put(state, 1, "a")
    state.peer_gone("producer", clean=False)
    assert _get(state, 2) == [Deliver(2, ("a",))]


def test_a_deadline_refuses_only_who_still_waits() -> None:
    state = ChannelState()
    _get(state, 1)
    assert state.expire("k", 1) == [Refuse(1, Reason.TIMEOUT)]
    assert state.expire("k", 1) == []
    _get(state, 2)
    assert _put(state, 3, "a") == [Accept(3), Deliver(2, ("a",))]
    assert state.expire("k", 2) == []


def test_an_oversize_first_item_comes_alone() -> None:
    state = ChannelState()
    _put(state, 1, "big", weight=10)
    _put(state, 2, "small", weight=1)
    assert _get(state, 3, take=Take.WEIGHT, amount=4) == [Deliver(3, ("big",))]


def test_a_batch_by_weight_waits_for_its_weight() -> None:
    state = ChannelState()
    _put(state, 1, "a", weight=2)
    assert _get(state, 2, take=Take.WEIGHT, amount=4) == []
    assert _put(state, 3, "b", weight=2) == [Accept(3), Deliver(2, ("a", "b"))]


def test_a_batch_by_weight_takes_what_is_there_when_no_more_can_come() -> None:
    state = ChannelState(maxsize=1)
    _put(state, 1, "a", weight=1)
    assert _get(state, 2, take=Take.WEIGHT, amount=9) == [Deliver(2, ("a",))]


def test_available_takes_all_up_to_its_limit() -> None:
    state = ChannelState()
    for ticket in range(3):
        _put(state, ticket, ticket)
    assert _get(state, 10, take=Take.AVAILABLE, amount=2) == [Deliver(10, (0, 1))]
    assert _get(state, 11, take=Take.AVAILABLE) == [Deliver(11, (2,))]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 12))
def test_a_batch_by_weight_is_never_empty_and_never_too_heavy(weights: list[int], target: int) -> None:
    state = ChannelState()
    for ticket, weight in enumerate(weights):
        _put(state, ticket, weight, weight=weight)
    state.close()
    taken: list[int] = []
    while len(taken) < len(weights):
        (instruction,) = _get(state, 100, take=Take.WEIGHT, amount=target)
        assert isinstance(instruction, Deliver)
        assert instruction.items
        assert len(instruction.items) == 1 or sum(instruction.items) <= target
        taken += instruction.items
    assert taken == weights


class ChannelMachine(RuleBasedStateMachine):
    """Random puts, gets, deadlines and deaths: every accepted item is delivered once, in order, or still there."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ChannelState(maxsize=2)
        self.ticket = 0
        self.next_item: dict[int, int] = defaultdict(int)
        self.pending_puts: dict[int, tuple[int, int, str]] = {}
        self.pending_gets: dict[int, tuple[int, str]] = {}
        self.queued: dict[int, deque[int]] = defaultdict(deque)
        self.settled: set[int] = set()

    def _apply(self, instructions: list) -> None:
        for instruction in instructions:
            assert instruction.ticket not in self.settled, "one instruction a ticket"
            self.settled.add(instruction.ticket)
            if isinstance(instruction, Accept):
                key, item, _ = self.pending_puts.pop(instruction.ticket)
                self.queued[key].append(item)
            elif isinstance(instruction, Deliver):
                key, _ = self.pending_gets.pop(instruction.ticket)
                for item in instruction.items:
                    assert self.queued[key].popleft() == item, "first in, first out"
            else:
                self.pending_puts.pop(instruction.ticket, None)
                self.pending_gets.pop(instruction.ticket, None)

    @rule(key=st.integers(0, 1), peer=st.sampled_from("pq"), wait=st.booleans())
    def put(self, key: int, peer: str, wait: bool) -> None:
        self.ticket += 1
        item = self.next_item[key]
        self.next_item[key] += 1
        self.pending_puts[self.ticket] = (key, item, peer)
        self._apply(self.state.put(Put(self.ticket, peer, key, item, 1, wait)))

    @rule(key=st.integers(0, 1), peer=st.sampled_from("cd"), take=st.sampled_from(Take), wait=st.booleans())
    def get(self, key: int, peer: str, take: Take, wait: bool) -> None:
        self.ticket += 1
        self.pending_gets[self.ticket] = (key, peer)
        self._apply(self.state.get(Get(self.ticket, peer, key, take, 2, wait)))

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        waiting = {
            **{t: k for t, (k, *_) in self.pending_puts.items()},
            **{t: k for t, (k, _) in self.pending_gets.items()},
        }
        if waiting:
            ticket = data.draw(st.sampled_from(sorted(waiting)))
            self._apply(self.state.expire(waiting[ticket], ticket))

    @rule(peer=st.sampled_from("pqcd"), clean=st.booleans())
    def leave(self, peer: str, clean: bool) -> None:
        for ticket, entry in list(self.pending_puts.items()):
            if entry[2] == peer:
                del self.pending_puts[ticket]
        for ticket, get in list(self.pending_gets.items()):
            if get[1] == peer:
                del self.pending_gets[ticket]
        self._apply(self.state.peer_gone(peer, clean))

    @invariant()
    def bound_is_kept(self) -> None:
        for key in (0, 1):
            assert self.state.size(key) == len(self.queued[key]) <= 2

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for key, _ in self.pending_gets.values():
            assert len(self.queued[key]) < 2


TestChannelMachine = ChannelMachine.TestCase
