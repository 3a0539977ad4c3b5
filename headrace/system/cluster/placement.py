"""Which process runs on which node, on which devices, and what it gets to see of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from headrace.core.errors import ConfigError, PlacementError, nearest
from headrace.system.cluster.accelerator import CPU_SLOT, Device, kind_of
from headrace.system.cluster.config import (
    CLUSTER_LABEL,
    NODE_LABEL,
    ClusterConfig,
    PlacementEntry,
    plain,
    read_placements,
)
from headrace.system.cluster.grammar import parse_placement, placement_key
from headrace.system.cluster.node import NodeGroupInfo, NodeInfo

T = TypeVar("T")


class Machines(Protocol):
    """What placing needs of a cluster."""

    def get_node_group(self, label: str = CLUSTER_LABEL) -> NodeGroupInfo: ...


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one process of a group goes.

    rank: of the process in its group; local_rank, local_world_size: among the group's processes on its node.
    placement_node_rank: of its node among the nodes that the group uses, in the order of ranks.
    local_device_ranks: of `devices`, on their node; empty where the process is placed on a node as a whole.
    visible_env: variables to set in the process before it imports anything; empty: leave everything as it is.
    env_vars, python_interpreter_path: what its node group asks for on its node.
    """

    rank: int
    node_rank: int
    node_id: str
    placement_node_rank: int
    node_group_label: str
    local_rank: int
    local_world_size: int
    device_type: str = CPU_SLOT
    devices: tuple[Device, ...] = ()
    isolate_accelerator: bool = True
    visible_env: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    python_interpreter_path: str | None = None

    @property
    def local_device_ranks(self) -> tuple[int, ...]:
        return tuple(device.local_rank for device in self.devices)

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of this process's CPU slots; empty where it may use any."""
        return tuple(sorted({core for device in self.devices for core in device.cores}))

    # -- the same under RLinf's names -----------------------------------------------------------------------------

    @property
    def cluster_node_rank(self) -> int:
        return self.node_rank

    @property
    def local_hardware_ranks(self) -> list[int]:
        return list(self.local_device_ranks)

    @property
    def local_accelerator_rank(self) -> int:
        return self.local_device_ranks[0] if self.devices else -1

    @property
    def visible_accelerators(self) -> list[str]:
        return [device.visible_name for device in self.devices]

    @property
    def accelerator_type(self) -> str:
        return self.device_type


class PlacementStrategy(ABC):
    """Turns a wish into placements, one a process, in the order of ranks."""

    @abstractmethod
    def get_placement(self, cluster: Machines, isolate_accelerator: bool = True) -> list[Placement]:
        """Place every process.

        isolate_accelerator: show each process its own devices only.

        Raises:
            PlacementError: the wish does not fit the cluster.
        """


class FlexiblePlacementStrategy(PlacementStrategy):
    """Each process on the devices that a list names: 1:1, 1:N and N:1.

    Devices are sorted within a process, and processes by their first device, unless `keep_order`.
    """

    def __init__(
        self,
        hardware_ranks_list: Sequence[Sequence[int]],
        node_group_label: str | Sequence[str] | None = None,
        *,
        keep_order: bool = False,
    ) -> None:
        ranks = [sorted(entry) for entry in hardware_ranks_list]
        if not ranks or not all(ranks):
            raise PlacementError("hardware_ranks_list", hardware_ranks_list, "give every process at least one device")
        for entry in ranks:
            if len(set(entry)) < len(entry) or entry[0] < 0:
                raise PlacementError("hardware_ranks_list", entry, "ranks count from 0 and stand once in a process")
        self.hardware_ranks_list = ranks if keep_order else sorted(ranks, key=lambda entry: entry[0])
        self.node_group_labels = _labels(node_group_label)

    def get_placement(self, cluster: Machines, isolate_accelerator: bool = True) -> list[Placement]:
        resources = _Resources([cluster.get_node_group(label) for label in self.node_group_labels])
        resources.check(self.hardware_ranks_list)
        return _place([resources.seat(ranks) for ranks in self.hardware_ranks_list], isolate_accelerator)


class PackedPlacementStrategy(PlacementStrategy):
    """Processes side by side on devices start .. end, each on `num_hardware_per_process` of them, `stride` apart.

    Stride 2 with 2 devices a process on devices 0 to 3 gives (0, 2) and (1, 3).
    """

    def __init__(
        self,
        start_hardware_rank: int,
        end_hardware_rank: int,
        num_hardware_per_process: int = 1,
        stride: int = 1,
        node_group: str | Sequence[str] | None = None,
    ) -> None:
        if not 0 <= start_hardware_rank <= end_hardware_rank:
            span = f"{start_hardware_rank}-{end_hardware_rank}"
            raise PlacementError("start_hardware_rank-end_hardware_rank", span, "must be 0 <= start <= end")
        for key, value in (("num_hardware_per_process", num_hardware_per_process), ("stride", stride)):
            if value < 1:
                raise PlacementError(key, value, "must be at least 1")
        count, block = end_hardware_rank - start_hardware_rank + 1, num_hardware_per_process * stride
        if count % block:
            remedy = f"{count} devices do not divide into blocks of num_hardware_per_process x stride = {block}"
            raise PlacementError("num_hardware_per_process", num_hardware_per_process, remedy)
        blocks = range(start_hardware_rank, end_hardware_rank + 1, block)
        firsts = [first + offset for first in blocks for offset in range(stride)]
        self._flexible = FlexiblePlacementStrategy(
            [[first + i * stride for i in range(num_hardware_per_process)] for first in firsts], node_group
        )
        self.node_group_labels = self._flexible.node_group_labels

    def get_placement(self, cluster: Machines, isolate_accelerator: bool = True) -> list[Placement]:
        return self._flexible.get_placement(cluster, isolate_accelerator)


