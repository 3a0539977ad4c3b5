"""MLPModule: perceptrons for the policy and the value; and `build_module`, which fits one to an environment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from headrace.core.errors import ConfigError
from headrace.learning.models.config import ModelConfig
from headrace.learning.models.distributions import Bernoulli, Categorical, DiagGaussian, Distribution, MultiCategorical
from headrace.learning.models.nets import ACTIVATIONS, MLP
from headrace.learning.models.normalizer import RunningNormalizer
from headrace.learning.models.rl_module import PolicyOutput, RLModule, TrainOutput


class ActionHead(nn.Module):
    """Turns a policy network's output [N, K * width] into a distribution, and its actions into shape [N, (K,) *act]."""

    log_std: Tensor | None

    def __init__(self, space: spaces.Space, num_action_chunks: int, log_std_init: float) -> None:
        super().__init__()
        self._chunks = num_action_chunks
        self._make: Callable[[Tensor], Distribution]
        self.log_std = None
        if isinstance(space, spaces.Box):
            size = num_action_chunks * int(np.prod(space.shape))
            self.num_outputs = self._num_values = size
            self.log_std = nn.Parameter(torch.full((size,), log_std_init))
        elif isinstance(space, spaces.Discrete):
            self.num_outputs = num_action_chunks * int(space.n)
            self._num_values = num_action_chunks
            self._sizes = [int(space.n)] * num_action_chunks
        elif isinstance(space, spaces.MultiDiscrete):
            self._sizes = [int(n) for n in np.ravel(space.nvec)] * num_action_chunks
            self.num_outputs, self._num_values = sum(self._sizes), len(self._sizes)
        elif isinstance(space, spaces.MultiBinary):
            self.num_outputs = self._num_values = num_action_chunks * int(np.prod(space.shape))
        else:
            raise ConfigError(
                "env.action_space", space, "only Box, Discrete, MultiDiscrete and MultiBinary can be acted in"
            )
        self._make = self._maker(space)
        shape = tuple(space.shape or ())
        self._shape = shape if num_action_chunks == 1 else (num_action_chunks, *shape)
        self._is_flat = len(self._shape) == 1

    def forward(self, outputs: Tensor) -> Distribution:
        return self._make(outputs)

    def shaped(self, actions: Tensor) -> Tensor:
        """Distribution's actions [N, n] (or [N]) -> [N, (K,) *act]."""
        return actions if self._is_flat else actions.reshape(actions.shape[0], *self._shape)

    def flattened(self, actions: Tensor) -> Tensor:
        """Inverse of `shaped`."""
        return actions if self._is_flat else actions.reshape(actions.shape[0], *self._flat_shape)

    def _maker(self, space: spaces.Space) -> Callable[[Tensor], Distribution]:
        self._flat_shape: tuple[int, ...] = (self._num_values,)
        if isinstance(space, spaces.Box):
            return self._gaussian
        if isinstance(space, spaces.MultiBinary):
            return Bernoulli
        if len(self._sizes) == 1 and isinstance(space, spaces.Discrete):
            self._flat_shape = ()
            return Categorical
        return self._multi

    def _gaussian(self, outputs: Tensor) -> Distribution:
        assert self.log_std is not None
        return DiagGaussian(outputs, self.log_std)

    def _multi(self, outputs: Tensor) -> Distribution:
        return MultiCategorical(outputs, self._sizes)


class MLPModule(RLModule):
    """Observations are flattened (uint8 scaled once to [0, 1]), normalised, and read by one or two perceptrons."""

    def __init__(
        self,
        config: ModelConfig,
        obs_space: spaces.Box,
        action_space: spaces.Space,
        *,
        num_action_chunks: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_action_chunks = num_action_chunks
        self._is_image = obs_space.dtype == np.uint8
        width = int(np.prod(obs_space.shape))
        self._needs_flattening = len(obs_space.shape) != 1
        self.normalizer = RunningNormalizer((width,)) if config.normalize_obs else None
        self.head = ActionHead(action_space, num_action_chunks, config.log_std_init)
        hidden, activation = config.hidden, config.activation
        self._activation = ACTIVATIONS[activation]
        self.trunk: MLP | None = None
        if not config.separate_value:
            self.trunk = MLP((width, *hidden), activation, output_gain=2.0**0.5, generator=generator)
            width, hidden = hidden[-1], ()
        outputs = self.head.num_outputs
        self.policy = MLP((width, *hidden, outputs), activation, output_gain=config.policy_gain, generator=generator)
        self.critic = MLP((width, *hidden, 1), activation, output_gain=config.value_gain, generator=generator)

    @torch.inference_mode()
    def forward_exploration(self, obs: Tensor, generator: torch.Generator | None = None) -> PolicyOutput:
        features = self._features(obs)
        # `forward` called straight: a module's hooks cost more than these layers.
        head = self.head
        actions, log_probs = head.forward(self.policy.forward(features)).sample_with_log_prob(generator)
        values = self.critic.forward(features).squeeze(-1)
        return PolicyOutput(head.shaped(actions), log_probs, values)

    @torch.inference_mode()
    def forward_inference(self, obs: Tensor) -> PolicyOutput:
        features = self._features(obs)
        distribution = self.head(self.policy(features))
        actions = distribution.mode
        values = self.critic(features).squeeze(-1)
        return PolicyOutput(self.head.shaped(actions), distribution.log_prob(actions), values)

    def forward_train(self, obs: Tensor, actions: Tensor) -> TrainOutput:
        features = self._features(obs)
        distribution = self.head(self.policy(features))
        log_probs = distribution.log_prob(self.head.flattened(actions))
        return TrainOutput(log_probs, distribution.entropy(), self.critic(features).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(self._features(obs)).squeeze(-1)

    @property
    def statistics_shape(self) -> tuple[int, ...] | None:
        return None if self.normalizer is None else tuple(self.normalizer.mean.shape)

    def raw_features(self, obs: Tensor) -> Tensor:
        return self._flatten(obs)

    def update_statistics(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        assert self.normalizer is not None
        self.normalizer.merge(count, mean, m2)

    def refresh(self) -> None:
        if self.normalizer is not None:
            self.normalizer.refresh()

    def _flatten(self, obs: Tensor) -> Tensor:
        if self._needs_flattening:
            obs = obs.reshape(obs.shape[0], -1)
        return obs.float() / 255.0 if self._is_image else obs

    def _features(self, obs: Tensor) -> Tensor:
        features = self._flatten(obs)
        if self.normalizer is not None:
            features = self.normalizer.forward(features)
        return features if self.trunk is None else self._activation(self.trunk(features))


def build_module(
    config: ModelConfig,
    obs_space: spaces.Box,
    action_space: spaces.Space,
    *,
    num_action_chunks: int = 1,
    seed: int = 0,
) -> RLModule:
    """The default network for these spaces; equal seeds give equal weights, whatever torch's global state."""
    generator = torch.Generator().manual_seed(seed)
    return MLPModule(config, obs_space, action_space, num_action_chunks=num_action_chunks, generator=generator)
