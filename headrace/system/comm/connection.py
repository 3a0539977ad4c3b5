"""Connections between endpoints: opening them, trusting them, answering over them."""

from __future__ import annotations

import contextlib
import hmac
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.system.comm.payload import Payload
from headrace.system.comm.service import Answer, EndpointAddress, Reply
from headrace.system.comm.wire import Frame, FrameReader, FrameWriter, Kind, ProtocolError

TOKEN_NBYTES = 32
_KEEPALIVE_S = 10


class Connection:
    """A socket with its reader, its writer and the requests that wait for its peer."""

    def __init__(self, sock: socket.socket, peer: EndpointAddress | None, want_write: Callable[[Connection], None]):
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer
        self.reader = FrameReader(sock)
        self.writer = FrameWriter(sock, lambda: want_write(self))
        self.waiting: dict[int, Future[Answer]] = {}
        self.parts: dict[int, list[Payload]] = {}
        self.token = b"" if peer is None else None
        self.clean = False

    def is_trusted(self, token: bytes) -> bool:
        """Whether the peer has shown the job's token; reads more of it. No byte is interpreted before.

        Raises:
            ProtocolError: it showed another.
        """
        if self.token is None:
            return True
        try:
            more = self.sock.recv(TOKEN_NBYTES - len(self.token))
        except BlockingIOError:
            return False
        self.token += more
        if not more or (len(self.token) == TOKEN_NBYTES and not hmac.compare_digest(self.token, token)):
            raise ProtocolError("a stranger knocked")
        if len(self.token) < TOKEN_NBYTES:
            return False
        self.token = None
        return True

    def replier(self, ticket: int) -> Reply:
        """The reply that answers the peer's request `ticket`."""

        def reply(ok: bool, value: Any, payloads: tuple[Payload, ...]) -> None:
            with contextlib.suppress(ConnectionError):  # the caller is gone, and so is its interest
                for part in payloads[:-1]:
                    self.writer.send(Frame(Kind.PART, ticket, part), block=False)
                last = payloads[-1] if payloads else None
                self.writer.send(Frame(Kind.REPLY, (ticket, ok, value), last), block=False)

        return reply


def listen(uid: str, host: str) -> tuple[socket.socket, socket.socket]:
    """The Unix and the TCP socket on which an endpoint is reached."""
    # Abstract names live in the kernel, not in a directory: no file is left when a process dies.
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.bind(f"\0headrace-{uid}")
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.bind((host, 0))
    for listener in (unix, tcp):
        listener.listen(1024)
        listener.setblocking(False)
    return unix, tcp


def dial(to: EndpointAddress, *, same_node: bool) -> socket.socket:
    """A connected socket; OSError where nobody answers."""
    if same_node:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(f"\0{to.unix}")
        return sock
    sock = socket.create_connection((to.host, to.port), timeout=_KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * _KEEPALIVE_S * 1000)
    return sock
