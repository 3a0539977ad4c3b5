"""Devices taken from Ray for one job, so that no other job uses them.

Each device is a placement group of one bundle: Ray counts its resources as used, its name says which device it is, and
names are unique. So two jobs never hold one device, and Ray takes everything back when a job's driver dies. The job's
workers ask for no resources of their own: they enter the bundle of a device of theirs, which pins them to its node, and
so components can share a device in turn.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import ResourceError
from headrace.system.cluster.accelerator import CPU_SLOT, Device, kind_of
from headrace.system.cluster.node import NodeInfo
from headrace.system.cluster.placement import Placement

_POLL_S = 0.1
# What stands for hardware that Ray does not count: a bundle must hold something.
_TOKEN_AMOUNT = 0.001

DeviceKey = tuple[int, str, int]


# How many clusters of this process hold each placement group that it made; the last one gives it back.
_holders: Counter[str] = Counter()


class Reservations:
    """The devices that a job holds. nodes: by node rank; cores_per_slot: the CPUs of one slot."""

    def __init__(self, nodes: Sequence[NodeInfo], cores_per_slot: int, timeout_s: float) -> None:
        self._nodes = nodes
        self._cores_per_slot = cores_per_slot
        self._timeout_s = timeout_s
        self._groups: dict[DeviceKey, Any] = {}
        self._to_give_back: dict[str, Any] = {}
        self._lock = threading.Lock()

    def reserve(self, placements: Sequence[Placement]) -> list[Any]:
        """Take the devices of `placements` that the job does not hold yet: all of them or none.

        Returns one Ray scheduling strategy a placement. A placement on a node as a whole takes nothing.

        Raises:
            ResourceError: they are not there, or not free within the time limit; says how much is, on each node.
        """
        devices = {device.key: device for placement in placements for device in placement.devices}
        with self._lock:
            # In one order everywhere, so that two jobs never hold half each of what both need.
            missing = [devices[key] for key in sorted(devices) if key not in self._groups]
            self._check_totals(list(devices.values()))
            taken: dict[str, Any] = {}
            try:
                self._groups.update(self._take(missing, taken))
            except BaseException:
                _give_back(taken)
                raise
            self._to_give_back.update(taken)
            return [self._strategy(placement) for placement in placements]

    def release(self) -> None:
        """Give everything back. Idempotent."""
        with self._lock:
            taken, self._to_give_back = self._to_give_back, {}
            self._groups.clear()
            _give_back(taken)

    def _take(self, missing: Sequence[Device], taken: dict[str, Any]) -> dict[DeviceKey, Any]:
        deadline = time.monotonic() + self._timeout_s
        groups: dict[DeviceKey, Any] = {}
        for device in missing:
            group = self._claim(device, taken, deadline)
            if group is None:
                raise self._shortage(missing, f"another job holds {_name(device)}")
            groups[device.key] = group
        for group in groups.values():
            if not group.wait(max(deadline - time.monotonic(), 0.0)):
                raise self._shortage(missing, "they are in use")
        return groups

    def _claim(self, device: Device, taken: dict[str, Any], deadline: float) -> Any | None:
        """The placement group that is this device; None if another job keeps it until the deadline."""
        node = self._nodes[device.node_rank]
        name = f"device:{node.ray_id}:{device.type}:{device.local_rank}"
        while True:
            group = _find(name)
            if group is None:
                group = _make(name, node, self._amounts(device))
                if group is not None:
                    _holders[name] += 1
                    taken[name] = group
                    return group
            elif _is_of_this_job(group):
                if name in _holders:
                    _holders[name] += 1
                    taken[name] = group
                return group
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)

    def _amounts(self, device: Device) -> dict[str, float]:
        """What Ray is asked for, for one device."""
        if device.type == CPU_SLOT:
            return {"CPU": self._cores_per_slot}
        resource = kind_of(device.type).resource
        return {f"node:{self._nodes[device.node_rank].address}": _TOKEN_AMOUNT} if device.config else {resource: 1}

    def _check_totals(self, devices: Sequence[Device]) -> None:
        """Refuse at once what could never be had."""
        needed = self._needed(devices)
        nodes = _totals()
        for rank, amounts in needed.items():
            there = nodes.get(self._nodes[rank].ray_id, {}) if rank < len(self._nodes) else {}
            if any(amount > there.get(resource, 0) for resource, amount in amounts.items()):
                raise self._shortage(devices, "there are not as many")

    def _needed(self, devices: Sequence[Device]) -> dict[int, Counter[str]]:
        needed: dict[int, Counter[str]] = {}
        for device in devices:
            needed.setdefault(device.node_rank, Counter()).update(self._amounts(device))
        return needed

    def _shortage(self, devices: Sequence[Device], reason: str) -> ResourceError:
        """What is needed and what is there, node by node. What this job holds already is available to it."""
        free, totals = _free(), _totals()
        held = self._needed([device for device in devices if device.key in self._groups])
        lines = [f"cannot reserve {len(devices)} devices: {reason}"]
        for rank, amounts in sorted(self._needed(devices).items()):
            node = self._nodes[rank]
            for resource, amount in sorted(amounts.items()):
                total = totals.get(node.ray_id, {}).get(resource, 0)
                available = free.get(node.ray_id, {}).get(resource, 0) + held.get(rank, {}).get(resource, 0)
                lines.append(
                    f"  node {rank} ({node.address}): needs {amount:g} {resource}, available {available:g} of {total:g}"
                )
        return ResourceError("\n".join(lines))

    def _strategy(self, placement: Placement) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        if not placement.devices:
            return NodeAffinitySchedulingStrategy(placement.node_id, soft=False)
        group = self._groups[placement.devices[0].key]
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)


def _name(device: Device) -> str:
    return f"{device.type} {device.local_rank} of node {device.node_rank}"


def _find(name: str) -> Any | None:
    from ray.util.placement_group import get_placement_group

    try:
        return get_placement_group(name)
    except ValueError:
        return None


def _is_of_this_job(group: Any) -> bool:
    import ray

    # A placement group's id ends with the id of the job that made it.
    return group.id.hex().endswith(ray.get_runtime_context().get_job_id())


def _make(name: str, node: NodeInfo, amounts: Mapping[str, float]) -> Any | None:
    """A placement group on a node; None if another job was faster to take the name."""
    from ray.exceptions import RaySystemError
    from ray.util.placement_group import placement_group

    try:
        return placement_group([dict(amounts)], name=name, bundle_label_selector=[{"ray.io/node-id": node.ray_id}])
    except RaySystemError as error:
        if "already exists" not in str(error):
            raise
        return None


def _give_back(groups: Mapping[str, Any]) -> None:
    import ray
    from ray.util.placement_group import remove_placement_group

    for name, group in groups.items():
        _holders[name] -= 1
        if _holders[name]:
            continue
        del _holders[name]
        if ray.is_initialized():  # else Ray has taken everything back, and asking it would start another
            remove_placement_group(group)


def _totals() -> dict[str, Mapping[str, float]]:
    """What each alive node has, by Ray id."""
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _free() -> dict[str, Mapping[str, float]]:
    """What is unused on each node now, by Ray id."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()
