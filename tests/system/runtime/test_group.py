"""Workers and groups inside one process: the same classes and calls as on a cluster."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.core.errors import ConfigError, WaitTimeoutError, WorkerError
from headrace.system import Channel, Scatter, Worker, WorkerAddress, concurrent, session

TIMEOUT_S = 30.0


class Counter(Worker):
    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.total = start
        self.opened = threading.Event()

    def add(self, x: int = 1) -> int:
        self.total += x
        return self.total

    def who(self) -> tuple[str, int, int, str]:
        return self.group_name, self.rank, self.world_size, self.get_name()

    def fail(self) -> None:
        raise KeyError("lost")

    def unsendable(self) -> object:
        return threading.Lock()

    @concurrent
    def wait_for_door(self) -> bool:
        return self.opened.wait(TIMEOUT_S)

    @concurrent
    def open_door(self) -> None:
        self.opened.set()

    async def slow_sum(self, channel: Channel) -> int:
        first = await channel.get(async_op=True).async_wait()
        await asyncio.sleep(0)
        return first + await channel.get(async_op=True).async_wait()

    def echo_to(self, group: str, item: object) -> None:
        self.send(item, group, 0)

    def hear_from(self, group: str) -> object:
        return self.recv(group, 0, timeout_s=TIMEOUT_S)

    def hear_into(self, group: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self.recv_tensor(torch.zeros(shape), group, 0)

    def spread(self, groups: list, item: object = None) -> object:
        return self.broadcast(item, groups=groups)

    @Worker.timer("work")
    def timed(self) -> dict[str, float]:
        with self.worker_timer("inner"):
            pass
        return {}

    def times(self) -> dict[str, float]:
        return self.pop_execution_times()

    def port(self) -> int:
        return self.acquire_free_port()

    def warn(self) -> None:
        self.log_warning("mind the gap")


class Broken(Worker):
    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("no such robot")

    def use(self) -> None: ...


@pytest.fixture
def job(tmp_path: Path):
    with session.inline(tmp_path / "logs") as here:
        yield here


def test_a_group_call_returns_one_result_a_rank(job) -> None:
    group = Counter.create_group(5).launch(name="counter")
    assert group.add(2).wait(TIMEOUT_S) == [7]
    assert group.add().wait(TIMEOUT_S) == [8]
    assert group.who().wait(TIMEOUT_S) == [("counter", 0, 1, "counter:0")]


def test_a_failure_names_group_rank_method_log_and_traceback(job) -> None:
    group = Counter.create_group().launch(name="counter")
    with pytest.raises(WorkerError) as caught:
        group.fail().wait(TIMEOUT_S)
    error = caught.value
    assert (error.group, error.rank, error.method) == ("counter", 0, "fail")
    assert "KeyError: 'lost'" in str(error)
    assert "counter/rank_0.log" in str(error)
    assert "raise KeyError" in error.details
    assert isinstance(error.__cause__, KeyError)
    assert group.add().wait(TIMEOUT_S) == [1], "a failed call leaves the worker usable"


def test_a_failed_constructor_is_the_result_of_every_call(job) -> None:
    group = Broken.create_group().launch()
    for _ in range(2):
        with pytest.raises(WorkerError, match="no such robot"):
            group.use().wait(TIMEOUT_S)
    with pytest.raises(WorkerError, match="no such robot"):
        group.wait_ready(TIMEOUT_S)


def test_a_result_that_cannot_be_sent_is_an_error_not_a_hang(job) -> None:
    with pytest.raises(WorkerError, match="cannot be sent"):
        Counter.create_group().launch().unsendable().wait(TIMEOUT_S)


def test_ordinary_calls_wait_their_turn_and_concurrent_ones_do_not(job) -> None:
    group = Counter.create_group().launch()
    waiting = group.wait_for_door()
    assert group.add().wait(TIMEOUT_S) == [1]
    assert not waiting.done()
    group.open_door().wait(TIMEOUT_S)
    assert waiting.wait(TIMEOUT_S) == [True]


def test_a_wait_that_reaches_its_deadline_names_the_ranks(job) -> None:
    group = Counter.create_group().launch(name="counter")
    waiting = group.wait_for_door()
    with pytest.raises(WaitTimeoutError, match=r"counter.wait_for_door\(\): ranks \[0\]"):
        waiting.wait(0.05)
    group.open_door()
    assert waiting.wait(TIMEOUT_S) == [True]


def test_a_wait_ends_when_a_call_it_depends_on_fails(job) -> None:
    group = Counter.create_group().launch()
    other = Counter.create_group().launch(name="other")
    waiting = group.wait_for_door()
    with pytest.raises(WorkerError, match="other rank 0"):
        waiting.wait(TIMEOUT_S, unless_failed=[other.fail()])
    group.open_door().wait(TIMEOUT_S)


def test_coroutines_run_on_the_workers_loop(job) -> None:
    channel = Channel.create("numbers")
    handle = Counter.create_group().launch().slow_sum(channel)
    channel.put(1)
    channel.put(2)
    assert handle.wait(TIMEOUT_S) == [3]


def test_arguments_are_scattered_by_rank(job) -> None:
    group = Counter.create_group().launch()
    assert group.add(Scatter([7])).wait(TIMEOUT_S) == [7]
    with pytest.raises(ConfigError, match="give 1 values"):
        group.add(Scatter([1, 2]))


def test_a_method_that_does_not_exist_is_refused_with_the_nearest_name(job) -> None:
    with pytest.raises(AttributeError, match="did you mean 'add'"):
        Counter.create_group().launch().ad()


def test_a_name_is_used_once(job) -> None:
    first = Counter.create_group().launch(name="one")
    with pytest.raises(ConfigError, match="a group of that name is running"):
        Counter.create_group().launch(name="one")
    first.shutdown()
    Counter.create_group().launch(name="one")
    with pytest.raises(ConfigError, match="launch it before"):
        first.add()


def test_ranks_outside_the_group_are_refused(job) -> None:
    group = Counter.create_group().launch()
    assert group.execute_on(0).add().wait(TIMEOUT_S) == [1]
    with pytest.raises(ConfigError, match="ranks 0 to 0"):
        group.execute_on(1)


def test_messages_arrive_in_order_and_as_copies(job) -> None:
    a, b = Counter.create_group().launch(name="a"), Counter.create_group().launch(name="b")
    item = {"x": np.arange(3)}
    for i in range(3):
        a.echo_to("b", {**item, "i": i})
    got = [b.hear_from("a").wait(TIMEOUT_S)[0] for _ in range(3)]
    assert [message["i"] for message in got] == [0, 1, 2]
    np.testing.assert_array_equal(got[0]["x"], [0, 1, 2])


def test_a_receiver_may_ask_before_the_message_is_sent(job) -> None:
    a, b = Counter.create_group().launch(name="a"), Counter.create_group().launch(name="b")
    hearing = b.hear_from("a")
    a.echo_to("b", "late").wait(TIMEOUT_S)
    assert hearing.wait(TIMEOUT_S) == ["late"]


def test_a_tensor_is_received_in_place_and_its_shape_checked(job) -> None:
    a, b = Counter.create_group().launch(name="a"), Counter.create_group().launch(name="b")
    a.echo_to("b", torch.ones(2)).wait(TIMEOUT_S)
    assert torch.equal(b.hear_into("a", (2,)).wait(TIMEOUT_S)[0], torch.ones(2))
    a.echo_to("b", torch.ones(2)).wait(TIMEOUT_S)
    with pytest.raises(WorkerError, match=r"a:0 sent shape \(2,\)"):
        b.hear_into("a", (3,)).wait(TIMEOUT_S)


def test_a_broadcast_reaches_every_group_from_the_first(job) -> None:
    groups = [Counter.create_group().launch(name=name) for name in "abc"]
    members = [("a", 0), ("b", [0]), ("c", (0,))]
    handles = [groups[0].spread(members, {"w": 1}), groups[1].spread(members), groups[2].spread(members)]
    assert [handle.wait(TIMEOUT_S) for handle in handles] == [[{"w": 1}]] * 3


def test_timers_are_read_once(job) -> None:
    group = Counter.create_group().launch()
    group.timed().wait(TIMEOUT_S)
    assert set(group.times().wait(TIMEOUT_S)[0]) == {"work", "inner"}
    assert group.times().wait(TIMEOUT_S) == [{}]
    handle = group.timed()
    assert set(handle.consume_durations()) == {"timed"}


def test_ports_are_leased_once(job) -> None:
    a, b = Counter.create_group().launch(name="a"), Counter.create_group().launch(name="b")
    ports = a.port().wait(TIMEOUT_S) + b.port().wait(TIMEOUT_S)
    assert all(1024 < port < 65536 for port in ports)


def test_a_warning_is_in_the_log_and_at_the_driver(job, caplog: pytest.LogCaptureFixture) -> None:
    Counter.create_group().launch(name="counter").warn().wait(TIMEOUT_S)
    assert "[counter 0] mind the gap" in caplog.messages
    assert "mind the gap" in (job.log_dir / "counter" / "rank_0.log").read_text()


@pytest.mark.parametrize(
    ("name", "group", "path"), [("env:3", "env", (3,)), ("env:3:1", "env", (3, 1)), ("env", "env", ())]
)
def test_an_address_and_its_name_are_the_same_thing(name: str, group: str, path: tuple[int, ...]) -> None:
    address = WorkerAddress(group, path)
    assert address.get_name() == name
    assert WorkerAddress.from_name(name) == address
    assert address.get_child_address(2).get_parent_address() == address
