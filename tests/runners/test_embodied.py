"""The embodied workflow, sync and async, with all roles in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from headrace.core.checkpoint import CheckpointManager
from headrace.core.config import build
from headrace.core.errors import ConfigError, WorkerError
from headrace.runners.config import EmbodiedRecipe
from headrace.runners.embodied import EmbodiedRunner, RunResult
from headrace.runners.launch import launched
from headrace.telemetry.console import Console
from headrace.telemetry.metrics import read_metrics

BASE = {
    "seed": 3,
    "env": {"id": "InvertedPendulum-v5", "num_envs": 2},
    "rollout": {"fragment_length": 8},
    "model": {"hidden": [8]},
    "algorithm": {"loss": "decoupled_ppo", "epochs": 2, "minibatch_size": 16},
    "runner": {"mode": "sync", "max_steps": 4, "video": False},
}


FAILING_ENV = """
import gymnasium as gym

class Failing(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.count = 0

    def step(self, action):
        self.count += 1
        if self.count > 20:
            raise RuntimeError("the joint is broken")
        return self.env.step(action)
"""


SIX_STEPS_ENV = """
import gymnasium as gym

class SixSteps(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("Pendulum-v1"))
        self.count = 0

    def reset(self, **kwargs):
        self.count = 0
        return self.env.reset(**kwargs)

    def step(self, action):
        self.count += 1
        obs, _, _, _, info = self.env.step(action)
        return obs, 1.0, self.count == 6, False, info
"""


def _recipe(**sections: dict) -> EmbodiedRecipe:
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    for section, changes in sections.items():
        data.setdefault(section, {}).update(changes)
    return build(EmbodiedRecipe, data)


def _run(recipe: EmbodiedRecipe, run_dir: Path) -> RunResult:
    with launched(recipe, run_dir, Console(is_terminal=False)) as runner:
        return runner.run()


def _weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint / "learner.pt", weights_only=True)["module"]


def _assert_equal_weights(a: Path, b: Path) -> None:
    first, second = _weights(a), _weights(b)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_trains_evaluates_saves_and_ends(tmp_path: Path, mode: str) -> None:
    runner = {"mode": mode, "val_check_interval": 2, "eval_episodes": 3, "save_interval": 2, "keep_checkpoints": 1}
    result = _run(_recipe(runner=runner), tmp_path)
    assert result.global_step == 4
    assert result.env_steps >= 4 * 2 * 8
    assert [path.name for path in CheckpointManager(tmp_path / "checkpoints").all()] == ["step_4"]
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if "eval/episode_return" in row] == [2, 4]
    assert rows[-1]["time/env_steps"] >= 4 * 2 * 8
    assert all("train/policy_loss" in row and "train/staleness" in row for row in rows)


def test_sync_steps_are_on_policy(tmp_path: Path) -> None:
    _run(_recipe(runner={"sync_weight_no_wait": True}), tmp_path)
    for row in read_metrics(tmp_path):
        assert row["train/staleness"] == 0
        assert row["train/ratio_error"] < 1e-5


def test_the_same_seed_gives_the_same_result(tmp_path: Path) -> None:
    a, b = (_run(_recipe(), tmp_path / name) for name in "ab")
    _assert_equal_weights(a.checkpoint, b.checkpoint)
    other = _run(dataclasses.replace(_recipe(), seed=4), tmp_path / "c")
    assert any(
        not torch.equal(x, y) for x, y in zip(_weights(a.checkpoint).values(), _weights(other.checkpoint).values())
    )


def test_case_h1_a_resumed_run_goes_on_bit_equal(tmp_path: Path) -> None:
    algorithm = {"lr": 1e-3, "lr_schedule": "linear", "total_updates": 100}
    whole = _run(_recipe(algorithm=algorithm), tmp_path / "whole")
    _run(_recipe(algorithm=algorithm, runner={"max_steps": 2}), tmp_path / "parts")
    parts = _run(_recipe(algorithm=algorithm, runner={"resume_dir": str(tmp_path / "parts")}), tmp_path / "parts")
    _assert_equal_weights(whole.checkpoint, parts.checkpoint)
    assert parts.env_steps == whole.env_steps
    one, two = read_metrics(tmp_path / "whole"), read_metrics(tmp_path / "parts")
    assert [row["step"] for row in two] == [1, 2, 3, 4]
    for key in ("train/lr", "time/env_steps", "train/policy_loss", "env/episode_return"):
        assert [row.get(key) for row in one] == [row.get(key) for row in two], key


def test_case_j4_rows_after_the_checkpoint_are_not_repeated(tmp_path: Path) -> None:
    _run(_recipe(runner={"max_steps": 3, "save_interval": 2}), tmp_path)
    (tmp_path / "checkpoints" / "step_3" / "manifest.json").unlink()
    resumed = _run(_recipe(runner={"max_steps": 5, "resume_dir": str(tmp_path)}), tmp_path)
    assert resumed.global_step == 5
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_run_in_a_used_directory_saves_its_own_weights(tmp_path: Path) -> None:
    alone = _run(dataclasses.replace(_recipe(), seed=9), tmp_path / "alone")
    _run(_recipe(), tmp_path / "used")
    again = _run(dataclasses.replace(_recipe(), seed=9), tmp_path / "used")
    _assert_equal_weights(again.checkpoint, alone.checkpoint)


def test_a_run_resumed_from_an_earlier_step_saves_its_own_weights(tmp_path: Path) -> None:
    _run(_recipe(runner={"save_interval": 1, "keep_checkpoints": 4}), tmp_path)
    old = _weights(tmp_path / "checkpoints" / "step_4")
    runner = {"save_interval": 1, "keep_checkpoints": 1, "resume_dir": str(tmp_path / "checkpoints" / "step_2")}
    forked = _run(_recipe(algorithm={"lr": 5e-2}, runner=runner), tmp_path)
    new = _weights(forked.checkpoint)
    assert any(not torch.equal(old[name], new[name]) for name in old)
    assert CheckpointManager.resolve(tmp_path) == forked.checkpoint


def test_case_j2_no_finished_episode_is_absent_not_zero(tmp_path: Path) -> None:
    recipe = _recipe(env={"id": "Pendulum-v1"}, rollout={"fragment_length": 4}, runner={"max_steps": 2})
    result = _run(recipe, tmp_path)
    assert result.episode_return is None
    assert all("env/episode_return" not in row for row in read_metrics(tmp_path))


def test_case_j2_episodes_longer_than_a_step_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6-step episodes, 4 environment steps a training step: 0, 1 and 1 episodes end in the three steps."""
    (tmp_path / "six_steps_env.py").write_text(SIX_STEPS_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = _recipe(
        env={"id": "six_steps_env:SixSteps", "num_envs": 1}, rollout={"fragment_length": 4}, runner={"max_steps": 3}
    )
    _run(recipe, tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    assert [row.get("env/episode_return") for row in rows] == [None, 6.0, 6.0]
    assert [row.get("env/episode_length") for row in rows] == [None, 6.0, 6.0]
    last = CheckpointManager.metadata(CheckpointManager.resolve(tmp_path / "run"))
    assert [(e["episode_return"], e["length"]) for e in last["last_episodes"]] == [(6.0, 6), (6.0, 6)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_action_chunks_cover_several_environment_steps(tmp_path: Path, mode: str) -> None:
    result = _run(_recipe(rollout={"num_action_chunks": 2}, runner={"mode": mode}), tmp_path)
    assert result.env_steps > 4 * 2 * 8
    rows = read_metrics(tmp_path)
    assert all(row["train/env_steps"] <= 2 * row["train/samples"] for row in rows)


def test_a_run_stops_at_its_target_return(tmp_path: Path) -> None:
    runner = {"max_steps": 500, "target_return": 1.0, "return_window": 2, "mode": "async"}
    assert _run(_recipe(runner=runner), tmp_path).global_step < 500


def test_weights_that_fall_due_while_a_sync_travels_are_owed_once(tmp_path: Path) -> None:
    class Travelling:
        def __init__(self) -> None:
            self.arrived = False

        def done(self) -> bool:
            return self.arrived

        def wait(self, *, unless_failed: object = ()) -> list[None]:
            return [None]

    with launched(_recipe(), tmp_path, Console(is_terminal=False)) as runner:
        sent: list[Travelling] = []

        def send() -> Travelling:
            sent.append(Travelling())
            return sent[-1]

        runner.rollout = runner.learner = _Fake(sync_model_from_actor=send, sync_model_to_rollout=send)
        for _ in range(3):
            EmbodiedRunner.update_rollout_weights(runner, no_wait=True)
        assert len(sent) == 2, "one sync is under way, the others are owed"
        assert runner._sync_is_owed
        for handle in sent:
            handle.arrived = True
        EmbodiedRunner.update_rollout_weights(runner, no_wait=True)
        assert len(sent) == 4
        assert not runner._sync_is_owed


class _Fake:
    def __init__(self, **methods: object) -> None:
        self.__dict__.update(methods)


def test_an_environment_that_fails_ends_the_run_with_its_name(tmp_path: Path) -> None:
    recipe = _recipe(env={"id": "InvertedPendulum-v5", "env_kwargs": {"no_such": 1}})
    with pytest.raises(WorkerError, match="env rank 0"):
        _run(recipe, tmp_path)


@pytest.mark.parametrize(
    ("env_id", "says"),
    [("InvertedPendulm-v5", "did you mean 'InvertedPendulum-v5'"), ("no.such.module:Env", "no module")],
)
def test_an_environment_that_does_not_exist_is_refused_before_anything_starts(
    tmp_path: Path, env_id: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        _run(_recipe(env={"id": env_id}), tmp_path)
    assert refused.value.key == "env.id"
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_failure_in_the_middle_ends_the_run(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_env.py").write_text(FAILING_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = _recipe(env={"id": "failing_env:Failing"}, runner={"mode": mode, "max_steps": 50})
    with pytest.raises(WorkerError, match="the joint is broken"):
        _run(recipe, tmp_path / "run")
    assert "the joint is broken" in (tmp_path / "run" / "logs" / "env" / "rank_0.log").read_text()


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"runner": {"max_steps": 0}}, "runner.max_steps"),
        ({"rollout": {"fragment_length": 0}}, "rollout.fragment_length"),
        ({"env": {"num_envs": 0}}, "env.num_envs"),
        ({"cluster": {"component_placement": {"env": "0"}}}, "cluster.component_placement"),
    ],
)
def test_impossible_values_are_refused_before_any_work(sections: dict, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _recipe(**sections)
    assert refused.value.key == key
