"""Channels between endpoints and between real processes, one of which may be killed at any moment."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from headrace.core.errors import (
    ChannelClosedError,
    ChannelEmptyError,
    ChannelFullError,
    HeadraceError,
    PeerDeadError,
    WaitTimeoutError,
)
from headrace.system import Channel
from headrace.system.comm.channel import ChannelService
from headrace.system.comm.context import ChannelRef
from headrace.system.comm.endpoint import Endpoint
from headrace.system.runtime import session

TIMEOUT_S = 30.0

CHILD = """
import pickle, sys
from headrace.system import Channel, session
from headrace.system.comm.endpoint import Endpoint
from headrace.system.runtime.session import Session
from pathlib import Path
token, control_plane, ref = pickle.loads(bytes.fromhex(sys.argv[1]))
endpoint = Endpoint(name="child", node=sys.argv[3], token=token)
session.enter(Session(endpoint, control_plane, control_plane, 0, Path(".")))
channel = Channel(ref)
print("ready", flush=True)
exec(sys.argv[2])
"""


@pytest.fixture
def inline(tmp_path):
    with session.inline(tmp_path / "logs") as here:
        yield here


def _child(here: session.Session, ref: ChannelRef, code: str, node: str = "local") -> subprocess.Popen[str]:
    token = here.endpoint.token
    told = pickle.dumps((token, here.control_plane, ref)).hex()
    child = subprocess.Popen([sys.executable, "-c", CHILD, told, code, node], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def _in_thread(function, *args) -> Future:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args)
    pool.shutdown(wait=False)
    return future


def test_items_come_out_as_they_went_in(inline) -> None:
    channel = Channel.create("c")
    item = {"obs": np.arange(6).reshape(2, 3), "meta": ("a", None, 1.5), "empty": np.zeros((0, 2), np.uint8)}
    channel.put(item)
    item["obs"][:] = -1
    out = channel.get()
    np.testing.assert_array_equal(out["obs"], np.arange(6).reshape(2, 3))
    assert out["meta"] == ("a", None, 1.5)
    assert out["empty"].shape == (0, 2)
    assert out["obs"].flags.writeable


def test_a_name_finds_its_channel_even_before_it_is_created(inline) -> None:
    found = _in_thread(Channel.connect, "later")
    Channel.create("later").put(1)
    assert found.result(TIMEOUT_S).get() == 1


def test_a_name_that_nobody_creates_times_out(inline) -> None:
    with pytest.raises(WaitTimeoutError):
        Channel.connect("never", timeout_s=0.05)


def test_nowait_operations_refuse_instead_of_waiting(inline) -> None:
    channel = Channel.create("c", maxsize=1)
    with pytest.raises(ChannelEmptyError):
        channel.get_nowait()
    channel.put_nowait("a")
    with pytest.raises(ChannelFullError):
        channel.put_nowait("b")
    assert channel.full()
    assert channel.drain() == ["a"]
    assert channel.empty()
    assert channel.drain() == []


def test_a_get_that_times_out_loses_nothing(inline) -> None:
    channel = Channel.create("c")
    with pytest.raises(WaitTimeoutError):
        channel.get(timeout_s=0.05)
    channel.put("a")
    assert channel.get(timeout_s=TIMEOUT_S) == "a"


def test_iteration_ends_when_the_channel_is_closed_and_drained(inline) -> None:
    channel = Channel.create("c")
    for i in range(3):
        channel.put(i)
    channel.close()
    assert list(channel) == [0, 1, 2]
    with pytest.raises(ChannelClosedError):
        channel.put(3)


def test_async_operations_return_work_that_can_be_waited_for(inline) -> None:
    channel = Channel.create("c", maxsize=1)
    first = channel.put("a", async_op=True)
    second = channel.put("b", async_op=True)
    assert first is not None and second is not None
    first.wait(TIMEOUT_S)
    assert not second.done()
    assert channel.get() == "a"
    second.wait(TIMEOUT_S)
    assert channel.get(async_op=True).wait(TIMEOUT_S) == "b"


def test_printing_shows_a_summary_of_the_content(inline) -> None:
    channel = Channel.create("trajectories", maxsize=4)
    channel.put("a", weight=3, key="left")
    assert "trajectories" in str(channel)
    assert "left: 1 items, weight 3" in str(channel)


@pytest.mark.parametrize("node", ["local", "another"], ids=["unix socket", "tcp"])
@pytest.mark.parametrize("size", [10, 1_000_000], ids=["small", "large"])
def test_arrays_cross_processes_both_ways(inline, node: str, size: int) -> None:
    channel = Channel.create("there")
    back = Channel.create("back")
    code = f"channel2 = Channel.connect('back'); x = channel.get(); x *= 2; channel2.put({{'x': x, 'n': {size}}})"
    child = _child(inline, channel._ref, code, node)
    channel.put(np.arange(size, dtype=np.float64))
    answer = back.get(timeout_s=TIMEOUT_S)
    np.testing.assert_array_equal(answer["x"], 2.0 * np.arange(size))
    assert child.wait(TIMEOUT_S) == 0


def test_case_i2_a_killed_consumer_wakes_the_blocked_producer(inline) -> None:
    channel = Channel.create("c", maxsize=2)
    child = _child(inline, channel._ref, "channel.get(); channel.get(key='never')")
    for i in range(3):
        channel.put(i, timeout_s=TIMEOUT_S)
    blocked = _in_thread(channel.put, 3)
    child.kill()
    with pytest.raises(PeerDeadError):
        blocked.result(TIMEOUT_S)
    assert [channel.get_nowait(), channel.get_nowait()] == [1, 2]
    child.wait()


def test_case_i2_a_killed_producer_wakes_the_blocked_consumer(inline) -> None:
    channel = Channel.create("c", maxsize=2)
    child = _child(inline, channel._ref, "channel.put(1); channel.get(key='never')")
    assert channel.get(timeout_s=TIMEOUT_S) == 1
    blocked = _in_thread(channel.get)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(PeerDeadError):
        blocked.result(TIMEOUT_S)
    child.wait()


def test_a_killed_broker_fails_who_waits_for_it(inline, tmp_path) -> None:
    channel = Channel.create("ref")
    code = "Channel.create('hosted'); channel.put('up'); channel.get(key='never')"
    child = _child(inline, channel._ref, code)
    assert channel.get(timeout_s=TIMEOUT_S) == "up"
    hosted = Channel.connect("hosted", timeout_s=TIMEOUT_S)
    blocked = _in_thread(hosted.get)
    hosted.qsize()
    child.kill()
    with pytest.raises(PeerDeadError):
        blocked.result(TIMEOUT_S)
    child.wait()


def test_many_producers_and_consumers_lose_and_double_nothing(inline) -> None:
    channel = Channel.create("c", maxsize=3)
    peers = [
        Endpoint(name=f"peer {i}", node="local" if i % 2 else "tcp", token=inline.endpoint.token) for i in range(4)
    ]
    taken: list[tuple[int, int]] = []
    lock = threading.Lock()

    def produce(who: int) -> None:
        for i in range(50):
            peers[who].request(
                channel._ref.broker, "channel:c", ("put", "k", 0, True, None), _payload((who, i))
            ).result()

    def consume(who: int) -> None:
        for _ in range(50):
            answer = peers[who].request(channel._ref.broker, "channel:c", _get_head()).result()
            with lock:
                taken.append(answer.payloads[0].decode())

    threads = [threading.Thread(target=produce, args=(i,)) for i in (0, 1)]
    threads += [threading.Thread(target=consume, args=(i,)) for i in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(taken) == [(who, i) for who in (0, 1) for i in range(50)]
    for peer in peers:
        peer.close()


def test_a_stranger_without_the_token_is_not_let_in(inline) -> None:
    channel = Channel.create("c")
    stranger = Endpoint(name="stranger", node="tcp")
    with pytest.raises(PeerDeadError):
        stranger.request(channel._ref.broker, "channel:c", _get_head()).result(TIMEOUT_S)
    stranger.close()


def test_a_channel_without_its_service_says_so() -> None:
    a, b = Endpoint(name="a"), None
    b = Endpoint(name="b", token=a.token)
    with pytest.raises(PeerDeadError, match="serves no 'channel:c'"):
        b.request(a.address, "channel:c", _get_head()).result(TIMEOUT_S)
    a.serve("channel:c", ChannelService("c", 0, a))
    assert b.request(a.address, "channel:c", ("size", "k")).result(TIMEOUT_S).value == 0
    a.close()
    b.close()


def _get_head():
    from headrace.system.comm.broker import Take

    return ("get", "k", Take.ONE, 0, True, None)


def _payload(item):
    from headrace.system.comm.payload import Payload

    return Payload.of(item)


def test_who_waits_on_its_own_process_is_woken_when_it_leaves(tmp_path) -> None:
    with session.inline(tmp_path / "logs"):
        channel = Channel.create("c")
        blocked = _in_thread(channel.get)
        channel.qsize()
    with pytest.raises(PeerDeadError):
        blocked.result(TIMEOUT_S)


class _Clumsy:
    def on_request(self, request) -> None:
        raise KeyError("no such drawer")

    def on_peer_gone(self, peer: str, clean: bool) -> None: ...


def test_a_mistake_in_one_service_leaves_the_others_served(inline) -> None:
    inline.endpoint.serve("clumsy", _Clumsy())
    channel = Channel.create("c")
    peer = Endpoint(name="peer", token=inline.endpoint.token)
    with pytest.raises(HeadraceError, match="service 'clumsy' failed: KeyError"):
        peer.request(inline.endpoint.address, "clumsy", None).result(TIMEOUT_S)
    assert peer.request(channel._ref.broker, "channel:c", ("size", "k")).result(TIMEOUT_S).value == 0
    peer.close()
