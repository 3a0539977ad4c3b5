"""The tree codec and the wire: what goes in comes out, bit for bit."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.core import tree
from headrace.system.comm.payload import SHARED_MEMORY_MIN_NBYTES, Payload, SharedBody
from headrace.system.comm.wire import Frame, FrameReader, FrameWriter, Kind


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Box:
    content: Any


arrays = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), arrays)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Box, inner),
    ),
    max_leaves=8,
)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Box):
        return isinstance(b, Box) and _same(a.content, b.content)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


@given(trees)
def test_any_tree_comes_out_as_it_went_in(item: Any) -> None:
    assert _same(Payload.of(item).decode(), item)


@given(trees, st.data())
@settings(max_examples=50)
def test_a_cut_header_or_body_raises(item: Any, data: st.DataObject) -> None:
    encoded = tree.encode({"a": np.arange(9), "tree": item})
    body = bytearray(encoded.body_nbytes)
    encoded.write_into(memoryview(body))
    kept = data.draw(st.integers(0, 8))
    with pytest.raises(ValueError):
        tree.decode(encoded.header[: min(kept, 3)], memoryview(body))
    with pytest.raises(tree.MalformedTreeError):
        tree.decode(encoded.header, memoryview(body)[:kept])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.float8_e4m3fn]
)
def test_tensors_of_every_dtype_come_out_as_they_went_in(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    for version in (tensor, tensor.t(), tensor[:0], tensor[0, 0]):
        out = Payload.of([version]).decode()[0]
        assert (out.dtype, out.shape) == (version.dtype, version.shape)
        assert torch.equal(out.float(), version.float())


def test_a_parameter_keeps_that_it_requires_a_gradient() -> None:
    assert Payload.of(torch.zeros(2, requires_grad=True)).decode().requires_grad


def test_views_of_every_layout_are_packed() -> None:
    base = np.arange(24).reshape(2, 3, 4)
    for view in (base.T, base[:, ::2], base[::-1], np.asfortranarray(base), base[..., 0]):
        np.testing.assert_array_equal(Payload.of(view).decode(), view)


def test_the_payload_owns_its_bytes() -> None:
    array = np.zeros(4)
    payload = Payload.of(array)
    array[:] = 1
    out = payload.decode()
    out[:] = 2
    np.testing.assert_array_equal(payload.decode(), np.zeros(4))


def test_a_large_array_is_encoded_without_a_copy_and_mapped_without_a_copy() -> None:
    array = np.arange(SHARED_MEMORY_MIN_NBYTES, dtype=np.uint8)
    (buffer,) = tree.encode(array).buffers
    assert np.frombuffer(buffer, np.uint8).ctypes.data == array.ctypes.data
    payload = Payload.of(array)
    assert isinstance(payload.body, SharedBody)
    np.testing.assert_array_equal(payload.decode(), array)


@given(st.lists(st.tuples(trees, st.booleans()), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_frames_arrive_in_order_whatever_their_size(items: list[tuple[Any, bool]]) -> None:
    left, right = socket.socketpair()
    writer, reader = FrameWriter(left, lambda: None), FrameReader(right)
    sent = [(item, np.zeros(200_000 if large else 3, np.uint8)) for item, large in items]
    received: list[Frame] = []
    for number, item in enumerate(sent):
        writer.send(Frame(Kind.NOTICE, number, Payload.of(item)), block=False)
    while len(received) < len(sent):
        writer.on_writable()
        received += reader.read() or []
    assert [frame.head for frame in received] == list(range(len(sent)))
    for frame, item in zip(received, sent, strict=True):
        assert frame.payload is not None
        assert _same(frame.payload.decode(), item)
    left.close()
    assert reader.read() is None
    right.close()


def test_a_large_body_crosses_tcp_inline() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    left = socket.create_connection(listener.getsockname())
    right, _ = listener.accept()
    writer, reader = FrameWriter(left, lambda: None), FrameReader(right)
    array = np.random.default_rng(0).integers(0, 255, 3_000_000, dtype=np.uint8)
    writer.send(Frame(Kind.REPLY, 1, Payload.of(array)), block=False)
    frames: list[Frame] = []
    while not frames:
        writer.on_writable()
        frames = reader.read() or []
    assert frames[0].payload is not None
    np.testing.assert_array_equal(frames[0].payload.decode(), array)
    for sock in (left, right, listener):
        sock.close()
