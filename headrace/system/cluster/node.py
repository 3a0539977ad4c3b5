"""Nodes and node groups: what a probe saw of each machine, and how placements count their devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.core.errors import ClusterError, ConfigError, PlacementError
from headrace.system.cluster.accelerator import CPU_SLOT, Device, DeviceKind, accelerator_kinds, cpu_slots, kinds_named
from headrace.system.cluster.config import CLUSTER_LABEL, NODE_LABEL, ClusterConfig, NodeGroupConfig


@dataclass(frozen=True)
class AcceleratorReport:
    """Accelerators of one kind that a probe found on its node. visible_ids: None where nothing restricts them."""

    kind: DeviceKind
    model: str
    memory_bytes: int = 0
    visible_ids: tuple[str, ...] | None = None


@dataclass(frozen=True)
class NodeReport:
    """What the probe on one node says. cores: those that a process on it may use."""

    ray_id: str
    cores: tuple[int, ...]
    memory_bytes: int
    python_interpreter_path: str
    ray_version: str
    python_version: str
    headrace_version: str
    env_vars: Mapping[str, str] = field(default_factory=dict)
    node_rank: str | None = None
    accelerators: tuple[AcceleratorReport, ...] = ()


@dataclass(frozen=True)
class NodeInfo:
    """One machine of the cluster. devices: accelerators and declared hardware; cpu_slots: shares of its CPU."""

    node_rank: int
    ray_id: str
    address: str
    num_cpus: int
    cores: tuple[int, ...]
    memory_bytes: int
    python_interpreter_path: str
    ray_version: str
    python_version: str
    headrace_version: str
    is_head: bool = False
    env_vars: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    cpu_slots: tuple[Device, ...] = ()
    accelerator_types: tuple[str, ...] = ()
    node_labels: tuple[str, ...] = ()

    @property
    def node_ip(self) -> str:
        return self.address

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """The devices that a probe found; without those that only the configuration declares."""
        return tuple(device for device in self.devices if device.type in self.accelerator_types)

    @property
    def num_accelerators(self) -> int:
        return len(self.accelerators)

    @property
    def accelerator_type(self) -> str:
        """The type of this node's accelerators; "cpu" where it has none."""
        return self.accelerators[0].type if self.accelerators else CPU_SLOT

    @property
    def accelerator_model(self) -> str:
        return self.accelerators[0].model if self.accelerators else ""

    def devices_of(self, device_type: str) -> tuple[Device, ...]:
        """This node's devices of one type, CPU slots included, by local rank."""
        return tuple(device for device in (*self.devices, *self.cpu_slots) if device.type == device_type)

    def get_hw_resource_count(self, hw_type: str | None = None) -> int:
        """How many devices of a type this node has; without a type, how many accelerators."""
        return self.num_accelerators if hw_type is None else len(self.devices_of(hw_type))

    def __str__(self) -> str:
        found = ", ".join(f"{len(self.devices_of(t))} {t}" for t in sorted({device.type for device in self.devices}))
        return f"node {self.node_rank} ({self.address}): {found or 'no accelerator'}, {len(self.cpu_slots)} CPU slots"


