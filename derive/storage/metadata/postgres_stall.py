"""A server of PostgreSQL that does not answer, because it is stopped, or because the network loses its packets.

The network of this machine may still accept what is sent to such a server, so no connection breaks. A long silence is
no proof, either: a statement may take long, or wait for a lock. So the server is asked on another connection whether it
supports TLS, which every server answers before a login. Without an answer, the connection counts as broken.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import closing

_TLS_REQUEST = struct.pack("!ii", 8, 80877103)
"""The message `SSLRequest` of the protocol: its length, and its code."""

_REST_SECONDS = 0.5
"""Pause between questions to a silent server, in seconds."""


def answers(host: str, port: int, seconds: float) -> bool:
    """Return whether a server answers within a time limit.

    Args:
        host: name or address of its machine, or the folder of its Unix socket.
        port: its port.
        seconds: the time limit.
    """
    try:
        with closing(_connected(host, port, seconds)) as connection:
            connection.sendall(_TLS_REQUEST)
            return bool(connection.recv(1))
    except OSError:
        return False


def _connected(host: str, port: int, seconds: float) -> socket.socket:
    if not host.startswith("/"):
        return socket.create_connection((host, port), seconds)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(seconds)
        connection.connect(f"{host}/.s.PGSQL.{port}")
    except BaseException:
        connection.close()
        raise
    return connection


class Stall:
    """The time in which a server is silent: from a question without an answer until it answers again.

    Attributes:
        is_on: whether the server is silent.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._turn = threading.Lock()
        self._is_closed = threading.Event()

    def begin(self, host: str, port: int, seconds: float) -> None:
        """Note that a server is silent, and ask it in the background until it answers; arguments as for `answers`."""
        with self._turn:
            if self.is_on or self._is_closed.is_set():
                return
            self.is_on = True
        name = "flowctl-silent-postgresql"
        threading.Thread(target=self._ask, args=(host, port, seconds), name=name, daemon=True).start()

    def _ask(self, host: str, port: int, seconds: float) -> None:
        while not self._is_closed.is_set() and not answers(host, port, seconds):
            self._is_closed.wait(_REST_SECONDS)
        self.is_on = False

    def close(self) -> None:
        """End the questions."""
        self._is_closed.set()
