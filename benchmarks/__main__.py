"""Run every benchmark, one after the other, then write RESULTS.md: `python -m benchmarks [--quick]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.harness import write_table

_NOT_BENCHMARKS = {"__init__", "__main__", "harness"}


def main() -> int:
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NOT_BENCHMARKS)
    failed = [
        name for name in names if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]).returncode
    ]
    write_table()
    sys.stdout.write(
        f"{len(names) - len(failed)} of {len(names)} benchmarks hold their bars"
        + (f"; short: {', '.join(failed)}\n" if failed else "\n")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
