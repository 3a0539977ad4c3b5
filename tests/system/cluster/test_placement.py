from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import PlacementError
from headrace.system.cluster.config import ClusterConfig
from headrace.system.cluster.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
)


def places(placements: list[Placement]) -> list[tuple[int, tuple[int, ...]]]:
    return [(placement.node_rank, placement.local_device_ranks) for placement in placements]


def test_packed_processes_fill_a_node_before_the_next(machines: Any) -> None:
    placements = PackedPlacementStrategy(1, 4).get_placement(machines({"GPU": 3}, {"GPU": 3}))
    assert places(placements) == [(0, (1,)), (0, (2,)), (1, (0,)), (1, (1,))]
    assert [(p.rank, p.local_rank, p.local_world_size, p.placement_node_rank) for p in placements] == [
        (0, 0, 2, 0),
        (1, 1, 2, 0),
        (2, 0, 2, 1),
        (3, 1, 2, 1),
    ]


def test_packed_processes_own_several_devices_a_stride_apart(machines: Any) -> None:
    node = machines({"GPU": 8})
    assert places(PackedPlacementStrategy(0, 3, num_hardware_per_process=2).get_placement(node)) == [
        (0, (0, 1)),
        (0, (2, 3)),
    ]
    strided = PackedPlacementStrategy(0, 7, num_hardware_per_process=2, stride=2)
    assert places(strided.get_placement(node)) == [(0, (0, 2)), (0, (1, 3)), (0, (4, 6)), (0, (5, 7))]


@pytest.mark.parametrize(
    ("first", "last", "per_process", "stride"),
    [(3, 1, 1, 1), (-1, 1, 1, 1), (0, 2, 2, 1), (0, 3, 2, 4), (0, 1, 0, 1), (0, 1, 1, 0)],
)
def test_a_packing_that_cannot_be_is_refused(first: int, last: int, per_process: int, stride: int) -> None:
    with pytest.raises(PlacementError):
        PackedPlacementStrategy(first, last, per_process, stride)


def test_flexible_processes_share_and_own_devices(machines: Any) -> None:
    strategy = FlexiblePlacementStrategy([[2], [1, 0], [2]])
    assert places(strategy.get_placement(machines({"GPU": 3}))) == [(0, (0, 1)), (0, (2,)), (0, (2,))]


def test_flexible_processes_keep_their_order_when_asked(machines: Any) -> None:
    strategy = FlexiblePlacementStrategy([[2], [1, 0]], keep_order=True)
    assert places(strategy.get_placement(machines({"GPU": 3}))) == [(0, (2,)), (0, (0, 1))]


@pytest.mark.parametrize("ranks", [[], [[]], [[0, 0]], [[-1]]])
def test_flexible_ranks_that_cannot_be_are_refused(ranks: list[list[int]]) -> None:
    with pytest.raises(PlacementError):
        FlexiblePlacementStrategy(ranks)


def test_more_than_the_cluster_has_is_refused(machines: Any) -> None:
    """Case I3 for placements."""
    with pytest.raises(PlacementError, match="needs hardware rank 63, but group 'cluster' has 2: 0 to 1"):
        PackedPlacementStrategy(0, 63).get_placement(machines({"CPU": 2}))
    with pytest.raises(PlacementError, match="needs node 2, but group 'cluster' has 1"):
        NodePlacementStrategy([0, 2]).get_placement(machines({}))


def test_a_process_spans_neither_nodes_nor_device_types(machines: Any) -> None:
    with pytest.raises(PlacementError, match=r"cannot span nodes \[0, 1\]"):
        FlexiblePlacementStrategy([[0, 1]]).get_placement(machines({"GPU": 1}, {"GPU": 1}))
    with pytest.raises(PlacementError, match="cannot span device types"):
        FlexiblePlacementStrategy([[0, 1]]).get_placement(machines({"GPU": 1, "NPU": 1}))


