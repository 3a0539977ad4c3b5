"""The command line: what is printed, which exit code, and where everything is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace import evaluation
from headrace.cli import app

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
SMALL = ["cluster=null", "rollout.fragment_length=8", "env.num_envs=2", "runner.max_steps=2", "runner.video=false"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    result = CliRunner().invoke(app, ["train", str(QUICKSTART), *SMALL, f"runner.run_dir={directory}"])
    assert result.exit_code == 0, result.output
    for name in ("checkpoint", "metrics", "learning curve", "headrace eval"):
        assert name in result.output
    return directory


def test_training_writes_checkpoint_metrics_and_curve(run_dir: Path) -> None:
    assert (run_dir / "checkpoints" / "step_2" / "manifest.json").exists()
    assert (run_dir / "metrics.jsonl").exists()
    assert (run_dir / "learning_curve.png").exists()
    assert any((run_dir / "tensorboard").iterdir())


def test_eval_plays_a_run(run_dir: Path) -> None:
    result = CliRunner().invoke(app, ["eval", str(run_dir), "--episodes", "3", "--seed", "1"])
    assert result.exit_code == 0, result.output
    assert "3 episodes of InvertedPendulum-v5: mean return" in result.output
    again = CliRunner().invoke(app, ["eval", str(run_dir), "--episodes", "3", "--seed", "1"])
    assert again.output == result.output


def test_a_player_acts_as_the_checkpoint_says(run_dir: Path) -> None:
    player = evaluation.Player.load(run_dir)
    result = player.evaluate(2, seed=0)
    assert len(result.returns) == len(result.lengths) == 2
    assert result.mean_return == pytest.approx(sum(result.returns) / 2)


@pytest.mark.slow
def test_without_a_gl_the_video_is_left_out(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "GL_BACKENDS", ("no-such-gl",))
    assert evaluation.record_video(run_dir, tmp_path / "video.mp4") == (None, evaluation.GL_REMEDY)
    result = CliRunner().invoke(app, ["eval", str(run_dir), "--episodes", "1", "--video", str(tmp_path / "video.mp4")])
    assert result.exit_code == 0
    assert f"no video: {evaluation.GL_REMEDY}" in result.output


@pytest.mark.slow
def test_an_environment_of_ones_own_is_one_file_and_its_run_plays_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = QUICKSTART.with_name("own_environment.py")
    arguments = ["train", str(recipe), "runner.max_steps=2", f"runner.run_dir={tmp_path}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "the environment draws no pictures" in result.output
    monkeypatch.chdir(tmp_path)
    played = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "eval", str(tmp_path), "--episodes", "2"],
        env={**os.environ, "PYTHONPATH": str(QUICKSTART.parents[1])},
        capture_output=True,
        text=True,
    )
    assert "2 episodes of own_environment:Reach" in " ".join(played.stdout.split()), played.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", str(QUICKSTART), "algorithm.gama=1"], "did you mean 'gamma'?"),
        (["train", "no/such.yaml"], "cannot be read"),
        (["train", str(QUICKSTART), "cluster=null", "runner.resume_dir=no/such"], "is no directory"),
        (["eval", "no/such"], "is no directory"),
    ],
)
def test_a_users_fault_is_an_answer_with_exit_code_one(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert says in " ".join(result.output.split())
    assert "Traceback" not in result.output
