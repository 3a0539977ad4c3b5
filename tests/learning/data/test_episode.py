from __future__ import annotations

import numpy as np
import pytest

from headrace.learning.data.episode import Episode, episodes_of
from headrace.learning.envs.sync import SyncVectorEnv
from tests.learning.collecting import collect
from tests.learning.toy_envs import CountingEnv


def test_a_trajectory_falls_into_whole_episodes_and_a_cut_one() -> None:
    trajectory = collect(SyncVectorEnv([lambda: CountingEnv(3, "terminated")], [0]), 5)
    first, second = episodes_of(trajectory, 0)
    assert first.obs[:, 0].tolist() == [0, 1, 2, 3]
    assert first.terminated and not first.truncated
    assert first.episode_return == 3.0
    assert second.obs[:, 0].tolist() == [0, 1, 2]
    assert not second.is_done


def test_termination_wins_where_both_flags_are_set() -> None:
    trajectory = collect(SyncVectorEnv([lambda: CountingEnv(2, "both")], [0]), 2)
    (episode,) = episodes_of(trajectory, 0)
    assert episode.terminated and not episode.truncated


def test_a_row_that_never_happened_cuts_the_episode() -> None:
    trajectory = collect(SyncVectorEnv([lambda: CountingEnv(9)], [0]), 4)
    trajectory.num_executed[2] = 0
    assert [len(episode) for episode in episodes_of(trajectory, 0)] == [2, 1]


def test_an_episode_without_its_last_observation_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 3"):
        Episode(np.zeros((2, 1)), np.zeros(2), np.zeros(2), np.ones(2), terminated=True, truncated=False)
