"""The exception tree: every fault that a user can meet, in one file.

A user's fault (`ConfigError` and its kin) names the key, the value and the remedy, and is raised before any
work starts. A machine's fault says which peer, which rank and where its log is.
"""

from __future__ import annotations

import asyncio
import difflib
import queue
from collections.abc import Iterable


class HeadraceError(Exception):
    """Base of every error that headrace raises on purpose."""


class ConfigError(HeadraceError, ValueError):
    """A configuration that cannot run. Names key path, value and remedy."""

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(key, value, remedy)
        self.key = key
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.remedy}"


class PlacementError(ConfigError):
    """A component placement that does not parse or does not fit the cluster."""


class ResourceError(HeadraceError):
    """More was asked of the cluster than it has or can give now."""


class ClusterError(HeadraceError):
    """The cluster cannot be reached, or its nodes do not agree."""


class WorkerError(HeadraceError):
    """A call on a worker failed; carries where it failed and where its log is."""

    def __init__(self, group: str, rank: int, method: str, cause: str, log_path: str = "", details: str = "") -> None:
        super().__init__(group, rank, method, cause, log_path, details)
        self.group = group
        self.rank = rank
        self.method = method
        self.cause = cause
        self.log_path = log_path
        self.details = details

    def __str__(self) -> str:
        log = f"\n  log: {self.log_path}" if self.log_path else ""
        details = f"\n{self.details}" if self.details else ""
        return f"{self.group} rank {self.rank}: {self.method}() failed: {self.cause}{log}{details}"


class WaitTimeoutError(HeadraceError, TimeoutError):
    """A wait reached its deadline."""


class PeerDeadError(HeadraceError, ConnectionError):
    """The process at the other end of a channel, message or lease is gone."""


class ChannelClosedError(HeadraceError):
    """The channel is closed, and (for a consumer) drained."""


class ChannelEmptyError(HeadraceError, asyncio.QueueEmpty, queue.Empty):
    """A non-blocking get found nothing. Also an `asyncio.QueueEmpty` and a `queue.Empty`."""


class ChannelFullError(HeadraceError, asyncio.QueueFull, queue.Full):
    """A non-blocking put found no room. Also an `asyncio.QueueFull` and a `queue.Full`."""


class EnvironmentFaultError(HeadraceError):
    """An environment emitted something unusable, raised, or stopped answering. Names env index, key and step."""


class CheckpointError(HeadraceError):
    """A checkpoint that cannot be read, or that does not fit what is being restored."""


_MAX_NAMES = 25


def nearest(name: str, valid: Iterable[str]) -> str:
    """A remedy that names the nearest valid name: "did you mean 'gamma'?", or the list of valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    if not names:
        return "there are none"
    more = f", and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"valid names: {', '.join(names[:_MAX_NAMES])}{more}"
