"""What each node is: one short task a node, all at once, and the nodes and node groups that follow from it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import headrace
from headrace.core.config import environment
from headrace.core.errors import ClusterError
from headrace.system.cluster.accelerator import DeviceKind, kind_found_by, learn_kinds
from headrace.system.cluster.config import ClusterConfig
from headrace.system.cluster.connection import HEAD_RESOURCE, RayNode
from headrace.system.cluster.node import (
    AcceleratorReport,
    NodeGroupInfo,
    NodeInfo,
    NodeReport,
    build_groups,
    build_node,
    check_versions,
    order_nodes,
)


class NodeProbe:
    """Asks every node what it is, checks that they fit together, and gives them their ranks.

    Raises:
        ClusterError: a node does not answer within `config.startup_timeout_s`, cannot import headrace, or runs other
            versions than this process.
        ConfigError: a node group does not fit the nodes.
    """

    def __init__(self, config: ClusterConfig, ray_nodes: Sequence[RayNode]) -> None:
        import ray

        reports = {report.ray_id: report for report in _probe(config, ray_nodes)}
        learn_kinds(found.kind for report in reports.values() for found in report.accelerators)
        seen = {node["NodeID"]: node for node in ray_nodes}
        addresses = {ray_id: node["NodeManagerAddress"] for ray_id, node in seen.items()}
        head = next(ray_id for ray_id, node in seen.items() if HEAD_RESOURCE in node["Resources"])
        self.nodes = [
            build_node(rank, reports[ray_id], addresses[ray_id], seen[ray_id]["Resources"], config)
            for rank, ray_id in enumerate(order_nodes(reports, addresses, head))
        ]
        check_versions(self.nodes, ray.__version__, platform.python_version(), headrace.__version__)
        self.groups = build_groups(self.nodes, config)

    @property
    def node_groups(self) -> list[NodeGroupInfo]:
        return list(self.groups.values())

    @property
    def head_node(self) -> NodeInfo:
        return next(node for node in self.nodes if node.is_head)


def probe_node(ray_id: str, env_var_names: Sequence[str]) -> NodeReport:
    """What the node that this runs on is. Imports nothing heavy."""
    import psutil
    import ray

    return NodeReport(
        ray_id=ray_id,
        cores=tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else _all_cores(),
        memory_bytes=psutil.virtual_memory().total,
        python_interpreter_path=sys.executable,
        ray_version=ray.__version__,
        python_version=platform.python_version(),
        headrace_version=headrace.__version__,
        # A probe reports its node's environment as it is; nothing is configured by it.
        env_vars={name: os.environ[name] for name in env_var_names if name in os.environ},
        node_rank=environment("NODE_RANK"),
        accelerators=tuple(find_accelerators()),
    )


def find_accelerators() -> list[AcceleratorReport]:
    """The accelerators of this node, through every accelerator manager that Ray has."""
    from ray._private.accelerators import get_all_accelerator_managers

    reports = []
    for manager in sorted(get_all_accelerator_managers(), key=lambda manager: manager.__name__):
        if not manager.get_current_node_num_accelerators():
            continue
        kind = kind_found_by(manager.__name__) or DeviceKind(
            manager.get_resource_name().lower(),
            manager.get_resource_name(),
            manager.get_visible_accelerator_ids_env_var() or "",
        )
        visible = manager.get_current_process_visible_accelerator_ids()
        reports.append(
            AcceleratorReport(
                kind=kind,
                model=manager.get_current_node_accelerator_type() or kind.type,
                memory_bytes=_nvidia_memory() if kind.type == "nvidia" else 0,
                visible_ids=None if visible is None else tuple(visible),
            )
        )
    return reports


def _probe(config: ClusterConfig, ray_nodes: Sequence[RayNode]) -> list[NodeReport]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(probe_node)
    pending: dict[Any, str] = {}
    for node in ray_nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ref = task.options(scheduling_strategy=strategy).remote(node["NodeID"], config.probe_env_vars)
        pending[ref] = node["NodeManagerAddress"]
    _, silent = ray.wait(list(pending), num_returns=len(pending), timeout=config.startup_timeout_s)
    if silent:
        addresses = ", ".join(sorted(pending[ref] for ref in silent))
        raise ClusterError(f"no answer from nodes {addresses} within {config.startup_timeout_s:g} s")
    return [_answer(ref, address) for ref, address in pending.items()]


def _answer(ref: Any, address: str) -> NodeReport:
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(ref)
    except RayError as error:
        raise ClusterError(f"node {address} cannot be probed; is headrace installed there? {error}") from error


def _all_cores() -> tuple[int, ...]:
    return tuple(range(os.cpu_count() or 1))


def _nvidia_memory() -> int:
    """Bytes of the first NVIDIA device."""
    from ray._private.thirdparty import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)
    finally:
        pynvml.nvmlShutdown()