class NodePlacementStrategy(PlacementStrategy):
    """Each process on a node as a whole; what it sees of the node's devices is left untouched.

    It reserves nothing: processes that need a device for themselves are placed on devices. Ranks are sorted, unless
    `keep_order`.
    """

    def __init__(
        self,
        node_ranks: Sequence[int],
        node_group_label: str | Sequence[str] | None = None,
        *,
        keep_order: bool = False,
    ) -> None:
        if not node_ranks:
            raise PlacementError("node_ranks", node_ranks, "name a node for every process")
        self.node_ranks = list(node_ranks) if keep_order else sorted(node_ranks)
        self.node_group_labels = _labels(node_group_label)

    def get_placement(self, cluster: Machines, isolate_accelerator: bool = True) -> list[Placement]:
        groups = [cluster.get_node_group(label) for label in self.node_group_labels]
        members = [(group, node) for group in groups for node in group.nodes]
        for rank in self.node_ranks:
            if not 0 <= rank < len(members):
                there = f"group {_names(groups)} has {len(members)}: 0 to {len(members) - 1}"
                raise PlacementError("node_ranks", rank, f"needs node {rank}, but {there}")
        return _place([_Seat(*members[rank], devices=()) for rank in self.node_ranks], isolate=False)


class ComponentPlacement:
    """The `cluster.component_placement` of a configuration, checked against the cluster when it is made.

    config: a mapping, OmegaConf node or object with `cluster.component_placement`; or a ClusterConfig.

    Raises:
        PlacementError: naming the component and its text, before anything is started.
    """

    def __init__(self, config: Any, cluster: Machines) -> None:
        entries = read_placements(_placements_of(config))
        if not entries:
            raise PlacementError("cluster.component_placement", {}, "is empty; say where each component runs")
        self._ranks: dict[str, list[list[int]]] = {}
        self._strategies: dict[str, PlacementStrategy] = {}
        for entry in entries:
            self._ranks[entry.component] = _ranks_of(entry, cluster)
            self._strategies[entry.component] = _strategy(entry, self._ranks[entry.component], cluster)

    @property
    def components(self) -> list[str]:
        return list(self._strategies)

    def get_world_size(self, component_name: str) -> int:
        """How many processes a component has."""
        return len(self._known(component_name, self._ranks))

    def get_hardware_ranks(self, component_name: str) -> list[int]:
        """The resources (within its node groups) that a component uses, each once, ascending."""
        return sorted({rank for ranks in self._known(component_name, self._ranks) for rank in ranks})

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        return self._known(component_name, self._strategies)

    def _known(self, component: str, table: dict[str, T]) -> T:
        if component not in table:
            raise PlacementError(placement_key(component), component, nearest(component, table))
        return table[component]


@dataclass(frozen=True)
class _Seat:
    """A process before it has its place among the others."""

    group: NodeGroupInfo
    node: NodeInfo
    devices: tuple[Device, ...]


class _Resources:
    """The devices of one node group, or of several in a row."""

    def __init__(self, groups: Sequence[NodeGroupInfo]) -> None:
        if any(group.counts_nodes for group in groups):
            remedy = "'node' has no devices; use NodePlacementStrategy, or another group"
            raise PlacementError("node_group", NODE_LABEL, remedy)
        self._groups = groups
        self._devices = [(group, device) for group in groups for device in group.devices]
        if len({device.key for _, device in self._devices}) < len(self._devices):
            remedy = "these groups share devices, which would then have two ranks; name groups apart"
            raise PlacementError("node_group", _names(groups), remedy)

    def check(self, ranks_list: Sequence[Sequence[int]]) -> None:
        """That every rank is there; if not, say what is needed and what there is."""
        count, needed = len(self._devices), {rank for ranks in ranks_list for rank in ranks}
        last = max(needed)
        if last >= count:
            there = f"0 to {count - 1}" if count else "none"
            remedy = f"needs hardware rank {last}, but group {_names(self._groups)} has {count}: {there}"
            raise PlacementError("hardware_ranks", f"{len(needed)} devices", remedy)

    def seat(self, ranks: Sequence[int]) -> _Seat:
        """The seat of a process on devices of one node and type, by their ranks."""
        chosen = [self._devices[rank] for rank in ranks]
        devices = tuple(device for _, device in chosen)
        nodes = sorted({device.node_rank for device in devices})
        if len(nodes) > 1:
            remedy = f"one process cannot span nodes {nodes}; give it devices of one node"
            raise PlacementError("hardware_ranks", list(ranks), remedy)
        types = sorted({device.type for device in devices})
        if len(types) > 1:
            remedy = f"one process cannot span device types {types}; give it devices of one type"
            raise PlacementError("hardware_ranks", list(ranks), remedy)
        group = chosen[0][0]
        return _Seat(group, next(node for node in group.nodes if node.node_rank == nodes[0]), devices)