@dataclass(frozen=True)
class NodeGroupInfo:
    """Nodes that placements address by one label. Hardware ranks count `devices`, in the order of nodes.

    The reserved group `node` has no devices: there a rank is a node.
    """

    label: str
    nodes: tuple[NodeInfo, ...]
    devices: tuple[Device, ...] = ()
    config: NodeGroupConfig | None = None

    @property
    def counts_nodes(self) -> bool:
        return self.label == NODE_LABEL

    @property
    def node_ranks(self) -> list[int]:
        return [node.node_rank for node in self.nodes]

    @property
    def hardware_type(self) -> str | None:
        """The one type of this group's devices; None where there are none or several."""
        types = {device.type for device in self.devices}
        return types.pop() if len(types) == 1 else None

    @property
    def hardware_resource_count(self) -> int:
        return len(self.nodes) if self.counts_nodes else len(self.devices)

    @property
    def local_hardware_ranks(self) -> list[list[int]]:
        """The hardware ranks (within this group) of each node, in the order of nodes."""
        return [
            [rank for rank, device in enumerate(self.devices) if device.node_rank == node.node_rank]
            for node in self.nodes
        ]

    def get_hardware_infos(self, node_rank: int) -> list[Device]:
        """The group's devices on one node."""
        return [device for device in self.devices if device.node_rank == node_rank]

    def group_ranks_to_global_ranks(self, group_ranks: Sequence[int]) -> list[int]:
        """Node ranks within this group -> node ranks in the cluster."""
        return [self.nodes[rank].node_rank for rank in group_ranks]

    def get_node_by_hardware_rank(self, hardware_rank: int) -> NodeInfo:
        node_rank = self._device(hardware_rank).node_rank
        return next(node for node in self.nodes if node.node_rank == node_rank)

    def get_local_hardware_rank(self, hardware_rank: int) -> int:
        return self._device(hardware_rank).local_rank

    def get_node_env_vars(self, node_rank: int) -> dict[str, str]:
        """What the configuration sets for processes of this group on a node."""
        return self.config.env_for(node_rank) if self.config else {}

    def get_node_python_interpreter_path(self, node_rank: int) -> str | None:
        """The interpreter that the configuration names for a node; None: the node's own."""
        return self.config.interpreter_for(node_rank) if self.config else None

    def _device(self, hardware_rank: int) -> Device:
        if not 0 <= hardware_rank < len(self.devices):
            there = f"group '{self.label}' has hardware ranks 0 to {len(self.devices) - 1}"
            raise PlacementError("hardware_rank", hardware_rank, there)
        return self.devices[hardware_rank]

    def __str__(self) -> str:
        return f"node group '{self.label}': nodes {self.node_ranks}, {self.hardware_resource_count} resources"


def order_nodes(reports: Mapping[str, NodeReport], addresses: Mapping[str, str], head: str) -> list[str]:
    """Ray ids in the order of node ranks: by HEADRACE_NODE_RANK where nodes set it, else the head first, then by
    address and id.

    Raises:
        ClusterError: some nodes set HEADRACE_NODE_RANK and others do not, or their values are not 0 .. N-1.
    """
    told = {ray_id: report.node_rank for ray_id, report in reports.items() if report.node_rank is not None}
    if not told:
        return sorted(reports, key=lambda ray_id: (ray_id != head, addresses[ray_id], ray_id))
    if sorted(told.values()) != sorted(str(rank) for rank in range(len(reports))):
        seen = ", ".join(f"{addresses[ray_id]}: {reports[ray_id].node_rank or 'unset'}" for ray_id in reports)
        raise ClusterError(f"HEADRACE_NODE_RANK must be 0 to {len(reports) - 1}, once on each node; it is {seen}")
    return sorted(told, key=lambda ray_id: int(told[ray_id] or 0))


def check_versions(nodes: Sequence[NodeInfo], ray: str, python: str, headrace: str) -> None:
    """That every node runs this process's Ray, Python (major.minor) and headrace.

    Raises:
        ClusterError: naming each odd node and each version that differs.
    """
    odd = [
        f"node {node.node_rank} ({node.address}): {name} {there}, not {here}"
        for node in nodes
        for name, there, here in (
            ("Ray", node.ray_version, ray),
            ("Python", ".".join(node.python_version.split(".")[:2]), ".".join(python.split(".")[:2])),
            ("headrace", node.headrace_version, headrace),
        )
        if there != here
    ]
    if odd:
        raise ClusterError("\n  ".join(["nodes do not run this driver's versions; install the same everywhere:", *odd]))


def build_node(
    rank: int, report: NodeReport, address: str, resources: Mapping[str, float], config: ClusterConfig
) -> NodeInfo:
    """A node from its probe's report, from what Ray can reserve on it, and from what the configuration declares."""
    num_cpus = int(resources.get("CPU", 0))
    found = [device for found in _detected(report, resources) for device in _accelerators(rank, found, resources)]
    memory = int(resources.get("memory", report.memory_bytes))
    groups = [group for group in config.node_groups if rank in group.ranks]
    declared = _declared(rank, groups, resources, {device.type for device in found})
    return NodeInfo(
        node_rank=rank,
        ray_id=report.ray_id,
        address=address,
        num_cpus=num_cpus,
        cores=report.cores,
        memory_bytes=report.memory_bytes,
        python_interpreter_path=report.python_interpreter_path,
        ray_version=report.ray_version,
        python_version=report.python_version,
        headrace_version=report.headrace_version,
        is_head="node:__internal_head__" in resources,
        env_vars=dict(report.env_vars),
        devices=(*found, *declared),
        cpu_slots=cpu_slots(rank, report.cores, num_cpus, memory, config.cores_per_slot, config.slot_memory_bytes),
        accelerator_types=tuple(sorted({device.type for device in found})),
        node_labels=tuple(group.name for group in groups),
    )


