"""The control plane: five managers with separate state, served by one process.

Each manager is a plain state machine. Calls that must wait (a worker that is not there yet, a lock that is held)
return a `Waiting`; whoever serves the managers answers it when a later event settles it. What a process holds
(locks, ports) is a lease: when the process is gone, it is given back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import HeadraceError, PeerDeadError
from headrace.system.comm.context import ChannelRef
from headrace.system.runtime.address import WorkerAddress, WorkerInfo


@dataclass(eq=False, slots=True)
class Waiting:
    """An answer that is not there yet. `settle` and `refuse` are called once; `on_done` is the server's."""

    owner: str
    on_done: Callable[[Any, Exception | None], None] | None = None
    done: bool = False
    _early: tuple[Any, Exception | None] | None = field(default=None)

    def settle(self, value: Any) -> None:
        self._finish(value, None)

    def refuse(self, error: Exception) -> None:
        self._finish(None, error)

    def attach(self, on_done: Callable[[Any, Exception | None], None]) -> None:
        self.on_done = on_done
        if self._early is not None:
            on_done(*self._early)

    def _finish(self, value: Any, error: Exception | None) -> None:
        if self.done:
            return
        self.done = True
        if self.on_done is None:
            self._early = (value, error)
        else:
            self.on_done(value, error)


