from __future__ import annotations

import numpy as np

from headrace.learning.envs.play import play_episodes
from headrace.learning.envs.sync import SyncVectorEnv
from tests.learning.toy_envs import CountingEnv


def test_every_environment_plays_its_share_however_short_its_episodes() -> None:
    env = SyncVectorEnv([lambda: CountingEnv(2), lambda: CountingEnv(7)], [0, 1])
    records = play_episodes(env, lambda obs: np.zeros((len(obs), 1), np.int64), 5)
    assert sorted((record.env_index, record.length) for record in records) == [(0, 2), (0, 2), (0, 2), (1, 7), (1, 7)]
