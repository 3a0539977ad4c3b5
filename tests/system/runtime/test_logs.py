"""A worker's output: all of it in a file, none of it without end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, threading
from pathlib import Path
from headrace.system.runtime.logs import OutputFile
output = OutputFile(Path(sys.argv[1]), max_nbytes=100_000)
output.take_over()
print("first line")
print("to stderr", file=sys.stderr)
os.write(1, b"from C code\\n")
if sys.argv[2] == "much":
    for i in range(1000):
        print(f"line {i} " + "x" * 1000)
    print("last line")
if sys.argv[2] == "crash":
    print("before the crash")
    os.kill(os.getpid(), 9)
"""


def _run(path: Path, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, str(path), how], capture_output=True, text=True, timeout=60)


def test_everything_a_process_says_is_in_its_file(tmp_path: Path) -> None:
    done = _run(tmp_path / "g" / "rank_0.log", "little")
    assert (tmp_path / "g" / "rank_0.log").read_text() == "first line\nto stderr\nfrom C code\n"
    assert done.stdout == done.stderr == ""


def test_case_j4_a_talkative_process_keeps_its_last_words_within_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.log"
    assert _run(path, "much").returncode == 0
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["rank_0.log", "rank_0.log.1"]
    assert sum(file.stat().st_size for file in files) <= 130_000
    assert path.read_text().endswith("last line\n")


def test_a_crash_loses_no_line(tmp_path: Path) -> None:
    assert _run(tmp_path / "rank_0.log", "crash").returncode == -9
    assert (tmp_path / "rank_0.log").read_text().endswith("before the crash\n")