def build_groups(nodes: Sequence[NodeInfo], config: ClusterConfig) -> dict[str, NodeGroupInfo]:
    """Every node group by label: the reserved two, then the configured ones.

    Raises:
        ConfigError: a group names a node that is not there, or hardware that its nodes do not have.
    """
    everything = tuple(nodes)
    groups = {
        CLUSTER_LABEL: NodeGroupInfo(CLUSTER_LABEL, everything, _accelerators_or_slots(everything)),
        NODE_LABEL: NodeGroupInfo(NODE_LABEL, everything),
    }
    for i, group in enumerate(config.node_groups):
        key = f"cluster.node_groups.{i}"
        missing = [rank for rank in group.ranks if rank >= len(nodes)]
        if missing:
            there = f"the cluster has nodes 0 to {len(nodes) - 1}"
            raise ConfigError(f"{key}.node_ranks", group.node_ranks, f"node {missing[0]} is not there; {there}")
        members = tuple(nodes[rank] for rank in group.ranks)
        groups[group.name] = NodeGroupInfo(group.name, members, _group_devices(key, group, members), group)
    return groups


def _detected(report: NodeReport, resources: Mapping[str, float]) -> list[AcceleratorReport]:
    """What the probe found, and a stand-in for what only Ray was told of: of the first kind with that resource."""
    seen = {found.kind.resource for found in report.accelerators}
    told = [kind for kind in accelerator_kinds() if resources.get(kind.resource, 0) >= 1 and kind.resource not in seen]
    first: dict[str, DeviceKind] = {}
    for kind in told:
        first.setdefault(kind.resource, kind)
    return [*report.accelerators, *(AcceleratorReport(kind, model=kind.type) for kind in first.values())]


def _accelerators(rank: int, found: AcceleratorReport, resources: Mapping[str, float]) -> list[Device]:
    """As many as Ray counts: what cannot be reserved is not ours to use."""
    count = int(resources.get(found.kind.resource, 0))
    ids = found.visible_ids if found.visible_ids is not None else tuple(str(i) for i in range(count))
    return [
        Device(found.kind.type, found.model, i, rank, memory_bytes=found.memory_bytes, visible_id=visible)
        for i, visible in enumerate(ids[:count])
    ]


def _declared(
    rank: int, groups: Sequence[NodeGroupConfig], resources: Mapping[str, float], found: set[str]
) -> list[Device]:
    """Robots and custom Ray resources that node groups name."""
    devices: dict[str, list[Device]] = {}
    for group in groups:
        if group.hardware is not None:
            kind = group.hardware.type
            if kind in devices or kind in found:
                key = f"cluster.node_groups.{group.name}.hardware.type"
                raise ConfigError(key, kind, f"node {rank} has hardware of this type already; declare it in one group")
            mine = [config for config in group.hardware.configs if config["node_rank"] == rank]
            devices[kind] = [Device(kind, kind, i, rank, config=config) for i, config in enumerate(mine)]
        elif group.hardware_type in resources and not kinds_named(group.hardware_type or ""):
            kind = str(group.hardware_type)
            devices[kind] = [Device(kind, kind, i, rank) for i in range(int(resources[kind]))]
    return [device for several in devices.values() for device in several]


def _accelerators_or_slots(nodes: Sequence[NodeInfo]) -> tuple[Device, ...]:
    accelerators = tuple(device for node in nodes for device in node.accelerators)
    return accelerators or tuple(slot for node in nodes for slot in node.cpu_slots)


def _group_devices(key: str, group: NodeGroupConfig, nodes: Sequence[NodeInfo]) -> tuple[Device, ...]:
    if group.ignore_hardware:
        return tuple(slot for node in nodes for slot in node.cpu_slots)
    wanted = group.hardware.type if group.hardware is not None else group.hardware_type
    if wanted is None:
        return _accelerators_or_slots(nodes)
    names = {kind.type for kind in kinds_named(wanted)} or {wanted}
    devices = tuple(device for node in nodes for device in (*node.devices, *node.cpu_slots) if device.type in names)
    if not devices:
        there = sorted({device.type for node in nodes for device in (*node.devices, *node.cpu_slots)})
        raise ConfigError(f"{key}.hardware_type", wanted, f"none of the group's nodes has any; they have {there}")
    return devices
