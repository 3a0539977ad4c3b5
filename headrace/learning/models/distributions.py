"""Action distributions, lean and formula-exact: no validation, no broadcasting magic, safe to build per step."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.core.errors import EnvironmentFaultError

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(abc.ABC):
    """Over actions [..., *act], one row per leading index; log_prob and entropy are [...]."""

    @abc.abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One action per row; gradients do not pass."""

    @property
    @abc.abstractmethod
    def mode(self) -> Tensor:
        """The most likely action per row."""

    @abc.abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability (density) of `actions`, summed over the action's axes."""

    @abc.abstractmethod
    def entropy(self) -> Tensor:
        """Entropy per row in nats."""

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A sample and its log-probability, without gradients."""
        actions = self.sample(generator)
        return actions, self.log_prob(actions).detach()


class DiagGaussian(Distribution):
    """Independent normals. mean [..., D], log_std broadcastable to it."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.addcmul(self.mean, self._noise(generator), self.log_std.exp()).detach()

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        # The noise is the scaled distance already: fewer operations than `log_prob`, same number up to rounding.
        noise = self._noise(generator)
        actions = torch.addcmul(self.mean, noise, self.log_std.exp())
        at_mode = -(self.log_std + _HALF_LOG_2PI).expand(self.mean.shape).sum(-1)
        return actions.detach(), torch.sub(at_mode, noise.square().sum(-1), alpha=0.5).detach()

    def _noise(self, generator: torch.Generator | None) -> Tensor:
        return torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)

    @property
    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """-((a - mu) / sigma)^2 / 2 - log sigma - log(2 pi) / 2, summed over D."""
        scaled = (actions - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * scaled.square() - self.log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over D of log sigma + (1 + log(2 pi)) / 2."""
        per_dimension = self.log_std + (0.5 + _HALF_LOG_2PI)
        return per_dimension.sum(-1).expand(self.mean.shape[:-1])


class Categorical(Distribution):
    """One choice of n. logits [..., n]; mask [..., n] bool forbids where False.

    Raises EnvironmentFaultError naming the rows (environments) whose mask forbids everything.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self._mask = mask
        if mask is not None:
            allowed = mask.any(-1)
            if not bool(allowed.all()):
                rows = torch.nonzero(~allowed.reshape(-1)).reshape(-1).tolist()
                raise EnvironmentFaultError(f"env {', '.join(map(str, rows))}: the action mask forbids every action")
            logits = logits.masked_fill(~mask, -torch.inf)
        self.log_probs = torch.log_softmax(logits, -1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """By the Gumbel-max trick: argmax(log p + g), g = -log(-log u)."""
        log_probs = self.log_probs.detach()
        # The exponential draw is never 0, so -log of it is finite and a forbidden action stays at -inf.
        exponential = torch.empty_like(log_probs).exponential_(generator=generator).clamp_min_(1e-30)
        return (log_probs - exponential.log_()).argmax(-1)

    @property
    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """-sum p log p; a forbidden action adds 0, in value and in gradient."""
        log_probs = self.log_probs
        if self._mask is not None:
            # p log p is 0 * -inf = NaN there; selecting before the product keeps its gradient clean too.
            log_probs = log_probs.masked_fill(~self._mask, 0.0)
            return -(torch.where(self._mask, log_probs.exp(), 0.0) * log_probs).sum(-1)
        return -(log_probs.exp() * log_probs).sum(-1)


class MultiCategorical(Distribution):
    """Independent choices. logits [..., sum(sizes)], actions [..., len(sizes)]."""

    def __init__(self, logits: Tensor, sizes: Sequence[int]) -> None:
        self._parts = [Categorical(part) for part in logits.split(list(sizes), -1)]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([part.sample(generator) for part in self._parts], -1)

    @property
    def mode(self) -> Tensor:
        return torch.stack([part.mode for part in self._parts], -1)

    def log_prob(self, actions: Tensor) -> Tensor:
        parts = [part.log_prob(actions[..., index]) for index, part in enumerate(self._parts)]
        return torch.stack(parts, -1).sum(-1)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self._parts], -1).sum(-1)


class Bernoulli(Distribution):
    """Independent yes-or-no choices. logits [..., D], actions 0 or 1 [..., D]."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        uniform = torch.rand(self.logits.shape, generator=generator, dtype=self.logits.dtype, device=self.logits.device)
        return (uniform < torch.sigmoid(self.logits)).detach().long()

    @property
    def mode(self) -> Tensor:
        return (self.logits > 0).long()

    def log_prob(self, actions: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(torch.where(actions > 0, self.logits, -self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        return (torch.nn.functional.softplus(self.logits) - self.logits * torch.sigmoid(self.logits)).sum(-1)
