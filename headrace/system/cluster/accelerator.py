"""What a process can be placed on: accelerators, CPU slots, declared hardware such as robots.

A new accelerator is one `DeviceKind` here. Nothing else in headrace compares device names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import ConfigError

CPU_SLOT = "cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that processes take turns on. `local_rank` counts the devices of one type on one node from 0.

    memory_bytes: what the device has, or the budget of a CPU slot; 0 where nobody knows.
    cores: the CPU cores of a slot; empty for everything else.
    visible_id: what the visibility variable calls it (physical id or UUID); the local rank where they agree.
    config: what the user declared of it (a robot's address, its cameras ...).
    """

    type: str
    model: str
    local_rank: int
    node_rank: int
    memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    visible_id: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> tuple[int, str, int]:
        """What no other device of the cluster shares."""
        return self.node_rank, self.type, self.local_rank

    @property
    def visible_name(self) -> str:
        """What stands for this device in the visibility variable of its kind."""
        return self.visible_id or str(self.local_rank)


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What headrace must know of a type of device.

    resource: the Ray resource that counts it; "" where Ray knows nothing of it (robots).
    visible_env: the variable that hides and shows its devices to a process; "" where there is none.
    torch_type: the torch device type; "cpu" where torch cannot use it.
    torch_indexed: whether torch numbers the visible devices of this type.
    aliases: other names that configurations may use.
    manager: the class of Ray that finds it on a node.
    """

    type: str
    resource: str
    visible_env: str
    torch_type: str = "cpu"
    torch_indexed: bool = True
    aliases: tuple[str, ...] = ()
    manager: str = ""
    visible_prefix: str = ""

    def answers_to(self, name: str) -> bool:
        return name in (self.type, self.resource, *self.aliases)

    def visible_value(self, devices: Iterable[Device]) -> str:
        """The value of `visible_env` that shows exactly `devices`; "" shows none."""
        return ",".join(f"{self.visible_prefix}{device.visible_name}" for device in devices)


_KINDS: dict[str, DeviceKind] = {}


def register_kind(kind: DeviceKind) -> None:
    """Make a type of device known; a later one of the same type replaces the earlier."""
    _KINDS[kind.type] = kind


def learn_kinds(kinds: Iterable[DeviceKind]) -> None:
    """Register those of `kinds` that are new here: what a newer Ray finds is named after its resource."""
    for kind in kinds:
        _KINDS.setdefault(kind.type, kind)


def accelerator_kinds() -> list[DeviceKind]:
    """Every registered kind but CPU slots, in the order of registration."""
    return [kind for kind in _KINDS.values() if kind.type != CPU_SLOT]


def kind_of(device_type: str) -> DeviceKind:
    """The kind of a type; a type that nobody registered is counted by the Ray resource of its own name."""
    return _KINDS.get(device_type) or declared_kind(device_type, resource=device_type)


def declared_kind(device_type: str, resource: str) -> DeviceKind:
    """The kind of a type that only the user's configuration knows: a robot, or a custom Ray resource."""
    return DeviceKind(device_type, resource, f"HEADRACE_VISIBLE_{re.sub(r'[^A-Za-z0-9]', '_', device_type).upper()}")


def kinds_named(name: str) -> list[DeviceKind]:
    """Every registered kind that answers to `name`: its type, its Ray resource or an alias ("GPU" is several)."""
    return [kind for kind in _KINDS.values() if kind.answers_to(name)]


def kind_found_by(manager: str) -> DeviceKind | None:
    """The kind whose devices Ray finds through the class `manager`."""
    return next((kind for kind in _KINDS.values() if kind.manager == manager), None)


def torch_device_for(device: Device, visible: Sequence[Device] | None = None) -> str:
    """The torch device string of `device` in a process that sees `visible` (None: that sees only this one)."""
    kind = kind_of(device.type)
    if kind.torch_type == "cpu" or not kind.torch_indexed:
        return kind.torch_type
    same = [other.local_rank for other in visible or (device,) if other.type == device.type]
    return f"{kind.torch_type}:{same.index(device.local_rank)}"


def cpu_slots(
    node_rank: int, cores: Sequence[int], num_cpus: int, memory_bytes: int, cores_per_slot: int, slot_memory_bytes: int
) -> tuple[Device, ...]:
    """The CPU slots of a node: `num_cpus // cores_per_slot`, each with its cores and an equal share of memory.

    Where Ray was told of more CPUs than there are cores, slots share cores in turn.

    Raises:
        ConfigError: a slot needs more cores than the node has.
    """
    count = num_cpus // cores_per_slot
    if count == 0 and num_cpus > 0:
        raise ConfigError("cluster.cores_per_slot", cores_per_slot, f"node {node_rank} has only {num_cpus} CPUs")
    budget = slot_memory_bytes or memory_bytes // max(count, 1)
    first = [slot * cores_per_slot for slot in range(count)]
    return tuple(
        Device(
            type=CPU_SLOT,
            model=f"{cores_per_slot} core{'s' if cores_per_slot > 1 else ''}",
            local_rank=slot,
            node_rank=node_rank,
            memory_bytes=budget,
            cores=tuple(sorted({cores[(start + i) % len(cores)] for i in range(cores_per_slot)})) if cores else (),
        )
        for slot, start in enumerate(first)
    )


for _kind in (
    DeviceKind(CPU_SLOT, "CPU", "HEADRACE_VISIBLE_SLOTS"),
    DeviceKind("nvidia", "GPU", "CUDA_VISIBLE_DEVICES", "cuda", True, ("NV_GPU",), "NvidiaGPUAcceleratorManager"),
    DeviceKind("amd", "GPU", "HIP_VISIBLE_DEVICES", "cuda", True, ("AMD_GPU",), "AMDGPUAcceleratorManager"),
    DeviceKind("intel", "GPU", "ZE_AFFINITY_MASK", "xpu", True, ("INTEL_GPU",), "IntelGPUAcceleratorManager"),
    DeviceKind("metax", "GPU", "CUDA_VISIBLE_DEVICES", "cuda", True, ("METAX_GPU",), "MetaxGPUAcceleratorManager"),
    DeviceKind("apple", "GPU", "", "mps", False, (), "AppleGPUAcceleratorManager"),
    DeviceKind("ascend", "NPU", "ASCEND_RT_VISIBLE_DEVICES", "npu", True, (), "NPUAcceleratorManager"),
    DeviceKind("musa", "MUSA", "MUSA_VISIBLE_DEVICES", "musa", True, ("MUSA_GPU",), "MUSAAcceleratorManager"),
    DeviceKind("gaudi", "HPU", "HABANA_VISIBLE_MODULES", "hpu", False, (), "HPUAcceleratorManager"),
    DeviceKind("tpu", "TPU", "TPU_VISIBLE_CHIPS", "xla", False, (), "TPUAcceleratorManager"),
    DeviceKind("neuron", "neuron_cores", "NEURON_RT_VISIBLE_CORES", "xla", False, (), "NeuronAcceleratorManager"),
    DeviceKind("rebellions", "RBLN", "RBLN_DEVICES", "rbln", True, (), "RBLNAcceleratorManager"),
    DeviceKind("furiosa", "FURIOSA", "FURIOSA_DEVICES", "cpu", False, (), "FuriosaAcceleratorManager", "npu"),
    DeviceKind("mobilint", "MBLT", "QBRUNTIME_VISIBLE_DEVICES", "cpu", False, (), "MBLTAcceleratorManager"),
    DeviceKind("tenstorrent", "TTNPU", "TT_VISIBLE_DEVICES", "cpu", False, (), "TTNPUAcceleratorManager"),
):
    register_kind(_kind)
