"""Connections to gRPC servers that make no calls."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from patience import PATIENCE_SECONDS

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SILENCES = {"nothing": b"", "no settings": _PREFACE, "no call": _PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])}
"""Bytes that a silent connection sends, by the name of the case."""


@contextmanager
def silent(address: str, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """Connections to an address; more than a server accepts are closed by it."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS))
            with suppress(OSError):
                connection.sendall(said)
            connections.append(connection)
        yield connections


def await_ends(connections: list[socket.socket]) -> None:
    """Wait until a server has closed all connections."""
    for connection in connections:
        with suppress(ConnectionResetError):
            while connection.recv(4096):
                pass
