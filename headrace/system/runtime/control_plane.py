"""The process that keeps the managers, and how every other process asks them."""

from __future__ import annotations

import time
from typing import Any

from headrace.core.errors import HeadraceError, WaitTimeoutError
from headrace.system.comm.endpoint import Endpoint
from headrace.system.comm.service import EndpointAddress, Request
from headrace.system.runtime.managers import (
    CollectiveManager,
    DeviceLockManager,
    NodeManager,
    PortLockManager,
    Waiting,
    WorkerManager,
)

SERVICE = "managers"
ACTOR_NAME = "headrace-control-plane"


class ManagersService:
    """Serves the five managers on an endpoint: `(manager, method, arguments, timeout_s)`."""

    def __init__(self, endpoint: Endpoint, nodes: tuple[Any, ...] = ()) -> None:
        self._endpoint = endpoint
        self._device_locks = DeviceLockManager()
        self._managers: dict[str, Any] = {
            "worker": WorkerManager(),
            "collective": CollectiveManager(),
            "node": NodeManager(nodes),
            "device_lock": self._device_locks,
            "port_lock": PortLockManager(),
        }

    def on_request(self, request: Request) -> None:
        manager, method, args, timeout_s = request.head
        if method.startswith("_"):
            raise HeadraceError(f"{manager}.{method} is private")
        result = getattr(self._managers[manager], method)(request.peer, *args)
        if not isinstance(result, Waiting):
            request.answer(result)
            return
        result.attach(lambda value, error: request.answer(value) if error is None else request.fail(error))
        if timeout_s is not None and not result.done:
            what = f"{manager}.{method}{args!r}"
            self._endpoint.call_at(time.monotonic() + timeout_s, lambda: self._expire(result, what, timeout_s))

    def on_peer_gone(self, peer: str, clean: bool) -> None:
        for manager in self._managers.values():
            manager.peer_gone(peer, clean)

    def _expire(self, waiting: Waiting, what: str, timeout_s: float) -> None:
        if not waiting.done:
            self._device_locks.withdraw(waiting)
            waiting.refuse(WaitTimeoutError(f"{what}: nothing after {timeout_s} s"))


class ControlPlane:
    """The actor: an endpoint with the managers on it."""

    def __init__(self, node: str, host: str, token: bytes, nodes: tuple[Any, ...]) -> None:
        self._endpoint = Endpoint(name="control plane", node=node, host=host, token=token)
        self._endpoint.serve(SERVICE, ManagersService(self._endpoint, nodes))

    def address(self) -> EndpointAddress:
        return self._endpoint.address


class ManagersClient:
    """Asks the managers from any process of the job."""

    def __init__(self, endpoint: Endpoint, control_plane: EndpointAddress) -> None:
        self._endpoint = endpoint
        self._control_plane = control_plane

    def ask(self, manager: str, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        """Call `manager.method(*args)`; blocks until it is answered.

        Raises:
            WaitTimeoutError: the managers had no answer within `timeout_s`.
            PeerDeadError: the control plane is gone.
        """
        head = (manager, method, args, timeout_s)
        return self._endpoint.request(self._control_plane, SERVICE, head).result().value
