"""One Ray session for the whole suite: starting one costs seconds on every machine, so tests share it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as SimulatedCluster

    from headrace.system.cluster.cluster import Cluster

CPUS_PER_NODE = 8
# Nodes 2 and 3 have devices that only a custom Ray resource knows.
FAKE_DEVICES = ({}, {}, {"fake_npu": 8}, {"fake_npu": 8})


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[SimulatedCluster]:
    """Four simulated nodes on this machine, each with eight CPUs, the last two with eight fake devices as well."""
    from ray.cluster_utils import Cluster as SimulatedCluster

    from headrace.system.cluster.local_head import without_dashboard

    cluster = SimulatedCluster(shutdown_at_exit=True)
    with without_dashboard():
        for rank, resources in enumerate(FAKE_DEVICES):
            cluster.add_node(
                num_cpus=CPUS_PER_NODE,
                resources=resources,
                env_vars={"HEADRACE_NODE_RANK": str(rank), "HEADRACE_TEST_RACK": f"rack-{rank}"},
                include_dashboard=False,
                include_log_monitor=False,
                no_monitor=True,
                wait=False,
            )
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def cluster4(ray_cluster: SimulatedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A headrace cluster of those nodes: group `left` (nodes 0-1, CPU slots), `right` (nodes 2-3, fake devices)."""
    from headrace.system.cluster.cluster import Cluster
    from headrace.system.cluster.config import ClusterConfig, NodeGroupConfig

    config = ClusterConfig(
        num_nodes=len(FAKE_DEVICES),
        address=ray_cluster.address,
        node_groups=(
            NodeGroupConfig(label="left", node_ranks="0-1", env_vars={"HEADRACE_TEST_GROUP": "left"}),
            NodeGroupConfig(label="right", node_ranks="2-3", hardware_type="fake_npu"),
        ),
        probe_env_vars=("HEADRACE_TEST_RACK",),
        reserve_timeout_s=5.0,
    )
    with Cluster(config, run_dir=tmp_path_factory.mktemp("run")) as cluster:
        yield cluster
