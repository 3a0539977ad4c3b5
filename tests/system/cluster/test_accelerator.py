from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.system.cluster.accelerator import (
    Device,
    DeviceKind,
    accelerator_kinds,
    cpu_slots,
    kind_found_by,
    kind_of,
    kinds_named,
    learn_kinds,
    torch_device_for,
)


def test_every_accelerator_that_ray_knows_is_known_as_ray_knows_it() -> None:
    from ray._private.accelerators import get_all_accelerator_managers

    for manager in get_all_accelerator_managers():
        kind = kind_found_by(manager.__name__)
        assert kind is not None, f"{manager.__name__} has no DeviceKind"
        assert kind.resource == manager.get_resource_name()
        assert kind.visible_env == (manager.get_visible_accelerator_ids_env_var() or "")


@pytest.mark.parametrize(
    ("device_type", "expected"),
    [
        ("nvidia", "cuda:0"),
        ("amd", "cuda:0"),
        ("intel", "xpu:0"),
        ("ascend", "npu:0"),
        ("apple", "mps"),
        ("cpu", "cpu"),
    ],
)
def test_a_device_has_a_name_in_torch(device_type: str, expected: str) -> None:
    assert torch_device_for(Device(device_type, "", 5, 0)) == expected


def test_torch_counts_the_devices_that_a_process_sees() -> None:
    second, fourth = Device("nvidia", "", 2, 0), Device("nvidia", "", 4, 0)
    assert torch_device_for(fourth, [second, fourth]) == "cuda:1"


def test_an_unknown_type_is_its_own_ray_resource_and_torch_cannot_use_it() -> None:
    kind = kind_of("fake-npu")
    assert (kind.resource, kind.visible_env) == ("fake-npu", "HEADRACE_VISIBLE_FAKE_NPU")
    assert torch_device_for(Device("fake-npu", "", 0, 0)) == "cpu"


def test_kinds_answer_to_their_aliases_and_resources() -> None:
    assert [kind.type for kind in kinds_named("NV_GPU")] == ["nvidia"]
    assert {"nvidia", "amd"} <= {kind.type for kind in kinds_named("GPU")}
    assert kinds_named("Franka") == []


def test_visible_names_are_physical_where_they_differ_from_ranks() -> None:
    devices = [Device("nvidia", "", 0, 0, visible_id="GPU-a"), Device("nvidia", "", 1, 0)]
    assert kind_of("nvidia").visible_value(devices) == "GPU-a,1"
    assert kind_of("furiosa").visible_value([Device("furiosa", "", 3, 0)]) == "npu3"


def test_learning_a_kind_does_not_replace_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.system.cluster import accelerator

    monkeypatch.setattr(accelerator, "_KINDS", dict(accelerator._KINDS))
    learn_kinds([DeviceKind("nvidia", "X", ""), DeviceKind("newcomer", "NEW", "NEW_VISIBLE")])
    assert kind_of("nvidia").resource == "GPU"
    assert kind_of("newcomer").visible_env == "NEW_VISIBLE"
    assert "cpu" not in {kind.type for kind in accelerator_kinds()}


def test_cpu_slots_divide_cores_and_memory() -> None:
    slots = cpu_slots(3, cores=(4, 5, 6, 7), num_cpus=4, memory_bytes=1000, cores_per_slot=2, slot_memory_bytes=0)
    assert [(slot.local_rank, slot.cores, slot.memory_bytes) for slot in slots] == [(0, (4, 5), 500), (1, (6, 7), 500)]
    assert {(slot.type, slot.node_rank) for slot in slots} == {("cpu", 3)}


def test_slots_share_cores_where_ray_was_told_of_more() -> None:
    slots = cpu_slots(0, cores=(0, 1), num_cpus=4, memory_bytes=0, cores_per_slot=1, slot_memory_bytes=7)
    assert [slot.cores for slot in slots] == [(0,), (1,), (0,), (1,)]
    assert {slot.memory_bytes for slot in slots} == {7}


def test_a_slot_larger_than_its_node_is_refused() -> None:
    with pytest.raises(ConfigError, match="node 0 has only 2 CPUs"):
        cpu_slots(0, cores=(0, 1), num_cpus=2, memory_bytes=0, cores_per_slot=3, slot_memory_bytes=0)
