"""The cluster as a job meets it: placed actors, reservations, other jobs, and an end that leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.core.errors import ClusterError, ConfigError, ResourceError
from headrace.system.cluster import connection
from headrace.system.cluster.cluster import Cluster, ClusterSnapshot
from headrace.system.cluster.config import ClusterConfig
from headrace.system.cluster.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
)

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 60.0

# -- without Ray -----------------------------------------------------------------------------------------------------


@pytest.fixture
def attached(machines: Any, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster in a process that only knows it."""
    made = machines({"GPU": 2}, {})
    snapshot = ClusterSnapshot(ClusterConfig(), tuple(made.nodes), made.groups, "job", tmp_path, tmp_path / "logs")
    before, Cluster._open = Cluster._open, []
    yield Cluster.attach(snapshot)
    Cluster._open = before


def test_a_process_finds_the_cluster_that_it_has(attached: Cluster) -> None:
    assert Cluster() is attached
    assert Cluster.has_initialized()
    attached.shutdown()
    assert not Cluster.has_initialized()


def test_a_snapshot_is_the_same_cluster_elsewhere(attached: Cluster) -> None:
    again = Cluster.attach(attached.snapshot())
    assert (again.nodes, again.namespace, again.log_dir) == (attached.nodes, "headrace-job", attached.log_dir)
    assert (again.num_nodes, again.num_accelerators, again.accelerator_ranks) == (2, 2, [[0, 1], []])
    assert again.get_node_ip(1) == again.get_node_info(1).node_ip == "10.0.0.1"


def test_what_is_not_there_is_named(attached: Cluster) -> None:
    with pytest.raises(ConfigError, match="did you mean 'cluster'"):
        attached.get_node_group("clusters")
    with pytest.raises(ConfigError, match="nodes 0 to 1"):
        attached.get_node_info(2)


def test_a_cluster_ends_in_reverse_order_once_whatever_fails(attached: Cluster) -> None:
    ended: list[str] = []

    def fail() -> None:
        raise RuntimeError("cannot end")

    attached.on_shutdown(lambda: ended.append("first"))
    attached.on_shutdown(fail)
    attached.on_shutdown(lambda: ended.append("last"))
    with pytest.raises(RuntimeError, match="cannot end"):
        attached.shutdown()
    assert ended == ["last", "first"]
    attached.shutdown()
    assert ended == ["last", "first"]


def test_one_configuration_is_enough() -> None:
    with pytest.raises(ConfigError, match="another name of config"):
        Cluster(ClusterConfig(), cluster_cfg={"num_nodes": 1})


@pytest.mark.parametrize(
    ("nodes", "wanted", "problem"),
    [
        ([("10.0.0.1", True)], 1, None),
        ([("10.0.0.1", True), ("10.0.0.2", False)], 0, None),
        ([("10.0.0.1", True), ("10.0.0.2", False)], 4, "cluster.num_nodes = 4, but 2 joined: 10.0.0.1, 10.0.0.2"),
        ([("10.0.0.2", False)], 1, "the head of the Ray cluster is not alive"),
    ],
)
def test_nodes_are_counted_and_the_head_is_looked_for(
    nodes: list[tuple[str, bool]], wanted: int, problem: str | None
) -> None:
    alive = [
        {"NodeManagerAddress": address, "Resources": {connection.HEAD_RESOURCE: 1.0} if head else {}}
        for address, head in nodes
    ]
    found = connection.nodes_problem(alive, wanted)
    assert found == problem or (problem is not None and found is not None and found.startswith(problem))


# -- an address that does not answer ---------------------------------------------------------------------------------


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that is connected to no Ray yet."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def test_an_address_where_nobody_listens_is_named(unconnected: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses, and nobody else gets the port
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match=address):
            connection.connect(ClusterConfig(address=address))


def test_an_address_where_somebody_else_listens_is_named(unconnected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"{address}.*as a Ray head"):
            connection.connect(ClusterConfig(address=address))


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":1"])
def test_an_address_that_is_none_is_refused(unconnected: None, address: str) -> None:
    with pytest.raises(ClusterError, match="host:port"):
        connection.connect(ClusterConfig(address=address))


# -- on four simulated nodes -----------------------------------------------------------------------------------------


def where(strategies: list[Any]) -> list[str]:
    """The Ray ids of the nodes on which actors with these strategies run."""
    import ray

    class Probe:
        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

    actor = ray.remote(num_cpus=0)(Probe)
    actors = [actor.options(scheduling_strategy=strategy).remote() for strategy in strategies]
    asked: list[Any] = [probe.node.remote() for probe in actors]  # type: ignore[attr-defined]
    return ray.get(asked, timeout=TIMEOUT_S)


