"""It can learn: environment, module and learner in one plain loop, without workers."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch

from headrace.learning.connectors.action import ActionMapping
from headrace.learning.data.trajectory import TrajectoryBuilder
from headrace.learning.envs.base import VectorEnv
from headrace.learning.envs.chunks import step_chunk
from headrace.learning.envs.config import EnvConfig
from headrace.learning.envs.make import make_vector_env
from headrace.learning.envs.sync import SyncVectorEnv
from headrace.learning.learners.config import PPOSettings
from headrace.learning.learners.learner import Learner
from headrace.learning.models.config import ModelConfig
from headrace.learning.models.mlp_module import build_module
from tests.learning.toy_envs import GoalEnv


def steps_to(
    target: float,
    env: VectorEnv,
    settings: PPOSettings,
    model: ModelConfig,
    *,
    fragment: int,
    max_steps: int,
    lag: int = 0,
    seed: int = 0,
) -> int | None:
    """Environment steps until the last 20 episodes return `target` on average, collecting with weights `lag` old."""
    learner = Learner(settings, build_module(model, env.observation_space, env.action_space, seed=seed), seed=seed)
    actor = learner.module.inference_copy()
    mapping = ActionMapping(env.action_space)
    generator = torch.Generator().manual_seed(seed)
    builder = TrajectoryBuilder(fragment, env.num_envs)
    weights = deque([(0, learner.module.flat_parameters())], maxlen=lag + 1)
    returns: deque[float] = deque(maxlen=20)
    obs = env.reset()
    builder.start(obs)
    steps = 0
    while steps < max_steps:
        version, flat = weights[0]
        actor.load_flat(flat)
        while not builder.is_full:
            out = actor.forward_exploration(torch.from_numpy(obs), generator)
            actions = out.actions.numpy()
            chunk = step_chunk(env, mapping(actions)[:, None])
            builder.append(actions, out.log_probs.numpy(), out.values.numpy(), version, chunk)
            obs = chunk.obs
        trajectory = builder.build()
        steps += trajectory.num_env_steps
        returns.extend(episode.episode_return for episode in trajectory.episodes)
        if len(returns) == 20 and np.mean(returns) >= target:
            return steps
        learner.update([trajectory])
        weights.append((learner.version, learner.module.flat_parameters()))
    return None


def test_the_sign_of_the_observation_is_learnt_at_once() -> None:
    env = SyncVectorEnv([GoalEnv] * 8, list(range(8)))
    settings = PPOSettings(lr=1e-2, epochs=4, minibatch_size=64)
    assert steps_to(1.0, env, settings, ModelConfig(hidden=(16,)), fragment=16, max_steps=4_000) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "lag"), [("ppo", 0), ("decoupled_ppo", 2)])
def test_a_pendulum_is_balanced_also_with_stale_data(loss: str, lag: int) -> None:
    env = make_vector_env(EnvConfig(id="InvertedPendulum-v5", num_envs=16), seed=0)
    settings = PPOSettings(
        loss=loss,  # type: ignore[arg-type]
        lr=1e-3,
        epochs=10,
        minibatch_size=256,
        gamma=0.98,
        reward_scale=0.1,
        max_grad_norm=1.0,
    )
    model = ModelConfig(hidden=(32, 32))
    assert steps_to(900.0, env, settings, model, fragment=32, max_steps=80_000, lag=lag) is not None
