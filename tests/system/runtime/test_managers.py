"""The five managers as state machines."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.errors import HeadraceError, PeerDeadError
from headrace.system.comm.service import EndpointAddress
from headrace.system.runtime.address import WorkerAddress, WorkerInfo
from headrace.system.runtime.managers import DeviceLockManager, PortLockManager, WorkerManager


def _info(name: str, rank: int = 0) -> WorkerInfo:
    endpoint = EndpointAddress("uid", "node", "unix", "127.0.0.1", 1, name)
    return WorkerInfo(WorkerAddress(name, rank), rank, 2, endpoint, 0, "127.0.0.1", "cpu", (), 1, "log")


def test_a_worker_that_is_looked_for_is_found_when_it_registers() -> None:
    manager = WorkerManager()
    waiting = manager.find("me", WorkerAddress("env", 0))
    assert not waiting.done
    manager.register("its process", _info("env"))
    assert waiting.done


def test_a_worker_whose_process_is_gone_is_dead_not_absent() -> None:
    manager = WorkerManager()
    manager.register("its process", _info("env"))
    manager.peer_gone("its process", clean=False)
    with pytest.raises(PeerDeadError):
        manager.find("me", WorkerAddress("env", 0))
    manager.register("a new process", _info("env"))
    assert manager.find("me", WorkerAddress("env", 0)).done


def test_a_worker_that_left_in_order_or_is_launched_again_is_waited_for() -> None:
    manager = WorkerManager()
    manager.register("its process", _info("env"))
    manager.peer_gone("its process", clean=True)
    assert not manager.find("me", WorkerAddress("env", 0)).done
    manager.register("another process", _info("env"))
    manager.peer_gone("another process", clean=False)
    manager.expect("driver", "env")
    assert not manager.find("me", WorkerAddress("env", 0)).done


def test_a_group_lists_its_workers_by_rank() -> None:
    manager = WorkerManager()
    for rank in (1, 0):
        manager.register(f"p{rank}", _info("env", rank))
    manager.register("p", _info("rollout"))
    assert [info.rank for info in manager.group("me", "env")] == [0, 1]


def test_a_released_lock_wakes_the_first_waiter() -> None:
    manager = DeviceLockManager()
    device = frozenset({"gpu0"})
    assert manager.acquire("a", "w0", device).done
    second, third = manager.acquire("b", "w1", device), manager.acquire("c", "w2", device)
    manager.release("a", "w0")
    assert (second.done, third.done) == (True, False)


def test_a_lock_is_all_devices_or_none() -> None:
    manager = DeviceLockManager()
    manager.acquire("a", "w0", frozenset({1}))
    both = manager.acquire("b", "w1", frozenset({0, 1}))
    assert not both.done
    assert manager.holders("any") == {1: "a/w0"}


def test_a_wide_request_is_not_overtaken_for_ever_by_narrow_ones() -> None:
    manager = DeviceLockManager()
    manager.acquire("a", "w0", frozenset({1}))
    wide = manager.acquire("b", "w1", frozenset({0, 1}))
    narrow = manager.acquire("c", "w2", frozenset({0}))
    assert not narrow.done
    manager.release("a", "w0")
    assert wide.done and not narrow.done
    manager.release("b", "w1")
    assert narrow.done


def test_a_dead_owner_gives_its_locks_and_its_place_back() -> None:
    manager = DeviceLockManager()
    device = frozenset({0})
    manager.acquire("a", "w0", device)
    manager.acquire("b", "w1", device)
    last = manager.acquire("c", "w2", device)
    manager.peer_gone("b", clean=False)
    manager.peer_gone("a", clean=False)
    assert last.done


def test_asking_twice_for_a_device_that_one_holds_is_refused() -> None:
    manager = DeviceLockManager()
    manager.acquire("a", "w0", frozenset({0}))
    with pytest.raises(HeadraceError, match="w0 holds device 0 already"):
        manager.acquire("a", "w0", frozenset({0, 1}))


def test_a_port_is_leased_once_until_its_owner_is_gone() -> None:
    manager = PortLockManager()
    assert manager.lease("a", "host", 5000)
    assert not manager.lease("b", "host", 5000)
    assert manager.lease("b", "other host", 5000)
    manager.peer_gone("a", clean=False)
    assert manager.lease("b", "host", 5000)


class LockMachine(RuleBasedStateMachine):
    """No device has two holders, and no one waits for devices that are all free."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = DeviceLockManager()
        self.waiting: dict[str, tuple[frozenset[int], object]] = {}

    @rule(who=st.sampled_from("abcd"), devices=st.frozensets(st.integers(0, 3), min_size=1))
    def acquire(self, who: str, devices: frozenset[int]) -> None:
        if who not in self.waiting:
            self.waiting[who] = (devices, self.manager.acquire(who, who, devices))

    @rule(who=st.sampled_from("abcd"))
    def leave(self, who: str) -> None:
        self.manager.peer_gone(who, clean=False)
        self.waiting.pop(who, None)

    @invariant()
    def holders_are_those_granted(self) -> None:
        held = {d: f"{who}/{who}" for who, (devices, w) in self.waiting.items() if w.done for d in devices}
        granted = sum(len(devices) for devices, w in self.waiting.values() if w.done)
        assert len(held) == granted, "no device is granted twice"
        assert self.manager.holders("") == held

    @invariant()
    def someone_gets_on(self) -> None:
        if self.waiting:
            assert any(w.done for _, w in self.waiting.values())


TestLockMachine = LockMachine.TestCase