def free(resource: str) -> list[float]:
    from ray._private.state import available_resources_per_node

    return sorted(node.get(resource, 0.0) for node in available_resources_per_node().values())


def wait_until_free(resource: str, expected: list[float]) -> None:
    """Ray gives resources back a moment after it was asked to, and tells nobody."""
    pause, deadline = threading.Event(), time.monotonic() + TIMEOUT_S
    while free(resource) != expected and time.monotonic() < deadline:
        pause.wait(0.02)
    assert free(resource) == expected


def slot(cluster: Cluster, *ranks: int) -> list[Placement]:
    return FlexiblePlacementStrategy([[rank] for rank in ranks]).get_placement(cluster)


@pytest.mark.ray
def test_a_probe_tells_what_each_node_is(cluster4: Cluster) -> None:
    assert [node.node_rank for node in cluster4.nodes] == [0, 1, 2, 3]
    assert [dict(node.env_vars) for node in cluster4.nodes] == [{"HEADRACE_TEST_RACK": f"rack-{i}"} for i in range(4)]
    assert [node.is_head for node in cluster4.nodes] == [True, False, False, False]
    assert {len(node.cpu_slots) for node in cluster4.nodes} == {8}
    assert {node.python_interpreter_path for node in cluster4.nodes} == {sys.executable}
    assert [group.label for group in cluster4.node_groups] == ["cluster", "node", "left", "right"]
    counts = {group.label: (group.hardware_type, group.hardware_resource_count) for group in cluster4.node_groups}
    assert counts == {"cluster": ("cpu", 32), "node": (None, 4), "left": ("cpu", 16), "right": ("fake_npu", 16)}
    assert not cluster4.owns_ray


@pytest.mark.ray
def test_placed_actors_run_on_the_nodes_of_their_devices(cluster4: Cluster) -> None:
    config = {
        "env": {"node_group": "left", "placement": "7-8"},
        "actor": {"node_group": "right", "placement": "6-9:0-1"},
        "agent": {"node_group": "node", "placement": "1,3"},
    }
    components = ComponentPlacement({"component_placement": config}, cluster4)
    placements = [p for name in components.components for p in components.get_strategy(name).get_placement(cluster4)]
    assert [p.node_rank for p in placements] == [0, 1, 2, 3, 1, 3]
    assert [p.local_device_ranks for p in placements] == [(7,), (0,), (6, 7), (0, 1), (), ()]
    assert placements[2].visible_env["HEADRACE_VISIBLE_FAKE_NPU"] == "6,7"
    assert placements[0].env_vars == {"HEADRACE_TEST_GROUP": "left"}
    assert where(cluster4.reserve(placements)) == [p.node_id for p in placements]


@pytest.mark.ray
def test_a_reserved_device_is_taken_from_ray_once_and_given_back(cluster4: Cluster) -> None:
    with Cluster(replace(cluster4.config, address=None), run_dir=cluster4.run_dir) as job:
        devices = PackedPlacementStrategy(3, 4, node_group="right").get_placement(job)
        before = free("fake_npu")
        first = job.reserve(devices)
        again = job.reserve([devices[0], devices[0]])
        assert sum(before) - sum(free("fake_npu")) == 2
        assert len({strategy.placement_group.id for strategy in (*first, *again)}) == 2
        assert Cluster() is job
    wait_until_free("fake_npu", before)


@pytest.mark.ray
def test_a_device_is_kept_while_one_of_two_clusters_of_a_process_has_it(cluster4: Cluster) -> None:
    before = free("CPU")
    one, other = (Cluster(replace(cluster4.config, address=None), run_dir=cluster4.run_dir) for _ in range(2))
    with other:
        with one:
            one.reserve(slot(one, 20))
            strategies = other.reserve(slot(other, 20))
        assert where(strategies) == [other.nodes[2].ray_id]
    wait_until_free("CPU", before)


@pytest.mark.ray
def test_more_than_a_node_has_is_refused_with_amounts_and_nothing_is_kept(cluster4: Cluster) -> None:
    """Case I3."""
    before = free("CPU")
    (wish,) = slot(cluster4, 25)
    wish = replace(wish, devices=tuple(replace(wish.devices[0], local_rank=rank) for rank in range(64)))
    with pytest.raises(ResourceError, match=r"node 3 \(.*\): needs 64 CPU, available .* of 8"):
        cluster4.reserve([wish])
    wait_until_free("CPU", before)


