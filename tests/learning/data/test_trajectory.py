from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headrace.learning.data.chunk import ChunkStep
from headrace.learning.data.trajectory import Trajectory, TrajectoryBuilder
from headrace.learning.envs.sync import SyncVectorEnv
from tests.learning.collecting import collect
from tests.learning.toy_envs import CountingEnv


def two_envs(length: int = 3) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: CountingEnv(length)] * 2, [0, 1])


def test_a_trajectory_keeps_one_more_observation_than_decisions() -> None:
    trajectory = collect(two_envs(), 5)
    assert trajectory.obs.shape == (6, 2, 1)
    assert trajectory.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert (trajectory.num_steps, trajectory.num_envs, trajectory.chunk_size, trajectory.num_env_steps) == (5, 2, 1, 10)


def test_the_true_last_observation_of_every_ending_is_kept() -> None:
    trajectory = collect(two_envs(), 3)
    assert trajectory.final_index.tolist() == [[2, 0], [2, 1]]
    assert trajectory.final_obs.tolist() == [[3], [3]]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("values", (4, 2)), ("obs", (5, 2, 1)), ("rewards", (5, 2)), ("final_obs", (2, 2)), ("actions", (5, 3))],
)
def test_a_wrong_shape_is_refused_by_the_name_of_its_field(name: str, shape: tuple[int, ...]) -> None:
    trajectory = collect(two_envs(), 5)
    with pytest.raises(ValueError, match=f"Trajectory.{name}"):
        dataclasses.replace(trajectory, **{name: np.zeros(shape, np.float32)})


def test_flags_and_listed_endings_must_agree() -> None:
    trajectory = collect(two_envs(), 2)
    with pytest.raises(ValueError, match="final_index"):
        dataclasses.replace(trajectory, terminated=np.ones((2, 2), np.bool_))


def test_a_built_trajectory_is_never_written_again() -> None:
    env = two_envs()
    builder = TrajectoryBuilder(2, 2)
    builder.start(env.reset())
    first = fill(builder, env)
    kept = {field.name: np.copy(getattr(first, field.name)) for field in dataclasses.fields(first)}
    second = fill(builder, env)
    for name, value in kept.items():
        assert np.array_equal(value, getattr(first, name)), name
    assert second.obs[0].tolist() == first.obs[-1].tolist()


def fill(builder: TrajectoryBuilder, env: SyncVectorEnv) -> Trajectory:
    while not builder.is_full:
        step = env.step(np.zeros(2, np.int64))
        chunk = ChunkStep(
            step.obs,
            step.rewards[:, None],
            step.valid.astype(np.int32),
            step.terminated,
            step.truncated,
            step.final_index,
            step.final_obs,
            step.episodes,
        )
        builder.append(np.zeros(2, np.int64), np.zeros(2), np.zeros(2), 7, chunk)
    return builder.build()


def test_a_full_builder_refuses_more_and_an_empty_one_builds_nothing() -> None:
    env = two_envs()
    builder = TrajectoryBuilder(1, 2)
    with pytest.raises(RuntimeError, match="nothing"):
        builder.build()
    builder.start(env.reset())
    assert fill(builder, env).versions.tolist() == [[7, 7]]
