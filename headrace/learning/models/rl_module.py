"""RLModule: the network behind a policy. Explore, act, train: three forward passes of one set of weights."""

from __future__ import annotations

import abc
import copy
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from headrace.learning.models.flat import FlatState


class PolicyOutput(NamedTuple):
    """actions [B, *act] ([B, K, *act] with chunks), log_probs, values [B]."""

    actions: Tensor
    log_probs: Tensor
    values: Tensor


class TrainOutput(NamedTuple):
    """log_probs, entropy, values [N], with gradients."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor


class RLModule(nn.Module, abc.ABC):
    """Network of one policy. Observations [N, *obs] as the environment stores them (uint8 images included)."""

    num_action_chunks: int = 1
    _flat: FlatState | None = None

    @abc.abstractmethod
    def forward_exploration(self, obs: Tensor, generator: torch.Generator | None = None) -> PolicyOutput:
        """Sampled actions, for collecting. No gradients."""

    @abc.abstractmethod
    def forward_inference(self, obs: Tensor) -> PolicyOutput:
        """The most likely actions, for evaluation and deployment. No gradients."""

    @abc.abstractmethod
    def forward_train(self, obs: Tensor, actions: Tensor) -> TrainOutput:
        """Log-probabilities of given raw actions, with gradients."""

    @abc.abstractmethod
    def value(self, obs: Tensor) -> Tensor:
        """V(obs) [N], with gradients."""

    @property
    def statistics_shape(self) -> tuple[int, ...] | None:
        """Shape of the features that a normaliser inside the module keeps statistics of; None where it has none."""
        return None

    def raw_features(self, obs: Tensor) -> Tensor:
        """The features [N, *statistics_shape] of which the normaliser keeps statistics."""
        raise NotImplementedError(f"{type(self).__name__} has no normaliser")

    def update_statistics(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """Merge statistics of new observations: count [], mean and m2 (squared deviations) [*statistics_shape]."""
        raise NotImplementedError(f"{type(self).__name__} has no normaliser")

    def inference_copy(self) -> Self:
        """An independent copy for a rollout: evaluation mode, no gradients, same flat layout."""
        clone = copy.deepcopy(self)
        clone.requires_grad_(False)
        return clone.eval()

    def flat_parameters(self) -> Tensor:
        """All parameters and buffers as one new uint8 tensor, exact."""
        return self._state().read()

    def load_flat(self, buffer: Tensor) -> None:
        """Take over `flat_parameters` of an equal module. Raises CheckpointError for any other."""
        self._state().write(buffer)
        self.refresh()

    def refresh(self) -> None:
        """Recompute whatever is derived from the state after it was replaced."""

    def _state(self) -> FlatState:
        if self._flat is None:
            self._flat = FlatState(self)
        return self._flat

    def __getstate__(self) -> dict[str, object]:
        # The flat view points at this object's tensors: a copy makes its own.
        return {**self.__dict__, "_flat": None}
