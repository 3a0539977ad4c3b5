"""Programs as one writes them for RLinf 0.3's scheduler, with nothing changed but where the names come from.

Several shapes: queues with weights and keys, tensors point to point, broadcasts, coroutines, placement by
configuration, timers; and the cases in which a caller is told instead of left waiting.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from headrace.core.errors import PeerDeadError, PlacementError, WorkerError
from headrace.system import (
    Channel,
    Cluster,
    ComponentPlacement,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Worker,
    WorkerAddress,
)

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster(cluster4: Cluster):
    """As a program for one node begins; the simulated cluster is the Ray that is there already."""
    with Cluster(num_nodes=1) as cluster:
        yield cluster


# -- queues ------------------------------------------------------------------------------------------------------


class Producer(Worker):
    def __init__(self, count: int):
        super().__init__()
        self.count = count

    def produce(self, channel: Channel):
        works = []
        for i in range(self.count):
            item = {"tokens": torch.full((4,), i), "rank": self._rank}
            works.append(channel.put(item, weight=i + 1, key=i % 2, async_op=True))
        for work in works:
            work.wait()
        return self._rank

    def fill(self, channel: Channel):
        channel.put_nowait("only")
        try:
            channel.put_nowait("one too many")
        except asyncio.QueueFull:
            return "full"


class Consumer(Worker):
    def consume(self, channel: Channel):
        odd = [channel.get(key=1)["tokens"][0].item() for _ in range(2)]
        even = channel.get_batch(target_weight=4, key=0)
        return odd, [item["tokens"][0].item() for item in even]

    def connect_and_empty(self, name: str):
        channel = self.connect_channel(name)
        first = channel.get_nowait()
        try:
            channel.get_nowait()
        except asyncio.QueueEmpty:
            return first, channel.empty(), channel.qsize(), channel.full()


def test_a_producer_and_a_consumer_with_weights_and_keys(cluster: Cluster) -> None:
    producer = Producer.create_group(4).launch(cluster, name="producer", placement_strategy=NodePlacementStrategy([0]))
    consumer = Consumer.create_group().launch(cluster, name="consumer", placement_strategy=NodePlacementStrategy([0]))
    channel = Channel.create("queue", maxsize=8)
    handle = producer.produce(channel)
    assert consumer.consume(channel).wait() == [([1, 3], [0, 2])]
    assert handle.wait() == [0]
    assert handle.done()
    small = Channel.create("small", maxsize=1)
    assert producer.fill(small).wait() == ["full"]
    assert consumer.connect_and_empty("small").wait() == [("only", True, 0, False)]
    producer.shutdown()
    consumer.shutdown()


# -- tensors point to point --------------------------------------------------------------------------------------


class Ping(Worker):
    def play(self, rounds: int):
        tensor = torch.zeros(3)
        for _ in range(rounds):
            self.send_tensor(tensor, "pong", self._rank)
            self.recv_tensor(tensor, "pong", self._rank)
        return tensor

    def send_many(self, n: int):
        works = [
            self.send({"i": i, "x": np.full(5, i)}, dst_group_name="pong", dst_rank=0, async_op=True) for i in range(n)
        ]
        for work in works:
            work.wait()


class Pong(Worker):
    def play(self, rounds: int):
        for _ in range(rounds):
            tensor = self.recv("ping", self._rank)
            self.send(tensor + 1, "ping", self._rank)

    def receive_many(self, n: int):
        works = [self.recv(src_group_name="ping", src_rank=0, async_op=True) for _ in range(n)]
        return [work.wait()["i"] for work in works]


def test_tensors_go_back_and_forth_between_pairs(cluster: Cluster) -> None:
    strategy = PackedPlacementStrategy(start_hardware_rank=0, end_hardware_rank=1)
    ping = Ping.create_group().launch(cluster=cluster, name="ping", placement_strategy=strategy)
    pong = Pong.create_group().launch(cluster=cluster, name="pong", placement_strategy=strategy)
    other = pong.play(5)
    assert all(torch.equal(tensor, torch.full((3,), 5.0)) for tensor in ping.play(5).wait())
    other.wait()
    received = pong.execute_on(0).receive_many(6)
    ping.execute_on(0).send_many(6).wait()
    assert received.wait() == [[0, 1, 2, 3, 4, 5]]
    ping.shutdown()
    pong.shutdown()


# -- broadcast and weights ---------------------------------------------------------------------------------------


class Actor(Worker):
    def __init__(self):
        super().__init__()
        self.weights = {"w": torch.ones(2, 2) * (self._rank + 1)}

    def sync(self):
        groups = [("actor", 0), ("rollout", [0, 1, 2])]
        if self._rank == 0:
            self.broadcast(self.weights, groups=groups)


class Rollout(Worker):
    def sync(self):
        weights = self.broadcast(groups=[("actor", 0), ("rollout", [0, 1, 2])], src=("actor", 0))
        return weights["w"].sum().item()


def test_weights_are_broadcast_to_another_group(cluster: Cluster) -> None:
    actor = Actor.create_group().launch(cluster, name="actor", placement_strategy=NodePlacementStrategy([0, 0]))
    rollout = Rollout.create_group().launch(
        cluster, name="rollout", placement_strategy=NodePlacementStrategy([0, 1, 2])
    )
    receiving = rollout.sync()
    actor.sync().wait()
    assert receiving.wait() == [4.0, 4.0, 4.0]
    actor.shutdown()
    rollout.shutdown()


# -- coroutines --------------------------------------------------------------------------------------------------


class AsyncServer(Worker):
    async def serve(self, requests: Channel, answers: Channel, n: int):
        async def answer():
            number = await requests.get(async_op=True).async_wait()
            await answers.put(number * 2, async_op=True).async_wait()

        await asyncio.gather(*(answer() for _ in range(n)))
        return n

    def status(self):
        return "alive"


def test_coroutines_share_a_worker_with_other_calls(cluster: Cluster) -> None:
    server = AsyncServer.create_group().launch(cluster, name="server", placement_strategy=NodePlacementStrategy([1]))
    requests, answers = Channel.create("requests"), Channel.create("answers")
    handle = server.serve(requests, answers, 3)
    assert server.status().wait() == ["alive"]
    for i in range(3):
        requests.put(i)

    async def collect():
        return sorted([await answers.get(async_op=True).async_wait() for _ in range(3)])

    assert asyncio.run(collect()) == [0, 2, 4]
    assert asyncio.run(handle.async_wait()) == [3]
    server.shutdown()


# -- an embodied loop by configuration ---------------------------------------------------------------------------


class EnvRole(Worker):
    def __init__(self, cfg: Any):
        super().__init__()
        self.steps = cfg["steps"]

    @Worker.timer("interact")
    def interact(self, input_channel: Channel, output_channel: Channel, replay_channel: Channel):
        obs = np.zeros(2)
        trajectory = []
        for _ in range(self.steps):
            output_channel.put({"rank": self._rank, "obs": obs})
            with self.worker_timer("wait"):
                action = input_channel.get(key=self._rank)
            obs = obs + action
            trajectory.append(obs.copy())
        replay_channel.put({"rank": self._rank, "obs": np.stack(trajectory)}, weight=self.steps)
        return self.pop_execution_times()


class PolicyRole(Worker):
    def generate(self, input_channel: Channel, output_channel: Channel, total: int):
        for _ in range(total):
            message = input_channel.get()
            output_channel.put(np.ones(2), key=message["rank"])


class LearnerRole(Worker):
    def train(self, replay_channel: Channel, weight: int):
        batch = replay_channel.get_batch(target_weight=weight)
        self.log_on_first_rank(f"trained on {len(batch)}")
        return sorted((item["rank"], item["obs"][-1].tolist()) for item in batch)


def test_an_embodied_loop_placed_by_configuration(cluster: Cluster) -> None:
    cfg = OmegaConf.create(
        {
            "cluster": {
                "num_nodes": 1,
                "component_placement": {
                    "env": {"node_group": "node", "placement": "0-1:0-1"},
                    "rollout": "0",
                    "actor": "1",
                },
            },
            "env": {"steps": 4},
        }
    )
    placement = ComponentPlacement(cfg, cluster)
    groups = {}
    for name, role, args in (
        ("env", EnvRole, (OmegaConf.to_container(cfg.env),)),
        ("rollout", PolicyRole, ()),
        ("actor", LearnerRole, ()),
    ):
        strategy = placement.get_strategy(name)
        groups[name] = role.create_group(*args).launch(cluster, name=f"{name}_role", placement_strategy=strategy)
    env_channel, rollout_channel, actor_channel = (Channel.create(name) for name in ("Env", "Rollout", "Actor"))
    env_handle = groups["env"].interact(
        input_channel=rollout_channel, output_channel=env_channel, replay_channel=actor_channel
    )
    rollout_handle = groups["rollout"].generate(env_channel, rollout_channel, total=8)
    (trained,) = groups["actor"].train(actor_channel, weight=8).wait()
    assert trained == [(0, [4.0, 4.0]), (1, [4.0, 4.0])]
    for times in env_handle.wait():
        assert set(times) >= {"wait"}
    rollout_handle.wait()
    assert set(env_handle.consume_durations()) == {"interact"}
    assert groups["env"].worker_info_list[1].address == WorkerAddress("env_role", ranks=1)
    for group in groups.values():
        group.shutdown()


class Where(Worker):
    def devices_seen(self):
        return [device.local_rank for device in self.devices], self.worker_address.get_name(), self.get_parent_rank()


def test_strategies_by_their_keywords(cluster: Cluster) -> None:
    strategy = PackedPlacementStrategy(start_hardware_rank=0, end_hardware_rank=3, num_hardware_per_process=2)
    group = Where.create_group().launch(cluster, placement_strategy=strategy, name="where")
    assert group.devices_seen().wait() == [([0, 1], "where:0", 0), ([2, 3], "where:1", 0)]
    group.shutdown()
    strategy = FlexiblePlacementStrategy([[0, 1], [2]])
    group = Where.create_group().launch(cluster, placement_strategy=strategy, name="where")
    assert [seen for seen, *_ in group.devices_seen().wait()] == [[0, 1], [2]]
    group.shutdown()


# -- told, not left waiting --------------------------------------------------------------------------------------


class Mortal(Worker):
    def take_one_and_die(self, channel: Channel):
        channel.get()
        import os

        os._exit(1)

    def raises(self):
        raise RuntimeError("shape mismatch")


def test_a_dead_consumer_is_noticed_by_a_blocked_producer(cluster: Cluster) -> None:
    mortal = Mortal.create_group().launch(cluster, name="mortal", placement_strategy=NodePlacementStrategy([0]))
    channel = Channel.create("doomed", maxsize=1)
    dying = mortal.take_one_and_die(channel)
    channel.put(1)
    with pytest.raises(WorkerError):
        dying.wait()
    with pytest.raises(PeerDeadError):
        for i in range(3):
            channel.put(i)
    mortal.shutdown()


def test_a_result_of_a_failed_call_is_its_error(cluster: Cluster) -> None:
    mortal = Mortal.create_group().launch(cluster, name="mortal", placement_strategy=NodePlacementStrategy([0, 0]))
    with pytest.raises(WorkerError, match="shape mismatch"):
        mortal.raises().wait()
    mortal.shutdown()


@pytest.mark.parametrize("text", ["", "0-3:4-7", "1:30"])
def test_placements_that_mean_nothing_are_refused(cluster: Cluster, text: str) -> None:
    with pytest.raises(PlacementError, match=r"component_placement\.actor"):
        ComponentPlacement({"cluster": {"component_placement": {"actor": text}}}, cluster)
