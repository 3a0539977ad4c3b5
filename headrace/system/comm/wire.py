"""Frames on a stream socket: cutting them apart, and writing them without blocking.

A frame is a fixed prefix, a pickled head (small, ours) and an optional body (a payload's bytes). On a Unix socket
a body in shared memory travels as a file descriptor beside the frame; on TCP the same body travels inline.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.system.comm.payload import Payload, SharedBody

_PREFIX = struct.Struct("<BBIIQ")  # kind, body place, head bytes, payload-header bytes, body bytes
_READ_NBYTES = 64 * 1024
_MAX_FDS = 64
_FD = struct.Struct("@i")
HIGH_WATER_NBYTES = 8 * 1024 * 1024


class ProtocolError(HeadraceError):
    """The other end does not speak our protocol."""


class Kind(IntEnum):
    HELLO = 0
    NOTICE = 1
    REQUEST = 2
    REPLY = 3
    PART = 4  # one of several payloads; REPLY brings the last
    GOODBYE = 5


class _Place(IntEnum):
    NONE = 0
    INLINE = 1
    SHARED = 2


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    head: Any
    payload: Payload | None = None


class FrameWriter:
    """Sends frames in order from any thread; what the socket does not take at once waits in a queue."""

    def __init__(self, sock: socket.socket, want_write: Callable[[], None]) -> None:
        self._sock = sock
        self._passes_fds = sock.family == socket.AF_UNIX
        self._want_write = want_write
        self._queue: deque[tuple[memoryview, SharedBody | None]] = deque()
        self._queued_nbytes = 0
        self._drained = threading.Condition()
        self._failure: Exception | None = None

    def send(self, frame: Frame, *, block: bool) -> None:
        """Send or queue `frame`. With `block`, wait while more than HIGH_WATER_NBYTES are queued.

        Raises:
            ConnectionError: the connection is broken.
        """
        chunks = self._chunks(frame)
        with self._drained:
            if self._failure is not None:
                raise ConnectionError(str(self._failure))
            idle = not self._queue
            self._queue.extend(chunks)
            self._queued_nbytes += sum(len(view) for view, _ in chunks)
            if idle:
                self._write()
            if self._queue:
                self._want_write()
            if block:
                self._drained.wait_for(lambda: self._queued_nbytes <= HIGH_WATER_NBYTES or self._failure is not None)

    def on_writable(self) -> bool:
        """Write more of the queue; True when nothing is left."""
        with self._drained:
            self._write()
            self._drained.notify_all()
            return not self._queue

    def fail(self, failure: Exception) -> None:
        """Give up: senders that wait are woken, later ones are refused."""
        with self._drained:
            self._failure = failure
            self._queue.clear()
            self._queued_nbytes = 0
            self._drained.notify_all()

    def _chunks(self, frame: Frame) -> list[tuple[memoryview, SharedBody | None]]:
        head = pickle.dumps(frame.head, protocol=5)
        payload = frame.payload
        if payload is None:
            return [(memoryview(_PREFIX.pack(frame.kind, _Place.NONE, len(head), 0, 0) + head), None)]
        body = payload.body
        shared = body if isinstance(body, SharedBody) and self._passes_fds else None
        place = _Place.SHARED if shared is not None else _Place.INLINE
        prefix = _PREFIX.pack(frame.kind, place, len(head), len(payload.header), len(body))
        front = prefix + head + payload.header
        if shared is not None:
            return [(memoryview(front), shared)]
        if isinstance(body, SharedBody):
            return [(memoryview(front), None), (body.view(), None)]
        if len(body) < _READ_NBYTES:
            return [(memoryview(front + bytes(body)), None)]
        return [(memoryview(front), None), (memoryview(body), None)]

    def _write(self) -> None:
        while self._queue and self._failure is None:
            view, shared = self._queue[0]
            ancillary = [] if shared is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _FD.pack(shared.fd))]
            try:
                sent = self._sock.sendmsg([view], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as broken:
                self._failure = broken
                self._drained.notify_all()
                return
            self._queued_nbytes -= sent
            if sent == len(view):
                self._queue.popleft()
            else:
                # The descriptor went with the first byte; only the rest of the bytes is still owed.
                self._queue[0] = (view[sent:], None)


class FrameReader:
    """Cuts a byte stream into frames; large inline bodies are received straight into their own buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pending = bytearray()
        self._fds: deque[int] = deque()
        self._large: _LargeBody | None = None

    def read(self) -> list[Frame] | None:
        """The frames that the next bytes complete; None at the end of the stream.

        Raises:
            OSError: the connection broke.
            ProtocolError: the bytes are no frame.
        """
        try:
            if self._large is not None:
                return self._read_large(self._large)
            data = self._receive()
        except BlockingIOError:
            return []
        if not data:
            return None
        self._pending += data
        return self._cut()

    def close(self) -> None:
        """Close descriptors that arrived without their frame."""
        while self._fds:
            os.close(self._fds.popleft())

    def _receive(self) -> bytes:
        space = socket.CMSG_SPACE(_MAX_FDS * _FD.size)
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        data, ancillary, came, _ = self._sock.recvmsg(_READ_NBYTES, space, flags)
        if came & socket.MSG_CTRUNC:
            raise ProtocolError("a shared body was lost: this process may not open more files (ulimit -n)")
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._fds.extend(fd for (fd,) in _FD.iter_unpack(raw[: len(raw) - len(raw) % _FD.size]))
        return data

    def _read_large(self, large: _LargeBody) -> list[Frame] | None:
        got = self._sock.recv_into(large.rest(), flags=socket.MSG_DONTWAIT)
        if not got:
            return None
        large.filled += got
        if large.filled < len(large.body):
            return []
        self._large = None
        return [Frame(large.kind, large.head, Payload(large.header, large.body))]

    def _cut(self) -> list[Frame]:
        frames: list[Frame] = []
        start = 0
        pending = self._pending
        while len(pending) - start >= _PREFIX.size:
            kind, place, head_n, header_n, body_n = _PREFIX.unpack_from(pending, start)
            front = start + _PREFIX.size + head_n + header_n
            if len(pending) < front:
                break
            inline_n = body_n if place == _Place.INLINE else 0
            if len(pending) < front + inline_n and inline_n < _READ_NBYTES:
                break
            head_start = start + _PREFIX.size
            head = _read_head(bytes(pending[head_start : head_start + head_n]))
            header = bytes(pending[head_start + head_n : front])
            if len(pending) < front + inline_n:
                self._large = _LargeBody(Kind(kind), head, header, bytearray(inline_n), pending[front:])
                start = len(pending)
                break
            frames.append(
                Frame(Kind(kind), head, self._payload(place, header, pending[front : front + inline_n], body_n))
            )
            start = front + inline_n
        if start:
            del pending[:start]
        return frames

    def _payload(self, place: int, header: bytes, inline: bytearray, body_n: int) -> Payload | None:
        if place == _Place.NONE:
            return None
        if place == _Place.INLINE:
            return Payload(header, inline)
        if not self._fds:
            raise ProtocolError("a frame announced a shared body and none came with it")
        return Payload(header, SharedBody(self._fds.popleft(), body_n))


def _read_head(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # a key of a user's class may fail to unpickle in any way
        raise ProtocolError(f"a message's head cannot be read here: {type(error).__name__}: {error}") from error


class _LargeBody:
    """A frame whose inline body is still arriving."""

    def __init__(self, kind: Kind, head: Any, header: bytes, body: bytearray, first: bytearray) -> None:
        self.kind = kind
        self.head = head
        self.header = header
        self.body = body
        self.filled = len(first)
        body[: len(first)] = first

    def rest(self) -> memoryview:
        return memoryview(self.body)[self.filled :]
