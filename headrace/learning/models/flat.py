"""A module's state as one contiguous buffer of bytes, exact for every dtype, and back."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from headrace.core.errors import CheckpointError

_ALIGNMENT = 8


class FlatState:
    """Parameters and persistent buffers of `module` behind one uint8 buffer.

    Layout: eight bytes of schema digest, then each tensor at a multiple of eight bytes, in `state_dict` order.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tensors = list(module.state_dict(keep_vars=True).values())
        schema = [(n, str(t.dtype), tuple(t.shape)) for n, t in module.state_dict(keep_vars=True).items()]
        self.digest = zlib.crc32(repr(schema).encode())
        self._offsets: list[tuple[int, int]] = []
        position = _ALIGNMENT
        for tensor in self._tensors:
            nbytes = tensor.numel() * tensor.element_size()
            self._offsets.append((position, position + nbytes))
            position += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = position

    @torch.no_grad()
    def read(self) -> Tensor:
        """The module's state now, as a fresh uint8 tensor [nbytes]."""
        buffer = torch.zeros(self.nbytes, dtype=torch.uint8)
        buffer[:_ALIGNMENT].view(torch.int64)[0] = self.digest
        for tensor, (start, stop) in zip(self._tensors, self._offsets, strict=True):
            buffer[start:stop].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return buffer

    @torch.no_grad()
    def write(self, buffer: Tensor) -> None:
        """Put the module into the state in `buffer`. Raises CheckpointError where it is of another module's shape."""
        if buffer.dtype != torch.uint8 or buffer.shape != (self.nbytes,):
            raise CheckpointError(f"weights: {buffer.dtype} {tuple(buffer.shape)}, expected uint8 ({self.nbytes},)")
        digest = int(buffer[:_ALIGNMENT].view(torch.int64)[0])
        if digest != self.digest:
            raise CheckpointError(f"weights: schema {digest:08x} does not fit this module's {self.digest:08x}")
        for tensor, (start, stop) in zip(self._tensors, self._offsets, strict=True):
            tensor.copy_(buffer[start:stop].view(tensor.dtype).view(tensor.shape))
