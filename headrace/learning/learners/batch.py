"""TrainBatch: the decisions of many trajectories, flat, with all that a policy-gradient loss reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from torch import Tensor

from headrace.learning.data.trajectory import Trajectory
from headrace.learning.learners.config import PPOSettings
from headrace.learning.models.rl_module import RLModule
from headrace.learning.objectives.advantages import chunk_rewards, gae

_FORWARD_ROWS = 16_384
"""Rows per forward pass without gradients: bounds the memory of the activations."""


@dataclass(frozen=True)
class TrainBatch:
    """N decisions that happened (padding, reset rows and faults are left out).

    obs [N, *obs], actions [N, (K,) *act]; log_probs of the behaviour policy, proximal_log_probs and values of the
    policy before the update, advantages, returns: all [N].
    """

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    proximal_log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return self.log_probs.shape[0]

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """A batch of `function(tensor)` for every tensor."""
        return type(self)(**{item.name: function(getattr(self, item.name)) for item in fields(self)})

    @classmethod
    def empty(cls) -> Self:
        """The batch of a rank that got nothing."""
        return cls(**{item.name: torch.zeros(0) for item in fields(cls)})


@torch.no_grad()
def build_batch(trajectories: Sequence[Trajectory], module: RLModule, settings: PPOSettings) -> TrainBatch:
    """Evaluate `trajectories` under the module as it is, estimate advantages, flatten, keep what happened."""
    parts = [_evaluate(trajectory, module, settings) for trajectory in trajectories]
    parts = [part for part in parts if len(part)]
    if not parts:
        return TrainBatch.empty()
    if len(parts) == 1:
        return parts[0]
    return TrainBatch(
        **{item.name: torch.cat([getattr(part, item.name) for part in parts]) for item in fields(TrainBatch)}
    )


def _evaluate(trajectory: Trajectory, module: RLModule, settings: PPOSettings) -> TrainBatch:
    steps, envs = trajectory.num_steps, trajectory.num_envs
    obs, actions = _tensor(trajectory.obs), _tensor(trajectory.actions)
    flat_obs, flat_actions = obs[:-1].flatten(0, 1), actions.flatten(0, 1)
    outputs = [module.forward_train(flat_obs[rows], flat_actions[rows]) for rows in _pieces(steps * envs)]
    values = torch.cat([out.values for out in outputs]).view(steps, envs)
    proximal = torch.cat([out.log_probs for out in outputs])
    # One more pass for what follows the fragment and for the true last observations.
    beyond = torch.cat([obs[-1], _tensor(trajectory.final_obs)])
    beyond_values = torch.cat([module.value(beyond[rows]) for rows in _pieces(len(beyond))])
    next_values = torch.cat([values[1:], beyond_values[None, :envs]])
    index = torch.from_numpy(trajectory.final_index.astype(np.int64))
    next_values[index[:, 0], index[:, 1]] = beyond_values[envs:]
    rewards, discounts = chunk_rewards(
        _tensor(trajectory.rewards) * settings.reward_scale, _tensor(trajectory.num_executed), settings.gamma
    )
    mask = _tensor(trajectory.mask)
    estimate = gae(
        rewards,
        values,
        next_values,
        _tensor(trajectory.terminated),
        _tensor(trajectory.truncated),
        discounts,
        settings.gae_lambda,
        mask,
    )
    batch = TrainBatch(
        obs=flat_obs,
        actions=flat_actions,
        log_probs=_tensor(trajectory.log_probs).flatten(),
        proximal_log_probs=proximal,
        values=values.flatten(),
        advantages=estimate.advantages.flatten(),
        returns=estimate.returns.flatten(),
    )
    kept = mask.flatten()
    return batch if bool(kept.all()) else batch.map(lambda tensor: tensor[kept])


def _tensor(array: np.ndarray) -> Tensor:
    # Arrays that arrive through shared memory are read-only, which torch only allows with a warning.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _pieces(rows: int) -> list[slice]:
    return [slice(start, start + _FORWARD_ROWS) for start in range(0, max(rows, 1), _FORWARD_ROWS)]
