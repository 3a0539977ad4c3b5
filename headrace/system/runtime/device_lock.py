"""A worker's side of the device lock."""

from __future__ import annotations

from types import TracebackType

from headrace.system.cluster.accelerator import Device
from headrace.system.runtime.control_plane import ManagersClient


class DeviceLock:
    """Exclusive use of a worker's devices, all or none; a lease that ends with the worker's process."""

    def __init__(self, managers: ManagersClient, holder: str, devices: tuple[Device, ...]) -> None:
        self._managers = managers
        self._holder = holder
        self._devices = frozenset((device.node_rank, device.type, device.local_rank) for device in devices)

    def acquire(self, timeout_s: float | None = None) -> None:
        """Wait for the devices. A worker without devices has nothing to wait for.

        Raises:
            WaitTimeoutError: another worker kept one of them for `timeout_s`.
            HeadraceError: this worker holds them already.
        """
        if self._devices:
            self._managers.ask("device_lock", "acquire", self._holder, self._devices, timeout_s=timeout_s)

    def release(self) -> None:
        """Give them back. Harmless when nothing is held."""
        if self._devices:
            self._managers.ask("device_lock", "release", self._holder)

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