def test_ranks_run_through_several_groups_in_a_row(machines: Any) -> None:
    groups = [
        {"label": "a", "node_ranks": 1, "env_vars": {"WHO": "a"}},
        {"label": "b", "node_ranks": 0, "hardware_type": "NPU", "python_interpreter_path": "/b/python"},
    ]
    made = machines({"NPU": 2}, {"GPU": 2}, node_groups=groups)
    placements = PackedPlacementStrategy(1, 2, node_group="a, b").get_placement(made)
    assert [(p.node_group_label, p.node_rank, p.device_type) for p in placements] == [
        ("a", 1, "nvidia"),
        ("b", 0, "ascend"),
    ]
    assert [(dict(p.env_vars), p.python_interpreter_path) for p in placements] == [
        ({"WHO": "a"}, None),
        ({}, "/b/python"),
    ]


def test_groups_that_share_devices_cannot_be_put_in_a_row(machines: Any) -> None:
    made = machines({"GPU": 2}, node_groups=[{"label": label, "node_ranks": 0} for label in "ab"])
    with pytest.raises(PlacementError, match="share devices"):
        PackedPlacementStrategy(0, 1, node_group=["a", "b"]).get_placement(made)


def test_a_process_sees_its_own_devices_and_of_other_kinds_none(machines: Any) -> None:
    made = machines({"GPU": 4, "NPU": 2}, node_groups=[{"label": "slots", "node_ranks": 0, "hardware_type": "cpu"}])
    gpu, npu = FlexiblePlacementStrategy([[1, 3], [4]]).get_placement(made)
    assert gpu.visible_env == {
        "CUDA_VISIBLE_DEVICES": "1,3",
        "ASCEND_RT_VISIBLE_DEVICES": "",
        "HEADRACE_VISIBLE_SLOTS": "",
    }
    assert npu.visible_env["CUDA_VISIBLE_DEVICES"] == ""
    assert npu.visible_env["ASCEND_RT_VISIBLE_DEVICES"] == "0"
    (slot,) = PackedPlacementStrategy(2, 2, node_group="slots").get_placement(made)
    assert slot.visible_env == {
        "CUDA_VISIBLE_DEVICES": "",
        "ASCEND_RT_VISIBLE_DEVICES": "",
        "HEADRACE_VISIBLE_SLOTS": "2",
    }
    assert slot.cores == (2,)


def test_kinds_that_share_a_variable_do_not_hide_each_other(machines: Any) -> None:
    made = machines({"GPU": 1}, node_groups=[{"label": "slots", "node_ranks": 0, "hardware_type": "cpu"}])
    assert PackedPlacementStrategy(0, 0).get_placement(made)[0].visible_env["CUDA_VISIBLE_DEVICES"] == "0"


def test_visibility_is_left_alone_without_isolation_and_on_whole_nodes(machines: Any) -> None:
    made = machines({"GPU": 2})
    assert PackedPlacementStrategy(0, 0).get_placement(made, isolate_accelerator=False)[0].visible_env == {}
    (whole,) = NodePlacementStrategy([0]).get_placement(made)
    assert (whole.visible_env, whole.devices, whole.local_accelerator_rank) == ({}, (), -1)


def test_node_placement_puts_processes_on_nodes(machines: Any) -> None:
    made = machines({}, {}, {}, node_groups=[{"label": "far", "node_ranks": "1-2"}])
    assert [p.node_rank for p in NodePlacementStrategy([2, 0, 0]).get_placement(made)] == [0, 0, 2]
    placements = NodePlacementStrategy([0, 1, 1], node_group_label="far").get_placement(made)
    assert [(p.node_rank, p.local_rank, p.local_world_size) for p in placements] == [(1, 0, 1), (2, 0, 2), (2, 1, 2)]


def test_devices_are_not_placed_on_by_the_group_that_counts_nodes(machines: Any) -> None:
    with pytest.raises(PlacementError, match="use NodePlacementStrategy"):
        PackedPlacementStrategy(0, 0, node_group="node").get_placement(machines({}))


CONFIG = {
    "actor,rollout": "0-3",
    "env": {"node_group": "slots", "placement": "0-1:0-3"},
    "agent": {"node_group": "node", "placement": "0:0-1,1:2"},
    "reward": "1:0,0:1",
}
SLOTS = {"label": "slots", "node_ranks": "0-1", "hardware_type": "cpu"}


