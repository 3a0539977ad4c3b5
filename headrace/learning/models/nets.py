"""Networks: the multi-layer perceptron."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "silu": nn.functional.silu, "elu": nn.functional.elu}


class MLP(nn.Module):
    """Linear layers of sizes [in, *hidden, out] with an activation between. [..., in] -> [..., out].

    Orthogonal weights (gain sqrt 2 inside, `output_gain` for the last), zero biases. Saxe et al. (2014).
    """

    def __init__(
        self, sizes: Sequence[int], activation: str, *, output_gain: float, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        last = len(sizes) - 2
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            weight = torch.empty(fan_out, fan_in)
            nn.init.orthogonal_(weight, output_gain if layer == last else 2.0**0.5, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(fan_out)))
        # Plain list beside the ParameterLists, whose look-ups cost more than a small layer's arithmetic.
        self._layers: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        layers = self._layers or self._cache()
        for weight, bias in layers[:-1]:
            x = self._activation(nn.functional.linear(x, weight, bias))
        return nn.functional.linear(x, *layers[-1])

    def _cache(self) -> list[tuple[Tensor, Tensor]]:
        self._layers = list(zip(self.weights, self.biases, strict=True))
        return self._layers