class NameTable:
    """Names that appear once and are waited for."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._waiting: dict[Any, list[Waiting]] = {}

    def publish(self, name: Any, value: Any) -> None:
        self._values[name] = value
        for waiting in self._waiting.pop(name, []):
            waiting.settle(value)

    def find(self, owner: str, name: Any) -> Waiting:
        waiting = Waiting(owner)
        if name in self._values:
            waiting.settle(self._values[name])
        else:
            self._waiting.setdefault(name, []).append(waiting)
        return waiting

    def withdraw(self, name: Any) -> None:
        self._values.pop(name, None)

    def forget(self, owner: str) -> None:
        """Stop waiting on behalf of a process that is gone."""
        for name, waiting in list(self._waiting.items()):
            self._waiting[name] = [w for w in waiting if w.owner != owner]

    def values(self) -> Iterable[Any]:
        return self._values.values()


class WorkerManager:
    """The registry of workers: address → node, process, endpoint."""

    def __init__(self) -> None:
        self._table = NameTable()
        self._homes: dict[str, set[WorkerAddress]] = {}
        self._dead: set[WorkerAddress] = set()

    def expect(self, owner: str, group: str) -> None:
        """A group of this name is being launched: who looks for its workers waits, whatever became of earlier ones."""
        del owner
        self._dead = {address for address in self._dead if address.root_group_name != group}

    def register(self, owner: str, info: WorkerInfo) -> None:
        self._dead.discard(info.address)
        self._homes.setdefault(owner, set()).add(info.address)
        self._table.publish(info.address, info)

    def find(self, owner: str, address: WorkerAddress) -> Waiting:
        """The worker's info, once it is registered.

        Raises:
            PeerDeadError: it was, and its process is gone.
        """
        if address in self._dead:
            raise PeerDeadError(f"worker {address.get_name()} is gone")
        return self._table.find(owner, address)

    def group(self, owner: str, name: str) -> list[WorkerInfo]:
        """The registered workers of a group, by rank."""
        del owner
        members = [info for info in self._table.values() if info.address.root_group_name == name]
        return sorted(members, key=lambda info: info.address)

    def deregister(self, owner: str, address: WorkerAddress) -> None:
        self._homes.get(owner, set()).discard(address)
        self._table.withdraw(address)

    def peer_gone(self, peer: str, clean: bool) -> None:
        """A process left: its workers are dead, or, where it left in order, no longer there."""
        self._table.forget(peer)
        for address in self._homes.pop(peer, set()):
            self._table.withdraw(address)
            if not clean:
                self._dead.add(address)


class CollectiveManager:
    """What the ends of a communication agree on: channels by name, and rendezvous of process groups."""

    def __init__(self) -> None:
        self._channels = NameTable()
        self._rendezvous = NameTable()

    def publish_channel(self, owner: str, ref: ChannelRef) -> None:
        del owner
        self._channels.publish(ref.name, ref)

    def find_channel(self, owner: str, name: str) -> Waiting:
        return self._channels.find(owner, name)

    def publish_rendezvous(self, owner: str, group: str, value: Any) -> None:
        """`value` is what the members need to meet: master address and port, say."""
        del owner
        self._rendezvous.publish(group, value)

    def find_rendezvous(self, owner: str, group: str) -> Waiting:
        return self._rendezvous.find(owner, group)

    def peer_gone(self, peer: str, clean: bool) -> None:
        del clean
        self._channels.forget(peer)
        self._rendezvous.forget(peer)


class NodeManager:
    """The nodes and node groups that the probe found."""

    def __init__(self, nodes: tuple[Any, ...] = ()) -> None:
        self._nodes = nodes

    def nodes(self, owner: str) -> tuple[Any, ...]:
        del owner
        return self._nodes

    def peer_gone(self, peer: str, clean: bool) -> None:
        del peer, clean


class DeviceLockManager:
    """Exclusive leases on sets of devices: all of a set or none, granted in the order of asking.

    A request waits while an earlier one that shares a device with it waits: nobody is overtaken for ever.
    """

    def __init__(self) -> None:
        self._holders: dict[Any, str] = {}
        self._queue: OrderedDict[int, tuple[Waiting, str, frozenset[Any]]] = OrderedDict()
        self._count = 0

    def acquire(self, owner: str, holder: str, devices: frozenset[Any]) -> Waiting:
        """Lease `devices` to `holder`, a name that `owner` (a process) chose.

        Raises:
            HeadraceError: `holder` has one of them already: waiting would never end.
        """
        lease = f"{owner}/{holder}"
        mine = [device for device in devices if self._holders.get(device) == lease]
        if mine:
            raise HeadraceError(f"{holder} holds device {mine[0]} already; release it before asking again")
        waiting = Waiting(owner)
        self._queue[self._count] = (waiting, lease, devices)
        self._count += 1
        self._grant()
        return waiting

    def release(self, owner: str, holder: str) -> None:
        lease = f"{owner}/{holder}"
        self._free(lambda held: held == lease)

    def holders(self, owner: str) -> dict[Any, str]:
        del owner
        return dict(self._holders)

    def withdraw(self, waiting: Waiting) -> None:
        """A request is no longer wanted (its deadline passed)."""
        self._queue = OrderedDict((n, entry) for n, entry in self._queue.items() if entry[0] is not waiting)
        self._grant()

    def peer_gone(self, peer: str, clean: bool) -> None:
        del clean  # a process that left in order holds nothing either
        self._queue = OrderedDict((n, entry) for n, entry in self._queue.items() if entry[0].owner != peer)
        self._free(lambda held: held.startswith(f"{peer}/"))

    def _free(self, is_freed: Callable[[str], bool]) -> None:
        self._holders = {device: held for device, held in self._holders.items() if not is_freed(held)}
        self._grant()

    def _grant(self) -> None:
        claimed: set[Any] = set(self._holders)
        for ticket, (waiting, lease, devices) in list(self._queue.items()):
            if claimed.isdisjoint(devices):
                del self._queue[ticket]
                self._holders.update(dict.fromkeys(devices, lease))
                waiting.settle(None)
            claimed |= devices


class PortLockManager:
    """Leases on network ports, one table a node."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int], str] = {}

    def lease(self, owner: str, host: str, port: int) -> bool:
        """Whether `port` of `host` is now leased to `owner` (False: another has it)."""
        return self._owners.setdefault((host, port), owner) == owner

    def release(self, owner: str, host: str, port: int) -> None:
        if self._owners.get((host, port)) == owner:
            del self._owners[host, port]

    def peer_gone(self, peer: str, clean: bool) -> None:
        del clean
        self._owners = {place: owner for place, owner in self._owners.items() if owner != peer}
