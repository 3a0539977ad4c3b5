from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import ConfigError, PlacementError
from headrace.system.cluster.config import ClusterConfig, as_cluster_config, read_placements

GROUPS: list[dict[str, Any]] = [
    {
        "label": 4090,
        "node_ranks": "0-1",
        "env_vars": {"A": "group", "N": 3},
        "python_interpreter_path": "/opt/group/python",
        "env_configs": [
            {"node_ranks": [1], "env_vars": [{"A": "own"}, {"B": "x"}], "python_interpreter_path": "/opt/own/python"}
        ],
    },
    {
        "label": "franka",
        "node_ranks": 2,
        "hardware": {"type": "Franka", "configs": [{"node_rank": 2, "ip": "1.2.3.4"}]},
    },
]


def test_a_node_group_gives_each_node_its_own_environment() -> None:
    group = ClusterConfig.from_mapping({"node_groups": GROUPS}).node_groups[0]
    assert (group.name, group.ranks) == ("4090", (0, 1))
    assert group.env_for(0) == {"A": "group", "N": "3"}
    assert group.env_for(1) == {"A": "own", "N": "3", "B": "x"}
    assert group.interpreter_for(0) == "/opt/group/python"
    assert group.interpreter_for(1) == "/opt/own/python"


def test_omegaconf_is_read_like_a_mapping() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    values = {"num_nodes": 3, "startup_timeout_s": "${num_nodes}", "node_groups": GROUPS}
    read = ClusterConfig.from_dict_cfg(omegaconf.OmegaConf.create(values))
    assert read == ClusterConfig.from_mapping({**values, "startup_timeout_s": 3.0})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"num_node": 1}, "cluster.num_node"),
        ({"num_nodes": -1}, "cluster.num_nodes"),
        ({"cores_per_slot": 0}, "cluster.cores_per_slot"),
        ({"num_cpus": 0}, "cluster.num_cpus"),
        ({"startup_timeout_s": 0}, "cluster.startup_timeout_s"),
        ({"address": "h:1", "num_cpus": 4}, "cluster.num_cpus"),
        ({"component_placement": {"actor": 90}}, "cluster.component_placement.actor"),
        ({"component_placement": {"actor": "3-1"}}, "cluster.component_placement.actor"),
        (
            {"component_placement": {"actor": {"node_group": "x", "placement": "0"}}},
            "cluster.component_placement.actor.node_group",
        ),
        ({"node_groups": [{"label": "node", "node_ranks": 0}]}, "cluster.node_groups.0.label"),
        ({"node_groups": [{"label": "a", "node_ranks": []}]}, "cluster.node_groups.0.node_ranks"),
        ({"node_groups": [{"label": "a", "node_ranks": "x"}]}, "cluster.node_groups.0.node_ranks"),
        (
            {"node_groups": [{"label": "a", "node_ranks": 0}, {"label": "a", "node_ranks": 1}]},
            "cluster.node_groups.1.label",
        ),
        (
            {"node_groups": [{"label": "a", "node_ranks": 0, "env_vars": {"A": True}}]},
            "cluster.node_groups.0.env_vars.A",
        ),
        ({"node_groups": [{**GROUPS[0], "node_ranks": 0}]}, "cluster.node_groups.0.env_configs.0.node_ranks"),
        ({"node_groups": [{**GROUPS[1], "node_ranks": 1}]}, "cluster.node_groups.0.hardware.configs.0.node_rank"),
        ({"node_groups": [{**GROUPS[1], "hardware_type": "cpu"}]}, "cluster.node_groups.0.hardware_type"),
        ({"node_groups": [{**GROUPS[1], "ignore_hardware": True}]}, "cluster.node_groups.0.ignore_hardware"),
        (
            {"node_groups": [{"label": "a", "node_ranks": 0, "hardware": {"type": "x", "configs": [{}]}}]},
            "cluster.node_groups.0.hardware.configs.0.node_rank",
        ),
    ],
)
def test_a_wrong_value_is_named_by_its_full_key(change: dict[str, Any], key: str) -> None:
    """Case J1 for this section."""
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.from_mapping(change)
    assert caught.value.key == key


def test_components_that_share_a_line_are_two() -> None:
    entries = read_placements({"actor, env": "0-3:0-7,5-6", "rollout": {"node_group": ["a", 4090], "placement": "all"}})
    assert [(entry.component, entry.text, entry.labels) for entry in entries] == [
        ("actor", "0-3:0-7,5-6", ("cluster",)),
        ("env", "0-3:0-7,5-6", ("cluster",)),
        ("rollout", "all", ("a", "4090")),
    ]
    assert read_placements([{"actor,env": "0"}, {"rollout": {"node_group": "a, b", "placement": "0"}}])[2].labels == (
        "a",
        "b",
    )


@pytest.mark.parametrize(
    "placements",
    [
        {"actor,env": "0", "env": "1"},
        {"actor,actor": "0"},
        [{"actor": "0"}, {"actor": "1"}],
    ],
)
def test_a_component_listed_twice_is_refused(placements: Any) -> None:
    """Case I5."""
    with pytest.raises(PlacementError, match="listed twice"):
        read_placements(placements)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"placment": "0"}, "did you mean 'placement'"),
        ({"node_group": "node"}, "is empty"),
        (None, "is empty"),
    ],
)
def test_a_placement_says_what_it_lacks(value: Any, what: str) -> None:
    with pytest.raises(PlacementError, match=what):
        read_placements({"actor": value})


def test_a_number_of_nodes_makes_a_configuration() -> None:
    assert as_cluster_config(None, None).num_nodes == 0
    assert as_cluster_config(2, None).num_nodes == 2
    assert as_cluster_config({"num_nodes": 4}, None).num_nodes == 4
    assert as_cluster_config(ClusterConfig(num_nodes=4), 3).num_nodes == 3
