"""Nested data as one header and raw buffers: how any tree of arrays crosses a process boundary.

A tree is any nesting of dict, list, tuple, dataclass and plain objects with NumPy arrays and torch tensors as
leaves. `encode` never copies an array and never pickles its bytes: it returns a small header (structure) and the
leaves' own memory, out of band (PEP 574). `decode` maps the leaves back onto one buffer without a copy.
torch is touched only where a tensor is met, so that processes without tensors never import it.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

ALIGNMENT = 64
_COUNT = struct.Struct("<I")


class MalformedTreeError(ValueError):
    """Header and buffer do not belong together."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tree in transit: `header` holds the structure, `buffers` the leaves' memory (not copied)."""

    header: bytes
    buffers: tuple[memoryview, ...]

    @property
    def body_nbytes(self) -> int:
        """Bytes that the buffers take once they are laid out one after the other, aligned."""
        return sum(_aligned(len(b)) for b in self.buffers)

    def write_into(self, body: memoryview) -> None:
        """Copy every buffer to its place in `body` (`body_nbytes` long)."""
        start = 0
        for buffer in self.buffers:
            body[start : start + len(buffer)] = buffer
            start += _aligned(len(buffer))


def encode(tree: Any) -> Encoded:
    """Split a tree into header and buffers. Leaves that are no arrays travel in the header, pickled."""
    out_of_band: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _TreePickler(stream, protocol=5, buffer_callback=out_of_band.append).dump(tree)
    buffers = tuple(b.raw() for b in out_of_band)
    lengths = struct.pack(f"<{len(buffers)}Q", *(len(b) for b in buffers))
    return Encoded(_COUNT.pack(len(buffers)) + lengths + stream.getvalue(), buffers)


def decode(header: bytes, body: memoryview) -> Any:
    """Rebuild a tree; its arrays are views onto `body`, writable if `body` is.

    Raises:
        MalformedTreeError: the header is cut, or names more bytes than `body` has.
    """
    if len(header) < _COUNT.size:
        raise MalformedTreeError("tree header is cut short")
    (count,) = _COUNT.unpack_from(header)
    end = _COUNT.size + 8 * count
    if len(header) < end:
        raise MalformedTreeError("tree header is cut short")
    views, start = [], 0
    for length in struct.unpack_from(f"<{count}Q", header, _COUNT.size):
        if start + length > len(body):
            raise MalformedTreeError(f"tree wants {start + length} bytes of a buffer of {len(body)}")
        views.append(body[start : start + length])
        start += _aligned(length)
    return pickle.loads(memoryview(header)[end:], buffers=views)


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class _TreePickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
            # C order keeps every leaf one plain buffer; Fortran-ordered and strided views are packed here.
            flat = np.ascontiguousarray(obj).reshape(-1).view(np.uint8) if obj.size else np.empty(0, np.uint8)
            return _array, (pickle.PickleBuffer(flat.data), obj.dtype, obj.shape)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            return self._reduce_tensor(torch, obj)
        return super().reducer_override(obj)

    @staticmethod
    def _reduce_tensor(torch: Any, tensor: Any) -> Any:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return _tensor, (pickle.PickleBuffer(raw.data), dtype, tuple(tensor.shape), tensor.requires_grad)


def _array(buffer: Any, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape)


def _tensor(buffer: Any, dtype: str, shape: Sequence[int], requires_grad: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    raw = np.frombuffer(buffer, np.uint8)
    tensor = (
        torch.from_numpy(raw if raw.flags.writeable else raw.copy()).view(kind)
        if raw.size
        else torch.empty(0, dtype=kind)
    )
    return tensor.reshape(tuple(shape)).requires_grad_(requires_grad)
