"""RunningNormalizer: mean and variance of observations, merged from deltas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RunningNormalizer(nn.Module):
    """Shifts and scales observations [..., *shape] by their running mean and standard deviation; clipped to +-10.

    Statistics are float64: count, mean [*shape], m2 [*shape] (sum of squared deviations). Before the first update
    it changes nothing but the clip.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], *, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self._clip = clip
        self._epsilon = epsilon
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(shape, dtype=torch.float64))
        # Derived from the three above, so neither saved nor sent.
        self.register_buffer("shift", torch.zeros(shape), persistent=False)
        self.register_buffer("scale", torch.ones(shape), persistent=False)
        self.register_load_state_dict_post_hook(_refresh_after_load)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.addcmul(self.shift, obs, self.scale).clamp(-self._clip, self._clip)

    @property
    def variance(self) -> Tensor:
        """Population variance [*shape]; 1 before the first update."""
        return self.m2 / self.count if self.count > 0 else torch.ones_like(self.m2)

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Merge a batch of new observations [N, *shape]."""
        batch = obs.double()
        if batch.shape[0] == 0:
            return
        mean = batch.mean(0)
        self.merge(torch.tensor(float(batch.shape[0])), mean, (batch - mean).square().sum(0))

    @torch.no_grad()
    def merge(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """Merge the statistics of data not seen before: a delta, never a history. Chan et al. (1979), eq. 2.1."""
        total = self.count + count
        if total == 0:
            return
        delta = mean - self.mean
        self.mean += delta * (count / total)
        self.m2 += m2 + delta.square() * (self.count * count / total)
        self.count.copy_(total)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute what `forward` uses from the statistics."""
        scale = (self.variance + self._epsilon).rsqrt()
        self.scale.copy_(scale)
        self.shift.copy_(-self.mean * scale)


def _refresh_after_load(module: nn.Module, _: Any) -> None:
    assert isinstance(module, RunningNormalizer)
    module.refresh()
