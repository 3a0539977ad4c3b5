"""What the communication rooms need to know of the process they are in: a port, filled by the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.system.comm.endpoint import Endpoint
from headrace.system.comm.service import EndpointAddress


@dataclass(frozen=True, slots=True)
class ChannelRef:
    """Where a channel's broker is."""

    name: str
    maxsize: int
    broker: EndpointAddress


class Context(Protocol):
    """This process's place in the job."""

    @property
    def endpoint(self) -> Endpoint: ...

    def host_channel(self, name: str, maxsize: int, node_rank: int | None) -> ChannelRef:
        """Start a broker (in this process, or on node `node_rank`) and register its name."""
        ...

    def find_channel(self, name: str, timeout_s: float) -> ChannelRef:
        """Look a channel up by name, waiting for its creation."""
        ...


_provider: Callable[[], Context] | None = None


def set_provider(provider: Callable[[], Context]) -> None:
    """Say how this process finds its context; the runtime does so when it is imported."""
    global _provider
    _provider = provider


def current() -> Context:
    """This process's context."""
    assert _provider is not None, "headrace.system was not imported as a whole"
    return _provider()
