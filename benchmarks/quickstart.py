"""The quickstart to a mean return of 900, sync and async, seed by seed; and a kill in between, resumed.

Beside it, interleaved, the same recipe with every role in one process and no Ray: what the distribution costs or
brings on this machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Benchmark, Figure, run
from headrace.core.checkpoint import CheckpointManager
from headrace.telemetry.metrics import read_metrics

RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"
TARGET = 900.0
BAR_S = 180.0
KILL_AFTER_STEP = 12
LIMIT_S = 400.0


@dataclass(frozen=True)
class Run:
    """Where a run ended, from its metrics."""

    episode_return: float
    training_s: float
    env_steps: float


def _command(run_dir: Path, seed: int, *overrides: str) -> list[str]:
    fixed = [f"seed={seed}", f"runner.run_dir={run_dir}", "runner.video=false"]
    return [sys.executable, "-m", "headrace.cli", "train", str(RECIPE), *fixed, *overrides]


def _train(run_dir: Path, seed: int, *overrides: str) -> Run:
    done = subprocess.run(_command(run_dir, seed, *overrides), capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"the run failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    last = read_metrics(run_dir)[-1]
    return Run(last["env/episode_return"], last["time/wall_s"], last["time/env_steps"])


def _killed_and_resumed(directory: Path, seed: int) -> tuple[int, int, float, Run]:
    """(step of the checkpoint, first step after it, return of the first resumed step / return saved, the whole)."""
    run_dir = directory / "killed"
    process = subprocess.Popen(
        _command(run_dir, seed, "runner.save_interval=5"), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    for line in process.stdout:
        if line.startswith(f"step {KILL_AFTER_STEP}/"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    watchdog.cancel()
    saved = CheckpointManager.resolve(run_dir)
    step = CheckpointManager.metadata(saved)["global_step"]
    before = next(row for row in read_metrics(run_dir) if row["step"] == step)
    whole = _train(run_dir, seed, f"runner.resume_dir={run_dir}")
    after = next(row for row in read_metrics(run_dir) if row["step"] > step)
    return step, after["step"], after["env/episode_return"] / before["env/episode_return"], whole


def main() -> None:
    benchmark = Benchmark.from_command_line("quickstart", __doc__)
    seeds = (1,) if benchmark.quick else (1, 2, 3)
    times: dict[str, list[float]] = {"sync": [], "async": [], "one process": []}
    returns: dict[str, list[float]] = {"sync": [], "async": []}
    speeds: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for seed in seeds:
            for mode in ("async", "sync"):
                result = _train(directory / f"{mode}-{seed}", seed, f"runner.mode={mode}")
                times[mode].append(result.training_s)
                returns[mode].append(result.episode_return)
                if mode == "async":
                    speeds.append(result.env_steps / result.training_s)
            alone = _train(directory / f"alone-{seed}", seed, "runner.mode=sync", "cluster=null")
            times["one process"].append(alone.training_s)
        step, first, ratio, whole = _killed_and_resumed(directory, seeds[0])
    ratios = [a / b for a, b in zip(times["async"], times["one process"], strict=True)]
    benchmark.add_median("async training time / one process without Ray", ratios, "×")
    for mode in ("async", "sync"):
        worst = max(times[mode])
        benchmark.add(Figure(f"{mode}: slowest seed to ≥ {TARGET:g}", worst, "s", BAR_S, samples=tuple(times[mode])))
        lowest = min(returns[mode])
        figure = Figure(f"{mode}: lowest return", lowest, "", TARGET, at_least=True, samples=tuple(returns[mode]))
        benchmark.add(figure)
    benchmark.add_median("one process, no Ray: to ≥ 900", times["one process"], "s")
    benchmark.add_median("async speed, evaluations included", speeds, "env steps/s")
    note = f"killed -9 after step {KILL_AFTER_STEP}, checkpoint of step {step}, went on with step {first}"
    benchmark.add(Figure("resume: steps lost or repeated", abs(first - step - 1), "", 0, note=note))
    benchmark.add(Figure("resume: first return / return saved", ratio, "×", 0.5, at_least=True))
    benchmark.add(Figure("resume: return reached", whole.episode_return, "", TARGET, at_least=True))
    run(benchmark)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