@pytest.mark.ray
def test_another_job_waits_and_then_is_told_who_has_what(cluster4: Cluster) -> None:
    """Two jobs on one Ray never hold one device, and one takes what the other leaves."""
    cluster4.reserve(slot(cluster4, 26, 27))
    script = """
        from headrace.core.errors import ResourceError
        from headrace.system.cluster.placement import FlexiblePlacementStrategy
        with Cluster(ClusterConfig(address=ADDRESS, reserve_timeout_s=3)) as job:
            wish = lambda *ranks: FlexiblePlacementStrategy([[rank] for rank in ranks]).get_placement(job)
            try:
                job.reserve(wish(25, 26))
                refused = ""
            except ResourceError as error:
                refused = str(error)
            strategies = job.reserve(wish(25, 28))
            say(refused=refused, reserved=len(strategies), owns=job.owns_ray)
    """
    told, _ = run_job(script, address=cluster4.address)
    assert "another job holds cpu 2 of node 3" in told["refused"]
    assert "needs 2 CPU" in told["refused"]
    assert (told["reserved"], told["owns"]) == (2, False)


@pytest.mark.ray
def test_nodes_that_never_come_are_waited_for_so_long(cluster4: Cluster) -> None:
    config = ClusterConfig(num_nodes=5, startup_timeout_s=0.2)
    with pytest.raises(ClusterError, match="num_nodes = 5, but 4 joined"):
        Cluster(config)
    assert cluster4.num_nodes == 4


@pytest.mark.ray
def test_a_process_is_connected_to_one_ray_only(cluster4: Cluster) -> None:
    with pytest.raises(ClusterError, match="is connected to Ray at"):
        Cluster(ClusterConfig(address="127.0.0.1:1"))


# -- an own Ray, in a process of its own -----------------------------------------------------------------------------

PRELUDE = """
import json, os, signal, sys
from headrace.system.cluster.cluster import Cluster
from headrace.system.cluster.config import ClusterConfig
# A shell that runs in the background has its children ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
ADDRESS = {address!r}
def say(**what):
    print(json.dumps(what), flush=True)
def stay():
    say(ready=True)
    signal.pause()
"""


def start_job(script: str, address: str = "") -> subprocess.Popen[str]:
    lines = script.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    source = PRELUDE.format(address=address) + "\n".join(line[indent:] for line in lines)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, env=environment)


def run_job(script: str, address: str = "") -> tuple[dict[str, Any], int]:
    """What a script says on its last line, and its exit code."""
    with start_job(script, address) as job:
        output, _ = job.communicate(timeout=TIMEOUT_S)
    lines = output.strip().splitlines()
    assert lines, "the script said nothing"
    return json.loads(lines[-1]), job.returncode


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive, f"left running: {[process.name() for process in alive]}"


@pytest.mark.ray
def test_an_own_ray_ends_with_the_process_even_without_shutdown() -> None:
    """Also: a job with its own Ray attaches to no other that runs on the machine."""
    script = """
        import psutil
        job = Cluster(num_nodes=1)
        children = [child.pid for child in psutil.Process().children(recursive=True)]
        say(owns=job.owns_ray, nodes=job.num_nodes, slots=job.num_accelerators, children=children)
    """
    told, code = run_job(script)
    assert (told["owns"], told["nodes"], code) == (True, 1, 0)
    assert told["slots"] >= 1
    assert len(told["children"]) >= 2
    assert_gone([psutil.Process(pid) for pid in told["children"] if psutil.pid_exists(pid)])


@pytest.mark.ray
@pytest.mark.parametrize(
    "moment",
    [
        "from headrace.system.cluster.local_head import LocalHead as at; name = 'start_ray_processes'",
        "from headrace.system.cluster import cluster as at; name = 'wait_for_nodes'",
    ],
    ids=["head", "nodes"],
)
def test_an_interrupt_during_start_up_leaves_no_process(moment: str) -> None:
    """Case I4 for the cluster: interrupted while the head starts, and while nodes are awaited."""
    script = f"""
        {moment}
        setattr(at, name, lambda *_: stay())
        try:
            Cluster(num_nodes=1)
        except KeyboardInterrupt:
            say(interrupted=True)
            sys.exit(3)
    """
    with start_job(script) as job:
        assert job.stdout is not None
        assert json.loads(job.stdout.readline()) == {"ready": True}
        children = psutil.Process(job.pid).children(recursive=True)
        assert children
        job.send_signal(signal.SIGINT)
        output, _ = job.communicate(timeout=TIMEOUT_S)
    assert (json.loads(output.strip().splitlines()[-1]), job.returncode) == ({"interrupted": True}, 3)
    assert_gone(children)