def test_component_placement_gives_every_component_a_strategy(machines: Any) -> None:
    made = machines({"GPU": 2}, {"GPU": 2}, node_groups=[SLOTS])
    placement = ComponentPlacement({"cluster": {"component_placement": CONFIG}}, made)
    assert placement.components == ["actor", "rollout", "env", "agent", "reward"]
    assert [placement.get_world_size(name) for name in placement.components] == [4, 4, 4, 3, 2]
    assert placement.get_hardware_ranks("env") == [0, 1]
    actor = placement.get_strategy("actor").get_placement(made)
    assert places(actor) == [(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,))]
    assert places(placement.get_strategy("env").get_placement(made)) == [(0, (0,)), (0, (0,)), (0, (1,)), (0, (1,))]
    assert places(placement.get_strategy("agent").get_placement(made)) == [(0, ()), (0, ()), (1, ())]
    assert places(placement.get_strategy("reward").get_placement(made)) == [(0, (1,)), (0, (0,))]
    with pytest.raises(PlacementError, match="did you mean 'reward'"):
        placement.get_strategy("rewards")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda placements: {"cluster": {"component_placement": placements}},
        lambda placements: {"component_placement": placements},
        lambda placements: ClusterConfig(component_placement=placements),
        lambda placements: SimpleNamespace(cluster=ClusterConfig(component_placement=placements)),
        lambda placements: SimpleNamespace(cluster={"component_placement": placements}),
        lambda placements: pytest.importorskip("omegaconf").OmegaConf.create(
            {"cluster": {"component_placement": placements}}
        ),
    ],
)
def test_the_configuration_may_have_any_usual_form(machines: Any, wrap: Any) -> None:
    assert ComponentPlacement(wrap({"actor": "0-1"}), machines({"GPU": 2})).get_world_size("actor") == 2


@pytest.mark.parametrize(
    ("placement", "what"),
    [
        ("0-4", "needs resource 4, but there are 4"),
        ("1-2:0", r"cannot span nodes \[0, 1\]"),
        ({"node_group": "node", "placement": "0-1:0"}, r"cannot span nodes \[0, 1\]"),
        ({"node_group": "node", "placement": "0-2"}, "needs resource 2, but there are 2"),
        ({"node_group": "slot", "placement": "0"}, "did you mean 'slots'"),
        ({"node_group": ["cluster", "node"], "placement": "0"}, "'node'"),
        (7, "quote it"),
    ],
)
def test_what_does_not_fit_the_cluster_is_refused_by_component(machines: Any, placement: Any, what: str) -> None:
    made = machines({"GPU": 2}, {"GPU": 2}, node_groups=[SLOTS])
    with pytest.raises(PlacementError, match=what) as caught:
        ComponentPlacement({"component_placement": {"actor": placement}}, made)
    assert caught.value.key.startswith("cluster.component_placement.actor")


@pytest.mark.parametrize("config", [{}, {"cluster": {}}, {"component_placement": {}}, None])
def test_a_configuration_without_placements_is_refused(machines: Any, config: Any) -> None:
    with pytest.raises(PlacementError, match="say where each component runs"):
        ComponentPlacement(config, machines({}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(gpus=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_ranks_count_per_node_whatever_the_placement(machines: Any, gpus: list[int], data: st.DataObject) -> None:
    made = machines(*({"GPU": count} for count in gpus))
    ranks = data.draw(st.lists(st.integers(0, sum(gpus) - 1), min_size=1, max_size=12))
    placements = FlexiblePlacementStrategy([[rank] for rank in ranks]).get_placement(made)
    assert [p.rank for p in placements] == list(range(len(ranks)))
    for node in {p.node_rank for p in placements}:
        mine = [p for p in placements if p.node_rank == node]
        assert [p.local_rank for p in mine] == list(range(len(mine)))
        assert {p.local_world_size for p in mine} == {len(mine)}
        assert {p.placement_node_rank for p in mine} == {len({p.node_rank for p in placements if p.node_rank < node})}
