from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from headrace.system.cluster.describe import describe, ranges


def test_the_cluster_is_shown_as_tables(machines: Any) -> None:
    made = machines({"GPU": 2}, {}, node_groups=[{"label": "slots", "node_ranks": 1}])
    out = io.StringIO()
    console = Console(width=160, file=out)
    console.print(describe(SimpleNamespace(nodes=made.nodes, node_groups=list(made.groups.values()))))  # type: ignore[arg-type]
    text = out.getvalue()
    for part in ("0 (head)", "10.0.0.1", "2 x nvidia", "4 x 2.0 GiB", "2.60.0", "3.11.7", "slots", "4 x cpu 1 core"):
        assert part in text


def test_ranks_are_written_as_placements_write_them() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert ranges([]) == "none"
