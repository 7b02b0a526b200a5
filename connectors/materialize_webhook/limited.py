"""Connections on which connecting, sending and receiving an answer each have a time limit.

The timeout of a socket bounds a single read: a host that sends one byte at a time would delay the end of an answer for
ever.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer

from typing_extensions import override


class PlainConnection(HTTPConnection):
    """A connection that keeps its socket while an answer without a length is read.

    `HTTPConnection` transfers its socket to such an answer, which ends with the connection.

    Attributes:
        reached: socket of the last `connect`; None before the first.
    """

    reached: socket.socket | None = None

    @override
    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.reached = self.sock


class TlsConnection(HTTPSConnection):
    """A TLS connection that has its socket before the handshake, so that the handshake can be interrupted.

    Attributes:
        reached: as in `PlainConnection`.
    """

    reached: socket.socket | None = None

    @override
    def connect(self) -> None:
        """Connect, and perform the TLS handshake."""
        HTTPConnection.connect(self)
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        tls = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = self.reached = tls
        tls.do_handshake()


Connection = PlainConnection | TlsConnection


def connected(connection: Connection, seconds: float) -> None:
    """Connect, unless the connection is open.

    Raises:
        OSError: connecting failed, or exceeded the time limit.
    """
    if connection.sock is None:
        with _limited(connection, seconds):
            connection.connect()


def answered(connection: Connection, seconds: float, most_bytes: int) -> tuple[HTTPResponse, bytes]:
    """Return the answer to a sent request, and the beginning of its body.

    Raises:
        OSError: there is no complete answer within the time limit.
        HTTPException: the answer is not HTTP.
    """
    with _limited(connection, seconds):
        response = connection.getresponse()
        return response, response.read(most_bytes)


def interrupt(connection: Connection) -> None:
    """Interrupt the running operation of a connection, from any thread."""
    if (at_work := connection.reached) is not None:
        with suppress(OSError):  # the shutdown of a TLS socket would drop its keys while another thread reads
            socket.socket.shutdown(at_work, socket.SHUT_RDWR)


@contextmanager
def _limited(connection: Connection, seconds: float) -> Iterator[None]:
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        interrupt(connection)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException) as exc:
        if is_over:
            raise TimeoutError("timed out") from exc
        raise
    finally:
        timer.cancel()
    if is_over:  # a body without a length may look complete
        raise TimeoutError("timed out")
