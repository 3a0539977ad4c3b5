from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import ClusterError, ConfigError, PlacementError
from headrace.system.cluster.accelerator import kind_of
from headrace.system.cluster.config import ClusterConfig
from headrace.system.cluster.node import AcceleratorReport, build_node, check_versions, order_nodes

H100 = AcceleratorReport(kind_of("nvidia"), "H100", memory_bytes=80, visible_ids=("4", "5", "6"))


def test_a_node_has_as_many_accelerators_as_ray_can_reserve(report: Any) -> None:
    node = build_node(1, report(1, accelerators=(H100,)), "10.0.0.1", {"CPU": 4, "GPU": 2}, ClusterConfig())
    assert [(device.type, device.model, device.local_rank, device.node_rank) for device in node.devices] == [
        ("nvidia", "H100", 0, 1),
        ("nvidia", "H100", 1, 1),
    ]
    assert [device.visible_name for device in node.devices] == ["4", "5"]
    assert (node.num_accelerators, node.accelerator_type, node.accelerator_model) == (2, "nvidia", "H100")
    assert node.get_hw_resource_count() == 2
    assert node.get_hw_resource_count("cpu") == len(node.cpu_slots) == 4


def test_accelerators_that_only_ray_was_told_of_count_too(report: Any) -> None:
    node = build_node(0, report(), "10.0.0.1", {"CPU": 4, "GPU": 2, "NPU": 1}, ClusterConfig())
    assert [device.type for device in node.devices] == ["nvidia", "nvidia", "ascend"]


def test_the_cluster_group_counts_accelerators_and_slots_only_where_there_are_none(machines: Any) -> None:
    mixed = machines({"GPU": 2}, {}, {"GPU": 1}).get_node_group()
    assert [(device.type, device.node_rank, device.local_rank) for device in mixed.devices] == [
        ("nvidia", 0, 0),
        ("nvidia", 0, 1),
        ("nvidia", 2, 0),
    ]
    assert mixed.local_hardware_ranks == [[0, 1], [], [2]]
    assert mixed.get_node_by_hardware_rank(2).node_rank == 2
    assert mixed.get_local_hardware_rank(2) == 0
    assert mixed.hardware_type == "nvidia"
    assert machines({}, {}).get_node_group().hardware_resource_count == 8
    with pytest.raises(PlacementError, match="hardware ranks 0 to 2"):
        mixed.get_local_hardware_rank(3)


def test_the_node_group_counts_nodes(machines: Any) -> None:
    group = machines({"GPU": 2}, {}).get_node_group("node")
    assert (group.hardware_resource_count, group.devices, group.node_ranks) == (2, (), [0, 1])


def test_a_node_group_counts_what_its_hardware_type_says(machines: Any) -> None:
    groups = [
        {"label": "any", "node_ranks": "0-1"},
        {"label": "slots", "node_ranks": "0-1", "hardware_type": "cpu"},
        {"label": "ignored", "node_ranks": "0-1", "ignore_hardware": True},
        {"label": "gpu", "node_ranks": "0-1", "hardware_type": "GPU"},
        {"label": "rlinf", "node_ranks": "0-1", "hardware_type": "NV_GPU"},
        {"label": "fake", "node_ranks": "0-1", "hardware_type": "fake_npu"},
    ]
    made = machines({"GPU": 2, "fake_npu": 3}, {"GPU": 1}, node_groups=groups)
    counted = {label: (group.hardware_type, group.hardware_resource_count) for label, group in made.groups.items()}
    assert counted["any"] == counted["gpu"] == counted["rlinf"] == ("nvidia", 3)
    assert counted["slots"] == counted["ignored"] == ("cpu", 8)
    assert counted["fake"] == ("fake_npu", 3)
    assert made.nodes[0].num_accelerators == 2, "declared devices are no accelerators"
    assert made.nodes[0].node_labels == ("any", "slots", "ignored", "gpu", "rlinf", "fake")


def test_declared_hardware_carries_its_configuration(machines: Any) -> None:
    hardware = {"type": "Franka", "configs": [{"node_rank": 1, "ip": "a"}, {"node_rank": 1, "ip": "b"}]}
    made = machines({}, {}, node_groups=[{"label": "arms", "node_ranks": "0-1", "hardware": hardware}])
    devices = made.get_node_group("arms").get_hardware_infos(1)
    assert [(device.type, device.local_rank, device.config["ip"]) for device in devices] == [
        ("Franka", 0, "a"),
        ("Franka", 1, "b"),
    ]


@pytest.mark.parametrize(
    ("group", "key", "what"),
    [
        ({"node_ranks": "1-2"}, "cluster.node_groups.0.node_ranks", "node 2 is not there"),
        ({"node_ranks": 0, "hardware_type": "TPU"}, "cluster.node_groups.0.hardware_type", "they have"),
    ],
)
def test_a_group_that_does_not_fit_the_nodes_is_refused(machines: Any, group: Any, key: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        machines({}, {}, node_groups=[{"label": "a", **group}])
    assert caught.value.key == key


def test_hardware_of_one_type_is_declared_once_a_node(machines: Any) -> None:
    hardware = {"type": "Franka", "configs": [{"node_rank": 0}]}
    groups = [{"label": label, "node_ranks": 0, "hardware": hardware} for label in ("a", "b")]
    with pytest.raises(ConfigError, match="declare it in one group"):
        machines({}, node_groups=groups)


def test_nodes_are_ranked_head_first_then_by_address(report: Any) -> None:
    reports = {name: report(ray_id=name) for name in "cab"}
    addresses = {"a": "10.0.0.1", "b": "10.0.0.1", "c": "10.0.0.3"}
    assert order_nodes(reports, addresses, head="c") == ["c", "a", "b"]


def test_a_rank_given_by_the_environment_wins(report: Any) -> None:
    reports = {name: report(ray_id=name, node_rank=rank) for name, rank in zip("abc", "201", strict=True)}
    assert order_nodes(reports, dict.fromkeys("abc", ""), head="a") == ["b", "c", "a"]


@pytest.mark.parametrize("ranks", [("0", None), ("0", "0"), ("1", "2"), ("0", "x")])
def test_ranks_from_the_environment_must_be_complete(report: Any, ranks: tuple[str | None, str | None]) -> None:
    reports = {name: report(ray_id=name, node_rank=rank) for name, rank in zip("ab", ranks, strict=True)}
    with pytest.raises(ClusterError, match="HEADRACE_NODE_RANK must be 0 to 1"):
        order_nodes(reports, {"a": "10.0.0.1", "b": "10.0.0.2"}, head="a")


def test_a_node_with_other_versions_is_named_with_them(machines: Any, report: Any) -> None:
    odd = report(2, ray_version="2.9.0", python_version="3.12.1", headrace_version="0.0.9")
    nodes = [*machines({}, {}).nodes, build_node(2, odd, "10.0.0.2", {}, ClusterConfig())]
    check_versions(nodes[:2], ray="2.60.0", python="3.11.2", headrace="0.1.0")
    with pytest.raises(ClusterError) as caught:
        check_versions(nodes, ray="2.60.0", python="3.11.2", headrace="0.1.0")
    text = str(caught.value)
    assert "node 2 (10.0.0.2): Ray 2.9.0, not 2.60.0" in text
    assert "Python 3.12, not 3.11" in text
    assert "headrace 0.0.9, not 0.1.0" in text
    assert "node 0" not in text
