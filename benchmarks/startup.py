"""Seconds from `headrace train` to the first training step, and to each group being ready, beside their floors.

Floors, measured in the same run and interleaved: starting Ray and one empty actor, and importing torch, ray and
gymnasium in a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Benchmark, run

RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"
RAY_FLOOR = """
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
@ray.remote(num_cpus=0)
class Empty:
    def ping(self): return 1
ray.get(Empty.remote().ping.remote())
"""
IMPORT_FLOOR = "import torch, ray, gymnasium"
GROUPS = ("env", "rollout", "learner")


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - start


def _first_step(mode: str) -> dict[str, float]:
    """One step of the quickstart; `startup/*` of its metrics and the wall time until the step was logged."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "headrace.cli", "train", str(RECIPE), "runner.max_steps=1"]
        command += [
            f"runner.run_dir={directory}",
            f"runner.mode={mode}",
            "runner.video=false",
            "rollout.fragment_length=16",
        ]
        start = time.time()
        subprocess.run(command, check=True, capture_output=True)
        row = json.loads((Path(directory) / "metrics.jsonl").read_text().splitlines()[0])
        startup = {name: value for name, value in row.items() if name.startswith("startup/")}
        return {"first_step_s": row["time/logged_at"] - start, **startup}


def main() -> None:
    benchmark = Benchmark.from_command_line("startup", __doc__)
    repeats = 1 if benchmark.quick else 3
    rows, ray_floor, import_floor = [], [], []
    for _ in range(repeats):
        import_floor.append(_seconds([sys.executable, "-c", IMPORT_FLOOR]))
        ray_floor.append(_seconds([sys.executable, "-c", RAY_FLOOR]))
        rows.append(_first_step("async"))
    first = [row["first_step_s"] for row in rows]
    benchmark.add_median(
        "first training step / floors",
        [f / (r + i) for f, r, i in zip(first, ray_floor, import_floor, strict=True)],
        "×",
        bar=1.5,
        note="floors: Ray with one empty actor, plus importing torch, ray and gymnasium once",
    )
    benchmark.add_median("`headrace train` to first training step", first, "s")
    for group in GROUPS:
        benchmark.add_median(f"group {group}: launched to ready", [row[f"startup/{group}_s"] for row in rows], "s")
    benchmark.add_median("cluster", [row["startup/cluster_s"] for row in rows], "s")
    benchmark.add_median("Ray with one empty actor", ray_floor, "s")
    benchmark.add_median("import torch, ray, gymnasium", import_floor, "s")
    run(benchmark)


if __name__ == "__main__":
    main()
