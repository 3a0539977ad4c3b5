from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.learning.envs import play
from headrace.learning.envs.play import play_episodes
from headrace.learning.envs.sync import SyncVectorEnv
from tests.learning.toy_envs import CountingEnv


def test_every_environment_plays_its_share_however_short_its_episodes() -> None:
    env = SyncVectorEnv([lambda: CountingEnv(2), lambda: CountingEnv(7)], [0, 1])
    records = play_episodes(env, lambda obs: np.zeros((len(obs), 1), np.int64), 5)
    assert sorted((record.env_index, record.length) for record in records) == [(0, 2), (0, 2), (0, 2), (1, 7), (1, 7)]


def act(obs: np.ndarray) -> np.ndarray:
    return np.zeros((len(obs), 1), np.int64)


def test_case_a4_an_episode_without_end_stops_at_the_cap() -> None:
    env = SyncVectorEnv([lambda: CountingEnv(ending="never")], [0], max_episode_steps=1000)
    assert [record.length for record in play_episodes(env, act, 1)] == [1000]


def test_case_a4_without_a_cap_it_is_refused_naming_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "PATIENCE", 50)
    env = SyncVectorEnv([lambda: CountingEnv(3), lambda: CountingEnv(ending="never")], [0, 1])
    with pytest.raises(ConfigError, match=r"env\.max_episode_steps"):
        play_episodes(env, act, 2)
