"""Groups, messages and channels on four simulated nodes with eight devices each, in two node groups."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from headrace.core.errors import ConfigError, PeerDeadError, WaitTimeoutError, WorkerError
from headrace.system import (
    Channel,
    Cluster,
    ComponentPlacement,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Worker,
    WorkerGroup,
    concurrent,
)

pytestmark = pytest.mark.ray
TIMEOUT_S = 60.0


class Probe(Worker):
    """Tells what it sees, and does what it is told."""

    def seen(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "node": self.node_rank,
            "local": (self.local_rank, self.worker_info.rank),
            "devices": [device.local_rank for device in self.devices],
            "slots": os.environ.get("HEADRACE_VISIBLE_SLOTS"),
            "npus": os.environ.get("HEADRACE_VISIBLE_FAKE_NPU"),
            "group": os.environ.get("HEADRACE_TEST_GROUP"),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "pid": os.getpid(),
        }

    def say(self) -> None:
        print(f"out of {self.rank}")
        print(f"err of {self.rank}", file=sys.stderr)
        self.log_info(f"info of {self.rank}")
        self.log_warning(f"warning of {self.rank}")

    def put(self, channel: Channel, item: Any, n: int = 1) -> None:
        for _ in range(n):
            channel.put((self.rank, item))

    def get(self, channel: Channel, n: int = 1) -> list[Any]:
        return [channel.get(timeout_s=TIMEOUT_S) for _ in range(n)]

    def make_channel(self, name: str, node_rank: int | None = None) -> Channel:
        return self.create_channel(name, node_rank=node_rank)

    def relay(self, item: Any) -> Any:
        """Send to the next rank, receive from the one before."""
        self.send(item, self.group_name, (self.rank + 1) % self.world_size)
        return self.recv(self.group_name, (self.rank - 1) % self.world_size, timeout_s=TIMEOUT_S)

    def spread(self, groups: Any, item: Any = None) -> Any:
        return self.broadcast(item, groups=groups)

    async def wait_for(self, channel: Channel) -> Any:
        return await channel.get(async_op=True).async_wait()

    @concurrent
    def hear(self, group: str, rank: int) -> Any:
        return self.recv(group, rank)

    def fail(self) -> None:
        raise ValueError(f"rank {self.rank} is lost")

    def die(self) -> None:
        print("last words")
        os._exit(3)

    def lock(self, timeout_s: float = TIMEOUT_S) -> None:
        self.device_lock.acquire(timeout_s)

    def unlock(self) -> None:
        self.device_lock.release()

    def port(self) -> int:
        return self.acquire_free_port()

    def meet(self) -> tuple[str, int]:
        return self.rendezvous("here")

    def nested(self) -> list[int]:
        group = Probe.create_group().launch(Cluster(), NodePlacementStrategy([0, 1]), name=f"nested-{self.rank}")
        pids = [seen["node"] for seen in group.seen().wait(TIMEOUT_S)]
        group.shutdown()
        return pids


@pytest.fixture
def launch(cluster4: Cluster) -> Iterator[Any]:
    """Launch groups that end with the test."""
    groups: list[WorkerGroup[Probe]] = []

    def start(strategy: Any, name: str = "probe") -> WorkerGroup[Probe]:
        groups.append(Probe.create_group().launch(cluster4, strategy, name=name))
        return groups[-1]

    yield start
    for group in groups:
        group.shutdown()


def _seen(group: WorkerGroup[Probe], key: str) -> list[Any]:
    return [seen[key] for seen in group.seen().wait(TIMEOUT_S)]


def test_a_packed_group_sees_only_its_own_slots(launch) -> None:
    group = launch(PackedPlacementStrategy(6, 9, node_group="left"))
    seen = group.seen().wait(TIMEOUT_S)
    assert [s["node"] for s in seen] == [0, 0, 1, 1]
    assert [s["slots"] for s in seen] == ["6", "7", "0", "1"]
    assert [s["devices"] for s in seen] == [[6], [7], [0], [1]]
    assert {s["group"] for s in seen} == {"left"}
    assert {s["threads"] for s in seen} == {"1"}


def test_a_process_of_several_devices_and_devices_of_several_processes(launch) -> None:
    wide = launch(PackedPlacementStrategy(0, 3, num_hardware_per_process=2, stride=2, node_group="right"), "wide")
    assert _seen(wide, "npus") == ["0,2", "1,3"]
    assert _seen(wide, "node") == [2, 2]
    shared = launch(FlexiblePlacementStrategy([[8], [8], [9]], "right"), "shared")
    assert _seen(shared, "npus") == ["0", "0", "1"]
    assert _seen(shared, "node") == [3, 3, 3]


def test_node_placement_leaves_visibility_as_it_is(launch) -> None:
    group = launch(NodePlacementStrategy([0, 2, 2, 3]))
    assert _seen(group, "node") == [0, 2, 2, 3]
    assert _seen(group, "slots") == [None] * 4
    assert _seen(group, "npus") == [None] * 4
    assert _seen(group, "devices") == [[]] * 4


def test_components_are_placed_as_the_configuration_says(launch, cluster4: Cluster) -> None:
    config = {
        "cluster": {
            "component_placement": {
                "actor,critic": {"node_group": "right", "placement": "0-1:0-3"},
                "env": {"node_group": "node", "placement": "0-3:0-7"},
                "rollout": "0-1",
            }
        }
    }
    placement = ComponentPlacement(config, cluster4)
    assert placement.get_world_size("env") == 8
    actor = launch(placement.get_strategy("actor"), "actor")
    critic = launch(placement.get_strategy("critic"), "critic")
    assert _seen(actor, "npus") == _seen(critic, "npus") == ["0", "0", "1", "1"]
    assert _seen(launch(placement.get_strategy("env"), "env"), "node") == [0, 0, 1, 1, 2, 2, 3, 3]


def test_each_rank_has_its_log_and_warnings_reach_the_driver(
    launch, cluster4, caplog: pytest.LogCaptureFixture
) -> None:
    group = launch(NodePlacementStrategy([0, 3]), "talker")
    group.say().wait(TIMEOUT_S)
    for rank in (0, 1):
        text = (Path(cluster4.log_dir) / "talker" / f"rank_{rank}.log").read_text()
        for kind in ("out", "err", "info", "warning"):
            assert f"{kind} of {rank}" in text
        assert f"of {1 - rank}" not in text
    assert {"[talker 0] warning of 0", "[talker 1] warning of 1"} <= set(caplog.messages)
    assert "info of" not in caplog.text


@pytest.mark.parametrize("size", [10, 400_000], ids=["small", "large"])
@pytest.mark.parametrize("home", ["driver", "worker", "another node"])
def test_a_channel_crosses_nodes_wherever_its_broker_is(launch, home: str, size: int) -> None:
    group = launch(NodePlacementStrategy([0, 1, 2, 3]))
    name = f"{home}-{size}"
    if home == "driver":
        channel = Channel.create(name)
    else:
        rank = 1 if home == "worker" else 0
        group.execute_on(rank).make_channel(name, None if home == "worker" else 2).wait(TIMEOUT_S)
        channel = Channel.connect(name)
    putting = group.execute_on(0, 3).put(channel, np.arange(size), 2)
    (items,) = group.execute_on(2).get(channel, 4).wait(TIMEOUT_S)
    putting.wait(TIMEOUT_S)
    assert sorted(rank for rank, _ in items) == [0, 0, 3, 3]
    for _, array in items:
        np.testing.assert_array_equal(array, np.arange(size))


@pytest.mark.parametrize("size", [5, 400_000], ids=["small", "large"])
def test_messages_cross_nodes(launch, size: int) -> None:
    group = launch(NodePlacementStrategy([0, 1, 2, 3]))
    item = {"t": torch.arange(size, dtype=torch.float32), "meta": ("x", 1)}
    for received in group.relay(item).wait(TIMEOUT_S):
        assert torch.equal(received["t"], item["t"])
        assert received["meta"] == ("x", 1)


def test_a_broadcast_reaches_two_groups_on_all_nodes(launch) -> None:
    a, b = launch(NodePlacementStrategy([0, 1]), "a"), launch(NodePlacementStrategy([2, 3]), "b")
    groups = [("a", [0, 1]), ("b", [0, 1])]
    weights = torch.ones(100_000)
    handles = [a.execute_on(0).spread(groups, weights), a.execute_on(1).spread(groups), b.spread(groups)]
    for handle in handles:
        assert all(torch.equal(received, weights) for received in handle.wait(TIMEOUT_S))


def test_coroutines_wait_beside_other_calls(launch) -> None:
    group = launch(NodePlacementStrategy([1]))
    channel = Channel.create("async")
    waiting = group.wait_for(channel)
    assert len(group.seen().wait(TIMEOUT_S)) == 1
    channel.put("now")
    assert waiting.wait(TIMEOUT_S) == ["now"]


def test_a_failure_names_its_rank_and_leaves_the_others(launch) -> None:
    group = launch(NodePlacementStrategy([0, 1]))
    with pytest.raises(WorkerError, match=r"probe rank \d: fail\(\) failed: ValueError: rank \d is lost") as caught:
        group.fail().wait(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.log_path.endswith(f"probe/rank_{caught.value.rank}.log")
    assert len(group.seen().wait(TIMEOUT_S)) == 2


def test_a_death_names_its_rank_and_shows_the_end_of_its_log(launch) -> None:
    group = launch(NodePlacementStrategy([0, 1]))
    group.wait_ready(TIMEOUT_S)
    with pytest.raises(WorkerError, match="probe rank 1: die") as caught:
        group.execute_on(1).die().wait(TIMEOUT_S)
    assert "the process died" in caught.value.cause
    assert "last words" in caught.value.details


def test_who_waits_for_a_dying_worker_is_told(launch) -> None:
    group = launch(NodePlacementStrategy([0, 3]))
    group.wait_ready(TIMEOUT_S)
    hearing = group.execute_on(0).hear("probe", 1)
    with pytest.raises(WorkerError):
        group.execute_on(1).die().wait(TIMEOUT_S)
    with pytest.raises(WorkerError, match="probe:1 is gone") as caught:
        hearing.wait(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, PeerDeadError)


def test_a_channel_whose_last_producer_died_wakes_its_consumer(launch) -> None:
    group = launch(NodePlacementStrategy([2, 3]))
    channel = Channel.create("orphaned")
    group.execute_on(0).put(channel, "x").wait(TIMEOUT_S)
    assert channel.get(timeout_s=TIMEOUT_S) == (0, "x")
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(channel.get)
        with pytest.raises(WorkerError):
            group.execute_on(0).die().wait(TIMEOUT_S)
        with pytest.raises(PeerDeadError):
            blocked.result(TIMEOUT_S)


def test_groups_that_share_a_device_take_turns_and_a_dead_holder_gives_it_back(launch) -> None:
    place = FlexiblePlacementStrategy([[3]], "left")
    first, second = launch(place, "first"), launch(place, "second")
    first.lock().wait(TIMEOUT_S)
    with pytest.raises(WorkerError) as caught:
        second.lock(0.05).wait(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, WaitTimeoutError)
    waiting = second.lock()
    with pytest.raises(WorkerError):
        first.die().wait(TIMEOUT_S)
    waiting.wait(TIMEOUT_S)
    second.unlock().wait(TIMEOUT_S)


def test_ports_are_distinct_and_ranks_meet(launch) -> None:
    group = launch(NodePlacementStrategy([0, 0, 0, 1]))
    assert len(set(group.port().wait(TIMEOUT_S))) == 4
    places = group.meet().wait(TIMEOUT_S)
    assert len(set(places)) == 1


def test_a_group_is_found_by_its_name(launch) -> None:
    launch(NodePlacementStrategy([0, 1]), "known").wait_ready(TIMEOUT_S)
    found = WorkerGroup.from_group_name(Probe, "known")
    assert _seen(found, "rank") == [0, 1]
    with pytest.raises(ConfigError, match="no worker of that group"):
        WorkerGroup.from_group_name(Probe, "unknown")


def test_a_worker_launches_a_group_of_its_own(launch) -> None:
    assert launch(NodePlacementStrategy([2])).nested().wait(TIMEOUT_S) == [[0, 1]]


def test_a_shut_down_group_leaves_no_process_and_its_name_free(launch) -> None:
    group = launch(NodePlacementStrategy([0, 3]))
    processes = [psutil.Process(pid) for pid in _seen(group, "pid")]
    group.shutdown()
    assert psutil.wait_procs(processes, timeout=TIMEOUT_S)[1] == []
    again = launch(NodePlacementStrategy([0]))
    assert _seen(again, "rank") == [0]


def test_many_items_between_nodes_leak_neither_descriptors_nor_threads(launch) -> None:
    group = launch(NodePlacementStrategy([0, 3]))
    channel = Channel.create("soak", maxsize=8)
    group.wait_ready(TIMEOUT_S)

    def exchange(n: int) -> None:
        putting = group.execute_on(1).put(channel, np.zeros(40_000), n)
        group.execute_on(0).get(channel, n).wait(TIMEOUT_S)
        putting.wait(TIMEOUT_S)

    exchange(20)
    before = psutil.Process().num_fds(), threading.active_count()
    exchange(200)
    after = psutil.Process().num_fds(), threading.active_count()
    assert after[0] <= before[0] + 4
    assert after[1] <= before[1] + 2
