"""The three roles by themselves: what each does with what it is sent."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.core.errors import WorkerError
from headrace.learning.envs.config import EnvConfig
from headrace.learning.learners.config import PPOSettings
from headrace.learning.models.config import ModelConfig
from headrace.learning.models.mlp_module import build_module
from headrace.system import Channel, Worker, session
from headrace.workers.config import RolloutConfig
from headrace.workers.env import EnvWorker
from headrace.workers.learner import LearnerWorker
from headrace.workers.messages import Actions, EndOfStream, Observations, Spaces, Weights
from headrace.workers.rollout import RolloutWorker

TIMEOUT_S = 30.0
MODEL = ModelConfig(hidden=(4,))
ROLLOUT = RolloutConfig(fragment_length=3)
SPACES = Spaces(spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


class Sender(Worker):
    """Plays the learner: sends what it is told."""

    def give(self, update: Weights, group: str = "rollout") -> None:
        self.send(update, group, 0)


@pytest.fixture
def job(tmp_path: Path):
    with session.inline(tmp_path / "logs") as here:
        yield here


def _weights(version: int, seed: int) -> Weights:
    module = build_module(MODEL, SPACES.observation, SPACES.action, seed=seed)
    flat = module.flat_parameters().numpy()
    return Weights(version, flat, zlib.crc32(flat.data))


def _rollout(lockstep: bool = True, num_env_ranks: int = 1):
    group = RolloutWorker.create_group(
        MODEL,
        ROLLOUT,
        num_env_ranks=num_env_ranks,
        learner_group="learner",
        num_learner_ranks=1,
        lockstep=lockstep,
        seed=0,
    ).launch(name="rollout")
    group.init_worker(SPACES).wait(TIMEOUT_S)
    return group


def _learner(needed: int = 1, **settings):
    group = LearnerWorker.create_group(
        MODEL,
        PPOSettings(epochs=1, **settings),
        ROLLOUT,
        trajectories_per_step=needed,
        rollout_group="rollout",
        num_rollout_ranks=1,
        seed=0,
    ).launch(name="learner")
    group.init_worker(SPACES).wait(TIMEOUT_S)
    return group


def _env(**changes):
    config = EnvConfig(id="InvertedPendulum-v5", num_envs=2, **changes)
    group = EnvWorker.create_group(config, ROLLOUT, num_rollout_ranks=1, num_learner_ranks=1, seed=7).launch(name="env")
    group.init_worker().wait(TIMEOUT_S)
    return group


def _answer(questions: Channel, answers: Channel, rounds: int, version: int = 0) -> list[np.ndarray]:
    seen = []
    for _ in range(rounds):
        question: Observations = questions.get(key=0, timeout_s=TIMEOUT_S)
        seen.append(question.obs)
        n = len(question.obs)
        answers.put(Actions(np.full((n, 1), 5.0, np.float32), np.zeros(n), np.zeros(n), version), key=question.source)
    return seen


def test_a_late_older_version_never_replaces_a_newer(job) -> None:
    sender = Sender.create_group().launch(name="learner")
    rollout = _rollout()
    for version, held in ((2, 2), (1, 2), (3, 3)):
        taking = rollout.sync_model_from_actor()
        sender.give(_weights(version, seed=version)).wait(TIMEOUT_S)
        assert taking.wait(TIMEOUT_S) == [held]


def test_damaged_weights_are_refused(job) -> None:
    sender = Sender.create_group().launch(name="learner")
    taking = _rollout().sync_model_from_actor()
    update = _weights(1, seed=0)
    update.checksum += 1
    sender.give(update).wait(TIMEOUT_S)
    with pytest.raises(WorkerError, match="do not match their checksum"):
        taking.wait(TIMEOUT_S)


def test_a_rollout_answers_in_batches_until_every_source_has_ended(job) -> None:
    rollout = _rollout(num_env_ranks=2)
    questions, answers = Channel.create("q"), Channel.create("a")
    serving = rollout.generate(questions, answers)
    for source in (1, 0):
        questions.put(Observations(source, np.full((3, 2), source, np.float32)), key=0)
    for source in (0, 1):
        answer: Actions = answers.get(key=source, timeout_s=TIMEOUT_S)
        assert answer.actions.shape == (3, 1)
        assert answer.version == 0
    questions.put(EndOfStream(0), key=0)
    questions.put(Observations(1, np.zeros((1, 2), np.float32)), key=0)
    assert answers.get(key=1, timeout_s=TIMEOUT_S).actions.shape == (1, 1)
    questions.put(EndOfStream(1), key=0)
    assert serving.wait(TIMEOUT_S) == [3]


def test_an_env_rank_sends_whole_fragments_with_the_raw_actions(job) -> None:
    env = _env()
    questions, answers, replay, metrics = (Channel.create(name) for name in ("q", "a", "replay", "m"))
    running = env.interact(answers, questions, replay, metrics, 2)
    seen = _answer(questions, answers, 6, version=4)
    first, second = replay.get(timeout_s=TIMEOUT_S, key=0), replay.get(timeout_s=TIMEOUT_S, key=0)
    assert running.wait(TIMEOUT_S) == [2]
    assert isinstance(questions.get(key=0, timeout_s=TIMEOUT_S), EndOfStream)
    np.testing.assert_array_equal(first.obs[:-1], np.stack(seen[:3]))
    np.testing.assert_array_equal(first.obs[-1], second.obs[0])
    assert (first.actions == 5.0).all(), "the environment clips; what is learned from is the policy's own action"
    assert (first.versions == 4).all()
    assert first.num_env_steps == 6


def test_a_closed_replay_channel_ends_the_interaction_in_order(job) -> None:
    env = _env()
    questions, answers, replay, metrics = (Channel.create(name) for name in ("q", "a", "replay", "m"))
    replay.close()
    running = env.interact(answers, questions, replay, metrics)
    _answer(questions, answers, 3)
    assert running.wait(TIMEOUT_S) == [0]
    assert isinstance(questions.get(key=0, timeout_s=TIMEOUT_S), EndOfStream)


def test_evaluation_leaves_training_as_it_was(job, tmp_path: Path) -> None:
    env = _env()
    questions, answers, replay, metrics = (Channel.create(name) for name in ("q", "a", "replay", "m"))
    running = env.interact(answers, questions, replay, metrics, 1)
    _answer(questions, answers, 3)
    running.wait(TIMEOUT_S)
    (before := tmp_path / "before").mkdir()
    (after := tmp_path / "after").mkdir()
    assert env.save_state(before).wait(TIMEOUT_S) == [True]
    eval_questions, eval_answers = Channel.create("eq"), Channel.create("ea")
    playing = env.evaluate(eval_answers, eval_questions, 3)
    while not playing.done():
        for message in eval_questions.drain(key=0):
            if isinstance(message, Observations):
                n = len(message.obs)
                eval_answers.put(Actions(np.ones((n, 1), np.float32), np.zeros(n), np.zeros(n), 0), key=message.source)
    assert len(playing.wait(TIMEOUT_S)[0]) == 3
    env.save_state(after).wait(TIMEOUT_S)
    assert (before / "env_rank_0.pkl").read_bytes() == (after / "env_rank_0.pkl").read_bytes()


def test_a_saved_env_rank_goes_on_exactly(job, tmp_path: Path) -> None:
    env = _env()
    questions, answers, replay, metrics = (Channel.create(name) for name in ("q", "a", "replay", "m"))

    def fragment() -> np.ndarray:
        running = env.interact(answers, questions, replay, metrics, 1)
        _answer(questions, answers, 3)
        running.wait(TIMEOUT_S)
        questions.get(key=0, timeout_s=TIMEOUT_S)
        return replay.get(key=0, timeout_s=TIMEOUT_S).obs

    fragment()
    env.save_state(tmp_path).wait(TIMEOUT_S)
    expected = fragment()
    assert env.load_state(tmp_path).wait(TIMEOUT_S) == [True]
    np.testing.assert_array_equal(fragment(), expected)
    assert env.load_state(tmp_path / "nowhere").wait(TIMEOUT_S) == [False]


def test_a_learner_without_enough_data_skips_its_step(job) -> None:
    learner = _learner(needed=2)
    replay = Channel.create("replay")
    receiving = learner.recv_rollout_trajectories(replay)
    replay.put(_fragment(0), key=0)
    assert learner.run_training(0.05).wait(TIMEOUT_S) == [None]
    replay.put(_fragment(0), key=0)
    (metrics,) = learner.run_training(TIMEOUT_S).wait(TIMEOUT_S)
    assert metrics["train/env_steps"] == 12
    learner.stop().wait(TIMEOUT_S)
    replay.close()
    assert receiving.wait(TIMEOUT_S) == [2]


def test_a_learner_drops_and_counts_what_is_too_stale(job) -> None:
    learner = _learner(max_staleness=0)
    replay = Channel.create("replay")
    learner.recv_rollout_trajectories(replay)
    replay.put(_fragment(0), key=0)
    assert learner.run_training(TIMEOUT_S).wait(TIMEOUT_S)[0]["train/dropped_env_steps"] == 0
    replay.put(_fragment(0), key=0)
    replay.put(_fragment(1), key=0)
    (metrics,) = learner.run_training(TIMEOUT_S).wait(TIMEOUT_S)
    assert metrics["train/dropped_env_steps"] == 6
    assert metrics["train/staleness"] == 0
    replay.close()


def test_weights_arrive_as_they_were_sent(job) -> None:
    learner, rollout = _learner(), _rollout()
    taking = rollout.sync_model_from_actor()
    assert learner.sync_model_to_rollout().wait(TIMEOUT_S) == [0]
    assert taking.wait(TIMEOUT_S) == [0]


def _fragment(version: int):
    from headrace.learning.data.trajectory import Trajectory

    steps, envs = 3, 2
    flat = np.zeros((steps, envs), np.float32)
    return Trajectory(
        obs=np.zeros((steps + 1, envs, 2), np.float32),
        actions=np.zeros((steps, envs, 1), np.float32),
        log_probs=flat,
        values=flat,
        rewards=np.ones((steps, envs, 1), np.float32),
        num_executed=np.ones((steps, envs), np.int32),
        terminated=flat.astype(bool),
        truncated=flat.astype(bool),
        final_index=np.zeros((0, 2), np.int32),
        final_obs=np.zeros((0, 2), np.float32),
        versions=np.full((steps, envs), version, np.int32),
    )


def test_a_learner_refuses_a_directory_that_is_no_checkpoint(job, tmp_path: Path) -> None:
    learner = _learner()
    with pytest.raises(WorkerError, match="is no checkpoint of a learner"):
        learner.load_checkpoint(tmp_path).wait(TIMEOUT_S)
    learner.save_checkpoint(tmp_path).wait(TIMEOUT_S)
    assert learner.load_checkpoint(tmp_path).wait(TIMEOUT_S) == [0]
    assert set(torch.load(tmp_path / "learner.pt", weights_only=True)) >= {
        "module",
        "optimizer",
        "generator",
        "version",
    }
