"""What a worker is told when it is made: who it is, where it sits, what it may see."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.system.cluster.accelerator import Device
from headrace.system.runtime.address import WorkerInfo
from headrace.system.runtime.session import Session

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place. `local_rank` counts the group's workers of the same node."""

    session: Session
    info: WorkerInfo
    devices: tuple[Device, ...]
    logger: logging.Logger
    local_rank: int = 0
    local_world_size: int = 1


def concurrent(method: F) -> F:
    """Mark a worker's method as one that runs beside its other calls, instead of after them.

    Coroutine methods always do. Use it for loops that last (`interact`) and for what must reach them (`stop`).
    """
    method.__headrace_concurrent__ = True  # type: ignore[attr-defined]
    return method


def is_concurrent(method: Callable[..., Any]) -> bool:
    """Whether `method` carries the mark."""
    return getattr(method, "__headrace_concurrent__", False)