def visibility(devices: Sequence[Device], node: NodeInfo) -> dict[str, str]:
    """The variables that show a process on `node` exactly `devices`, and of every other kind none."""
    # CUDA is hidden on every node: the libraries of some machines look for it without being asked.
    present = {"nvidia", CPU_SLOT, *(device.type for device in node.devices)}
    hidden = {kind_of(name).visible_env: "" for name in sorted(present)}
    shown = {
        kind_of(name).visible_env: kind_of(name).visible_value(device for device in devices if device.type == name)
        for name in {device.type for device in devices}
    }
    return {name: value for name, value in {**hidden, **shown}.items() if name}


def _place(seats: Sequence[_Seat], isolate: bool) -> list[Placement]:
    nodes = list(dict.fromkeys(seat.node.node_rank for seat in seats))
    sizes = {node: sum(seat.node.node_rank == node for seat in seats) for node in nodes}
    following = dict.fromkeys(nodes, 0)
    placements = []
    for rank, seat in enumerate(seats):
        node = seat.node
        placements.append(
            Placement(
                rank=rank,
                node_rank=node.node_rank,
                node_id=node.ray_id,
                placement_node_rank=nodes.index(node.node_rank),
                node_group_label=seat.group.label,
                local_rank=following[node.node_rank],
                local_world_size=sizes[node.node_rank],
                device_type=seat.devices[0].type if seat.devices else CPU_SLOT,
                devices=seat.devices,
                isolate_accelerator=isolate,
                visible_env=visibility(seat.devices, node) if isolate else {},
                env_vars=seat.group.get_node_env_vars(node.node_rank),
                python_interpreter_path=seat.group.get_node_python_interpreter_path(node.node_rank),
            )
        )
        following[node.node_rank] += 1
    return placements


def _ranks_of(entry: PlacementEntry, cluster: Machines) -> list[list[int]]:
    """The resource ranks of each process of a component."""
    try:
        groups = [cluster.get_node_group(label) for label in entry.labels]
    except ConfigError as error:
        raise PlacementError(f"{placement_key(entry.component)}.node_group", error.value, error.remedy) from error
    entry.check_labels(group.label for group in groups)
    count = sum(group.hardware_resource_count for group in groups)
    assignments = parse_placement(entry.text, count, component=entry.component)
    return [list(assignment.resources) for assignment in assignments for _ in assignment.processes]


def _strategy(entry: PlacementEntry, ranks: list[list[int]], cluster: Machines) -> PlacementStrategy:
    strategy: PlacementStrategy
    if NODE_LABEL in entry.labels:
        shared = next((nodes for nodes in ranks if len(nodes) > 1), None)
        if shared is not None:
            key, remedy = placement_key(entry.component), f"one process cannot span nodes {shared}"
            raise PlacementError(key, entry.text, remedy)
        strategy = NodePlacementStrategy([nodes[0] for nodes in ranks], entry.labels, keep_order=True)
    else:
        strategy = FlexiblePlacementStrategy(ranks, entry.labels, keep_order=True)
    try:
        strategy.get_placement(cluster)
    except PlacementError as error:
        raise PlacementError(placement_key(entry.component), entry.text, error.remedy) from error
    return strategy


def _placements_of(config: Any) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
    found = plain(config)
    for key in ("cluster", "component_placement"):
        if key == "cluster" and isinstance(found, ClusterConfig):
            continue
        inner = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
        if inner is None and key == "cluster" and _has_placements(found):
            continue
        if inner is None:
            raise PlacementError("cluster.component_placement", None, "is missing; say where each component runs")
        found = plain(inner)
    return found


def _has_placements(found: Any) -> bool:
    """Whether this is the cluster's own section rather than the whole configuration."""
    return "component_placement" in found if isinstance(found, Mapping) else hasattr(found, "component_placement")


def _labels(labels: str | Sequence[str] | None) -> tuple[str, ...]:
    if labels is None:
        return (CLUSTER_LABEL,)
    several = [labels] if isinstance(labels, str) else labels
    return tuple(part.strip() for label in several for part in label.split(","))


def _names(groups: Sequence[NodeGroupInfo]) -> str:
    return ", ".join(f"'{group.label}'" for group in groups)
