"""What a cluster is asked to be: nodes, node groups, placements."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.core.config import build
from headrace.core.errors import ConfigError, PlacementError, nearest
from headrace.system.cluster.grammar import parse_parts, parse_ranks, placement_key

CLUSTER_LABEL = "cluster"
NODE_LABEL = "node"
RESERVED_LABELS = (CLUSTER_LABEL, NODE_LABEL)

Ranks = str | int | tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """Hardware that no probe can find, such as robots. Each of `configs` is one device and names its `node_rank`."""

    type: str
    configs: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for i, config in enumerate(self.configs):
            rank = config.get("node_rank")
            if not isinstance(rank, int) or isinstance(rank, bool):
                raise ConfigError(f"configs.{i}.node_rank", rank, "say which node this device is attached to")


@dataclass(frozen=True, kw_only=True)
class NodeEnvConfig:
    """The software environment of some nodes of a group."""

    node_ranks: Ranks
    env_vars: dict[str, Any] | tuple[dict[str, Any], ...] = field(default_factory=dict)
    python_interpreter_path: str | None = None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return parse_ranks(self.node_ranks, key="node_ranks")

    @cached_property
    def env(self) -> dict[str, str]:
        return env_text(self.env_vars)

    def __post_init__(self) -> None:
        _ = self.ranks, self.env  # wrong ranks and variables raise where they are written


@dataclass(frozen=True, kw_only=True)
class NodeGroupConfig:
    """Nodes with one label, one kind of hardware and one environment (or, by `env_configs`, one a node).

    hardware_type: which devices of the nodes placements count: a type ("nvidia", "cpu" ...), or any Ray resource.
        None: their accelerators, or their CPU slots where they have none.
    ignore_hardware: count CPU slots even where there are accelerators.
    """

    label: str | int
    node_ranks: Ranks
    env_vars: dict[str, Any] | tuple[dict[str, Any], ...] = field(default_factory=dict)
    python_interpreter_path: str | None = None
    env_configs: tuple[NodeEnvConfig, ...] = ()
    hardware_type: str | None = None
    hardware: HardwareConfig | None = None
    ignore_hardware: bool = False

    @cached_property
    def name(self) -> str:
        """The label as text; YAML reads `label: 4090` as a number."""
        return str(self.label)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(parse_ranks(self.node_ranks, key="node_ranks")))

    def env_for(self, node_rank: int) -> dict[str, str]:
        """The variables that processes of this group get on a node."""
        own = next((entry.env for entry in self.env_configs if node_rank in entry.ranks), {})
        return {**env_text(self.env_vars), **own}

    def interpreter_for(self, node_rank: int) -> str | None:
        """The Python of this group's processes on a node; None is the node's own."""
        own = next((entry.python_interpreter_path for entry in self.env_configs if node_rank in entry.ranks), None)
        return own or self.python_interpreter_path

    def __post_init__(self) -> None:
        if not self.name or self.name in RESERVED_LABELS or "," in self.name:
            reserved = " and ".join(f"'{label}'" for label in RESERVED_LABELS)
            raise ConfigError("label", self.label, f"choose a label without commas; {reserved} are reserved")
        if not self.ranks:
            raise ConfigError("node_ranks", self.node_ranks, "a node group has at least one node")
        _ = env_text(self.env_vars)
        self._check_env_configs()
        self._check_hardware()

    def _check_env_configs(self) -> None:
        seen: set[int] = set()
        for i, entry in enumerate(self.env_configs):
            key = f"env_configs.{i}.node_ranks"
            if not set(entry.ranks) <= set(self.ranks):
                raise ConfigError(key, entry.node_ranks, f"these are not all in the group's own {self.node_ranks!r}")
            if seen & set(entry.ranks):
                raise ConfigError(key, entry.node_ranks, "a node stands in two env_configs; keep one of them")
            seen |= set(entry.ranks)

    def _check_hardware(self) -> None:
        if self.hardware is None:
            return
        if self.hardware_type not in (None, self.hardware.type):
            raise ConfigError("hardware_type", self.hardware_type, f"hardware.type says '{self.hardware.type}'")
        if self.ignore_hardware:
            raise ConfigError("ignore_hardware", True, "contradicts the hardware that is declared; remove one of them")
        for i, config in enumerate(self.hardware.configs):
            if config["node_rank"] not in self.ranks:
                key = f"hardware.configs.{i}.node_rank"
                raise ConfigError(key, config["node_rank"], f"the group's nodes are {self.node_ranks!r}")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Which machines a job runs on, and which of their devices each component gets.

    num_nodes: how many nodes there must be before the job starts; 0: as many as there are.
    address: a running Ray cluster to join, "host:port"; None starts a local one.
    component_placement: component(s) -> placement text, or {node_group, placement}; see `grammar`.
    probe_env_vars: variables whose value on each node `NodeInfo.env_vars` shows.
    cores_per_slot, slot_memory_bytes: how a node's CPU is cut into slots; 0 bytes: equal shares of its memory.
    pin_cores: whether processes are bound to their slot's cores.
    startup_timeout_s: how long nodes may take to join and answer.
    reserve_timeout_s: how long to wait for devices that another job holds.
    num_cpus, resources, object_store_memory_bytes: what a local Ray is started with; not for a joined one.
    """

    num_nodes: int = 1
    address: str | None = None
    component_placement: dict[str, Any] | tuple[dict[str, Any], ...] = field(default_factory=dict)
    node_groups: tuple[NodeGroupConfig, ...] = ()
    probe_env_vars: tuple[str, ...] = ()
    cores_per_slot: int = 1
    slot_memory_bytes: int = 0
    pin_cores: bool = False
    startup_timeout_s: float = 60.0
    reserve_timeout_s: float = 20.0
    num_cpus: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    object_store_memory_bytes: int | None = None

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], *, path: str = "cluster") -> ClusterConfig:
        """From plain mappings or an OmegaConf node, strictly.

        Raises:
            ConfigError: an unknown key or an impossible value, with its full path.
        """
        return build(cls, plain(data), path=path)

    @classmethod
    def from_dict_cfg(cls, cfg_dict: Mapping[str, Any]) -> ClusterConfig:
        """`from_mapping` under the name that RLinf's users know."""
        return cls.from_mapping(cfg_dict)

    def __post_init__(self) -> None:
        for key, least in (("num_nodes", 0), ("cores_per_slot", 1), ("slot_memory_bytes", 0)):
            if getattr(self, key) < least:
                raise ConfigError(key, getattr(self, key), f"must be at least {least}")
        for key in ("startup_timeout_s", "reserve_timeout_s"):
            if getattr(self, key) <= 0:
                raise ConfigError(key, getattr(self, key), "must be a positive number of seconds")
        if self.num_cpus is not None and self.num_cpus < 1:
            raise ConfigError("num_cpus", self.num_cpus, "must be at least 1; leave it out for all cores")
        self._check_address()
        labels = [group.name for group in self.node_groups]
        for i, label in enumerate(labels):
            if label in labels[:i]:
                raise ConfigError(f"node_groups.{i}.label", label, "another group has this label; labels are unique")
        try:
            for entry in read_placements(self.component_placement):
                entry.check_labels(labels)
        except PlacementError as error:  # keys here are relative to this section
            raise PlacementError(error.key.removeprefix("cluster."), error.value, error.remedy) from None

    def _check_address(self) -> None:
        if self.address is None:
            return
        started = {"num_cpus": self.num_cpus, "resources": self.resources}
        started["object_store_memory_bytes"] = self.object_store_memory_bytes
        for key, value in started.items():
            if value:
                raise ConfigError(key, value, f"is for a local Ray, but address = {self.address!r} joins one")


