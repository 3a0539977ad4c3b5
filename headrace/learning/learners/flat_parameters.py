"""FlatParameters: all parameters of a module as one vector, so that Adam, clipping and all-reduce are one call each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves the module's trainable parameters into one vector; they and their gradients become views of it.

    vector: [P] Parameter whose .grad is the gradient vector. The module works as before.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not parameters:
            raise ValueError(f"{type(module).__name__} has no trainable parameters")
        self.vector = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
        self.vector.grad = torch.zeros_like(self.vector)
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.data = self.vector.data[start:stop].view_as(parameter)
            parameter.grad = self.vector.grad[start:stop].view_as(parameter)
            start = stop

    @property
    def gradient(self) -> Tensor:
        assert self.vector.grad is not None
        return self.vector.grad
