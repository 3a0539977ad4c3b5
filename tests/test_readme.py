"""README keeps its promises: the commands stand early, and the ten lines run as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_both_commands_stand_within_the_first_sixty_words() -> None:
    start = " ".join(README.split()[:60])
    assert "make train" in start
    assert "make test" in start


def test_every_file_that_is_linked_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.ray
@pytest.mark.slow
def test_the_ten_lines_run_as_printed(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    counts, squares = re.fullmatch(r"(\[.*?\]) (\[.*?\])\n", done.stdout).groups()  # type: ignore[union-attr]
    assert sum(map(int, re.findall(r"\d+", counts))) == 10
    assert squares == str([x * x for x in range(10)])
