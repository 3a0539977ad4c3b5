"""The placement grammar: `resources[:processes]`, comma-separated. Pure text in, ranks out.

0-3            processes 0 to 3, one on each of resources 0 to 3
0-1:0-3        processes 0 and 1 share resource 0, processes 2 and 3 share resource 1
0-3:0-1        process 0 owns resources 0 and 1, process 1 owns 2 and 3
all            every resource, one process on each
0-1:0-3,3-5    several parts; a part without processes goes on counting where the part before it stopped
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from headrace.core.errors import PlacementError

MAX_PROCESSES = 100_000

_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`processes` (ranks) that have the same `resources` (ranks). One of the two holds a single rank."""

    processes: tuple[int, ...]
    resources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One comma-separated part. resources: None for `all`; processes: None where they are implied."""

    text: str
    resources: range | None
    processes: range | None


def parse_placement(text: object, num_resources: int, *, component: str) -> list[Assignment]:
    """Which processes go on which of resources 0 .. num_resources-1, in the order of process ranks.

    Raises:
        PlacementError: `text` is not text, does not follow the grammar, names a resource twice or one that is not
            there, or leaves a gap in the process ranks, which go from 0 to N-1. Names `component` and `text`.
    """
    parts = parse_parts(text, component=component)
    key = placement_key(component)
    whole = [part.resources if part.resources is not None else range(num_resources) for part in parts]
    _check_resources(key, text, whole, num_resources)
    assignments: list[Assignment] = []
    following = 0
    for part, resources in zip(parts, whole, strict=True):
        processes = part.processes if part.processes is not None else range(following, following + len(resources))
        following = processes.stop
        assignments += _spread(key, text, part, processes, resources)
    return sorted(assignments, key=lambda assignment: assignment.processes)


def parse_parts(text: object, *, component: str) -> list[Part]:
    """The parts of a placement text, checked as far as that goes without knowing the cluster."""
    key = placement_key(component)
    if not isinstance(text, str):
        raise PlacementError(key, text, _not_text(text))
    if not text.strip():
        raise PlacementError(key, text, "is empty; write resource ranks such as '0-3', or 'all'")
    parts = [_parse_part(key, text, part.strip()) for part in text.split(",")]
    _check_processes(key, text, parts)
    return parts


def parse_ranks(text: object, *, key: str) -> tuple[int, ...]:
    """Ranks from `3`, `[0, 2]`, `"0-3"` or `"0-3,6"`, in the order given.

    Raises:
        PlacementError: anything else, or a rank given twice.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        ranks = [text]
    elif isinstance(text, str) and text.strip():
        ranks = [rank for part in text.split(",") for rank in _parse_range(key, text, part.strip())]
    elif isinstance(text, Iterable) and not isinstance(text, str):
        ranks = [rank for entry in text for rank in parse_ranks(entry, key=key)]
    else:
        raise PlacementError(key, text, "write ranks as a list of integers, or as text such as '0-3'")
    if any(rank < 0 for rank in ranks) or len(set(ranks)) < len(ranks):
        raise PlacementError(key, text, "ranks count from 0 and stand once each")
    return tuple(ranks)


def placement_key(component: str) -> str:
    """The full key path of a component's placement."""
    return f"cluster.component_placement.{component}"


def _not_text(value: object) -> str:
    if value is None:
        return "is empty; write resource ranks such as '0-3', or 'all'"
    if isinstance(value, int) and not isinstance(value, bool):
        sexagesimal = f" (YAML reads an unquoted {value // 60}:{value % 60:02d} as this number)" if value >= 60 else ""
        return f"is a number where text is meant{sexagesimal}; quote it, as in '0-3:0-7' or '{max(value, 0)}'"
    return "is not text; write resource ranks in quotes, as in '0-3:0-7'"


def _parse_part(key: str, text: str, part: str) -> Part:
    resources, colon, processes = (piece.strip() for piece in part.partition(":"))
    return Part(
        text=part,
        resources=None if resources == "all" else _parse_range(key, text, resources),
        processes=_parse_range(key, text, processes) if colon else None,
    )


def _parse_range(key: str, text: str, piece: str) -> range:
    match = _RANGE.fullmatch(piece)
    if match is None:
        raise PlacementError(key, text, f"'{piece}' is no rank; write ranks as '2', '0-3' or 'all'")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if last < first:
        raise PlacementError(key, text, f"'{piece}' runs backwards; did you mean '{last}-{first}'?")
    return range(first, last + 1)


def _check_resources(key: str, text: object, whole: list[range], num_resources: int) -> None:
    """Every resource exists, and none stands in two parts. Ranges only: nothing is counted out yet."""
    if num_resources == 0:
        raise PlacementError(key, text, "there is nothing of that kind to place processes on (0 resources)")
    ordered = sorted(whole, key=lambda resources: resources.start)
    last = max(resources.stop for resources in ordered) - 1
    if last >= num_resources:
        there = f"resources 0 to {num_resources - 1}" if num_resources > 1 else "resource 0 only"
        raise PlacementError(key, text, f"needs resource {last}, but there are {num_resources}: {there}")
    for before, after in pairwise(ordered):
        if after.start < before.stop:
            raise PlacementError(key, text, f"resource {after.start} is given to two parts; give each resource once")


def _check_processes(key: str, text: str, parts: list[Part]) -> None:
    """Where every part's processes can be counted without the cluster, they are 0 .. N-1, each once."""
    following = 0
    ranges: list[range] = []
    for part in parts:
        if part.processes is not None:
            processes = part.processes
        elif part.resources is not None:
            processes = range(following, following + len(part.resources))
        elif len(parts) == 1:
            return
        else:
            raise PlacementError(key, text, "'all' gives every resource, so it stands alone")
        ranges.append(processes)
        following = processes.stop
    expected = 0
    for processes in sorted(ranges, key=lambda processes: processes.start):
        if processes.start < expected:
            raise PlacementError(key, text, f"process {processes.start} is placed twice; place each process once")
        if processes.start > expected:
            missing = f"{expected}" if processes.start == expected + 1 else f"{expected}-{processes.start - 1}"
            raise PlacementError(
                key, text, f"process {missing} has no place; process ranks count from 0 to N-1 without a gap"
            )
        expected = processes.stop
    if expected > MAX_PROCESSES:
        raise PlacementError(key, text, f"asks for {expected} processes; at most {MAX_PROCESSES} are possible")


def _spread(key: str, text: object, part: Part, processes: range, resources: range) -> list[Assignment]:
    """Processes over resources, evenly and in order: 1:1, N:1 or 1:N."""
    many, few = max(len(processes), len(resources)), min(len(processes), len(resources))
    if many % few:
        raise PlacementError(
            key,
            text,
            f"'{part.text}' spreads {len(processes)} processes over {len(resources)} resources, which does not come"
            f" out even; make one a multiple of the other",
        )
    share = many // few
    if len(processes) >= len(resources):
        return [
            Assignment(tuple(processes[i * share : (i + 1) * share]), (resource,))
            for i, resource in enumerate(resources)
        ]
    return [
        Assignment((process,), tuple(resources[i * share : (i + 1) * share])) for i, process in enumerate(processes)
    ]