@dataclass(frozen=True, slots=True)
class PlacementEntry:
    """One component's line of `component_placement`. text: a placement text that parses; labels: its node groups."""

    component: str
    text: str
    labels: tuple[str, ...] = (CLUSTER_LABEL,)

    def check_labels(self, known: Iterable[str]) -> None:
        """Raises PlacementError unless every label is in `known` or reserved."""
        key = f"{placement_key(self.component)}.node_group"
        valid = [*known, *RESERVED_LABELS]
        for label in self.labels:
            if label not in valid:
                raise PlacementError(key, label, nearest(label, valid))
        if NODE_LABEL in self.labels and len(self.labels) > 1:
            raise PlacementError(key, ",".join(self.labels), "'node' counts whole nodes, so it stands alone")
        if len(set(self.labels)) < len(self.labels):
            raise PlacementError(key, ",".join(self.labels), "names a node group twice")


def read_placements(placements: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[PlacementEntry]:
    """One entry a component, in the order written, syntax checked (`actor,env: 0-3` is two).

    Raises:
        PlacementError: a text that does not parse; a component listed twice; an unknown key beside `placement`.
    """
    lines = [placements] if isinstance(placements, Mapping) else placements
    entries: dict[str, PlacementEntry] = {}
    for line in lines:
        for names, value in line.items():
            for component in (name.strip() for name in str(names).split(",")):
                if not component:
                    raise PlacementError("cluster.component_placement", names, "a component's name is empty")
                if component in entries:
                    raise PlacementError(placement_key(component), value, "is listed twice; place each component once")
                entries[component] = _read_entry(component, value)
    return list(entries.values())


def _read_entry(component: str, value: object) -> PlacementEntry:
    labels: tuple[str, ...] = (CLUSTER_LABEL,)
    if isinstance(value, Mapping):
        for name in value:
            if name not in ("placement", "node_group"):
                key = f"{placement_key(component)}.{name}"
                raise PlacementError(key, value[name], nearest(str(name), ("placement", "node_group")))
        if value.get("node_group") is not None:
            labels = _read_labels(value["node_group"])
        value = value.get("placement")
    parse_parts(value, component=component)
    return PlacementEntry(component, str(value), labels)


def _read_labels(value: object) -> tuple[str, ...]:
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else str(value).split(",")
    return tuple(str(label).strip() for label in several)


def env_text(variables: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Environment variables from a mapping, or from RLinf's list of one-key mappings.

    Raises:
        ConfigError: a variable stands twice, or its value is neither text nor a number.
    """
    merged: dict[str, str] = {}
    for entry in [variables] if isinstance(variables, Mapping) else variables:
        for name, value in entry.items():
            if name in merged:
                raise ConfigError(f"env_vars.{name}", value, "stands twice; give each variable once")
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise ConfigError(f"env_vars.{name}", value, "write the value as text, in quotes")
            merged[str(name)] = str(value)
    return merged


def plain(data: Any) -> Any:
    """`data` with OmegaConf nodes resolved to plain containers; anything else unchanged."""
    if type(data).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(data, resolve=True)
    return data


def as_cluster_config(config: ClusterConfig | Mapping[str, Any] | int | None, num_nodes: int | None) -> ClusterConfig:
    """What `Cluster` was given, as one ClusterConfig. `num_nodes` fills in where there is no configuration."""
    if isinstance(config, int):
        config, num_nodes = None, config
    if config is None:
        return ClusterConfig(num_nodes=0 if num_nodes is None else num_nodes)
    read = config if isinstance(config, ClusterConfig) else ClusterConfig.from_mapping(config)
    return read if num_nodes is None else dataclasses.replace(read, num_nodes=num_nodes)
