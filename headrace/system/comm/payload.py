"""A tree on its way: owned bytes, either in this process or in anonymous shared memory.

Small trees travel inside the message. A large one is written once into a memfd, whose descriptor goes over the
Unix socket: the pages are the sender's, nothing is copied again, and since the file has no name the kernel frees
it when the last holder closes it or dies. Nothing can be left behind in /dev/shm.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from headrace.core import tree

SHARED_MEMORY_MIN_NBYTES = 128 * 1024


class SharedBody:
    """Bytes in anonymous shared memory, named by a file descriptor that this object owns."""

    __slots__ = ("fd", "nbytes")

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes

    @classmethod
    def of(cls, encoded: tree.Encoded) -> SharedBody:
        nbytes = encoded.body_nbytes
        body = cls(os.memfd_create("headrace", os.MFD_CLOEXEC), nbytes)
        os.ftruncate(body.fd, nbytes)
        with mmap.mmap(body.fd, nbytes) as mapped, memoryview(mapped) as view:
            encoded.write_into(view)
        return body

    def view(self) -> memoryview:
        """The bytes; writing to them changes this process's copy only (copy on write)."""
        return memoryview(mmap.mmap(self.fd, self.nbytes, flags=mmap.MAP_PRIVATE))

    def __len__(self) -> int:
        return self.nbytes

    def __del__(self) -> None:
        os.close(self.fd)


class Payload:
    """An encoded tree: `header` (structure) and `body` (leaves)."""

    __slots__ = ("body", "header")

    def __init__(self, header: bytes, body: bytearray | bytes | SharedBody) -> None:
        self.header = header
        self.body = body

    @classmethod
    def of(cls, item: Any) -> Payload:
        """Encode `item`. The payload owns its bytes: the caller may change the item afterwards."""
        encoded = tree.encode(item)
        if encoded.body_nbytes >= SHARED_MEMORY_MIN_NBYTES:
            return cls(encoded.header, SharedBody.of(encoded))
        body = bytearray(encoded.body_nbytes)
        encoded.write_into(memoryview(body))
        return cls(encoded.header, body)

    def decode(self) -> Any:
        """The tree again, as a copy of its own: its arrays are writable and shared with no one."""
        if isinstance(self.body, SharedBody):
            return tree.decode(self.header, self.body.view())
        return tree.decode(self.header, memoryview(bytearray(self.body)))

    @property
    def nbytes(self) -> int:
        return len(self.header) + len(self.body)
