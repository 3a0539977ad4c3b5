"""The cluster as tables, for `headrace probe`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from headrace.system.cluster.accelerator import Device
from headrace.system.cluster.cluster import Cluster
from headrace.system.cluster.node import NodeGroupInfo, NodeInfo


def describe(cluster: Cluster) -> RenderableType:
    """Nodes, node groups and devices of a cluster, something that `rich` can print."""
    nodes = cluster.nodes
    tables: list[RenderableType] = [node_table(nodes), software_table(nodes), group_table(cluster.node_groups)]
    variables = [node for node in cluster.nodes if node.env_vars]
    if variables:
        tables.append(variable_table(variables))
    return Group(*tables)


def node_table(nodes: Iterable[NodeInfo]) -> Table:
    """One row a node: what it is."""
    table = _table("Nodes", "rank", "address", "cores", "memory", "devices", "CPU slots")
    for node in nodes:
        table.add_row(
            f"{node.node_rank}{' (head)' if node.is_head else ''}",
            node.address,
            ranges(node.cores),
            _size(node.memory_bytes),
            _count(node.devices),
            f"{len(node.cpu_slots)} x {_size(node.cpu_slots[0].memory_bytes)}" if node.cpu_slots else "none",
        )
    return table


def software_table(nodes: Iterable[NodeInfo]) -> Table:
    """One row a node: which versions it runs."""
    table = _table("Software", "rank", "Ray", "Python", "headrace")
    table.add_column("interpreter", overflow="fold")
    for node in nodes:
        versions = (node.ray_version, node.python_version, node.headrace_version)
        table.add_row(str(node.node_rank), *versions, node.python_interpreter_path)
    return table


def group_table(groups: Iterable[NodeGroupInfo]) -> Table:
    """One row a node group: what placements count in it."""
    table = _table("Node groups", "label", "nodes", "resource ranks", "of")
    for group in groups:
        count = group.hardware_resource_count
        of = "nodes" if group.counts_nodes else _count(group.devices)
        table.add_row(group.label, ranges(group.node_ranks), ranges(range(count)), of)
    return table


def variable_table(nodes: Iterable[NodeInfo]) -> Table:
    """One row a probed environment variable."""
    table = _table("Environment", "node", "variable", "value")
    for node in nodes:
        for name, value in sorted(node.env_vars.items()):
            table.add_row(str(node.node_rank), name, value)
    return table


def ranges(ranks: Sequence[int]) -> str:
    """Ranks as placement texts write them: 0-3,6."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans) or "none"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _count(devices: Iterable[Device]) -> str:
    kinds = Counter(" ".join(dict.fromkeys((device.type, device.model))) for device in devices)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())) or "none"


def _size(memory_bytes: int) -> str:
    return f"{memory_bytes / 2**30:.1f} GiB"
