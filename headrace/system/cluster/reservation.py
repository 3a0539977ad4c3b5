"""Devices taken from Ray for one job, so that no other job uses them.

Each device is a placement group of one bundle: Ray counts its resources as used, its name says which device it is, and
names are unique. So two jobs never hold one device, and Ray takes everything back when a job's driver dies. The job's
workers ask for no resources of their own: they enter the bundle of a device of theirs, which pins them to its node, and
so components can share a device in turn.
"""

from __future__ import annotations

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


class Reservations:
    """The devices that a job holds. nodes: by node rank; cores_per_slot: the CPUs of one slot."""

    def __init__(self, nodes: Sequence[NodeInfo], cores_per_slot: int, timeout_s: float) -> None:
        self._nodes = nodes
        self._cores_per_slot = cores_per_slot
        self._timeout_s = timeout_s
        self._held: dict[DeviceKey, Any] = {}
        self._created: dict[DeviceKey, Any] = {}

    def reserve(self, placements: Sequence[Placement]) -> list[Any]:
        """Take the devices of `placements` that the job does not hold yet: all of them or none.

        Returns one Ray scheduling strategy a placement. A placement on a node as a whole takes nothing.

        Raises:
            ResourceError: they are not there, or not free within the time limit; says how much is, on each node.
        """
        devices = {key_of(device): device for placement in placements for device in placement.devices}
        # In one order everywhere, so that two jobs never hold half each of what both need.
        missing = {key: devices[key] for key in sorted(devices) if key not in self._held}
        self._check_totals(missing.values())
        taken: dict[DeviceKey, Any] = {}
        try:
            self._take(missing, taken)
        except BaseException:
            _give_back(taken)
            raise
        self._created.update(taken)
        return [self._strategy(placement) for placement in placements]

    def release(self) -> None:
        """Give everything back. Idempotent."""
        created, self._created = self._created, {}
        self._held.clear()
        _give_back(created)

    def _take(self, missing: Mapping[DeviceKey, Device], taken: dict[DeviceKey, Any]) -> None:
        deadline = time.monotonic() + self._timeout_s
        groups: dict[DeviceKey, Any] = {}
        for key, device in missing.items():
            groups[key] = self._claim(key, device, taken, deadline)
            if groups[key] is None:
                raise ResourceError(self._shortage(missing.values(), f"another job holds {_name(device)}"))
        for key, group in groups.items():
            if not group.wait(max(deadline - time.monotonic(), 0.0)):
                raise ResourceError(self._shortage(missing.values(), "they are in use"))
            self._held[key] = group

    def _claim(self, key: DeviceKey, device: Device, taken: dict[DeviceKey, Any], deadline: float) -> Any | None:
        """The placement group that is this device; None if another job keeps it until the deadline."""
        import ray
        from ray.util.placement_group import placement_group

        node = self._nodes[device.node_rank]
        name = f"device:{node.ray_id}:{device.type}:{device.local_rank}"
        while True:
            known = _find(name)
            if known is None:
                try:
                    taken[key] = placement_group(
                        [self._amounts(device)], name=name, bundle_label_selector=[{"ray.io/node-id": node.ray_id}]
                    )
                    return taken[key]
                except ray.exceptions.RaySystemError:  # another job was faster
                    known = _find(name)
            if known is not None and _is_of_this_job(known):
                return known  # taken by another process of this job
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)

    def _amounts(self, device: Device) -> dict[str, float]:
        """What Ray is asked for, for one device."""
        if device.type == CPU_SLOT:
            return {"CPU": self._cores_per_slot}
        resource = kind_of(device.type).resource
        return {f"node:{self._nodes[device.node_rank].address}": _TOKEN_AMOUNT} if device.config else {resource: 1}

    def _check_totals(self, devices: Any) -> None:
        """Refuse at once what could never be had."""
        needed = self._needed(devices)
        nodes = _totals()
        for rank, amounts in needed.items():
            there = nodes.get(self._nodes[rank].ray_id, {}) if rank < len(self._nodes) else {}
            if any(amount > there.get(resource, 0) for resource, amount in amounts.items()):
                raise ResourceError(self._shortage(devices, "there are not as many"))

    def _needed(self, devices: Any) -> dict[int, Counter[str]]:
        needed: dict[int, Counter[str]] = {}
        for device in devices:
            needed.setdefault(device.node_rank, Counter()).update(self._amounts(device))
        return needed

    def _shortage(self, devices: Any, reason: str) -> str:
        """What is needed and what is there, node by node."""
        free, totals = _free(), _totals()
        lines = [f"cannot reserve {len(list(devices))} devices: {reason}"]
        for rank, amounts in sorted(self._needed(devices).items()):
            node = self._nodes[rank]
            for resource, amount in sorted(amounts.items()):
                available, total = (table.get(node.ray_id, {}).get(resource, 0) for table in (free, totals))
                lines.append(
                    f"  node {rank} ({node.address}): needs {amount:g} {resource}, available {available:g} of {total:g}"
                )
        return "\n".join(lines)

    def _strategy(self, placement: Placement) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        if not placement.devices:
            return NodeAffinitySchedulingStrategy(placement.node_id, soft=False)
        group = self._held[key_of(placement.devices[0])]
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)


def key_of(device: Device) -> DeviceKey:
    """A device's identity in the cluster."""
    return device.node_rank, device.type, device.local_rank


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


def _give_back(groups: Mapping[DeviceKey, Any]) -> None:
    from ray.util.placement_group import remove_placement_group

    for group in groups.values():
        remove_placement_group(group)


def _totals() -> dict[str, Mapping[str, float]]:
    """What each alive node has, by Ray id."""
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _free() -> dict[str, Mapping[str, float]]:
    """What is unused on each node now, by Ray id."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()
