"""Runs of the command line in processes of their own, watched from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
SMALL = ("rollout.fragment_length=16", "algorithm.epochs=1", "runner.video=false", "runner.target_return=null")


class Run:
    """`headrace train` on the quickstart, made small; every process it starts is remembered."""

    def __init__(self, run_dir: Path, *overrides: str, recipe: Path = QUICKSTART, cwd: Path | None = None) -> None:
        command = [sys.executable, "-m", "headrace.cli", "train", str(recipe), f"runner.run_dir={run_dir}", *SMALL]
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(cwd or ROOT)]),
        }
        self.run_dir = run_dir
        self.process = subprocess.Popen(
            [*command, *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=cwd,
        )
        self.output = ""
        self.descendants: list[psutil.Process] = []

    def wait_for_line(self, start: str) -> None:
        """Read until a line begins with `start`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if line.startswith(start):
                self.look_around()
                return
        raise AssertionError(f"no line begins with {start!r}:\n{self.output}")

    def look_around(self) -> None:
        """Remember the processes that were started so far."""
        self.descendants = psutil.Process(self.process.pid).children(recursive=True)

    def finish(self, timeout_s: float = 120.0) -> int:
        """The exit code; all output is in `output` then."""
        rest, _ = self.process.communicate(timeout=timeout_s)
        self.output += rest
        return self.process.returncode

    def left_over(self, timeout_s: float = 20.0) -> list[psutil.Process]:
        """Remembered processes that are still alive after `timeout_s`."""
        return psutil.wait_procs(self.descendants, timeout=timeout_s)[1]
