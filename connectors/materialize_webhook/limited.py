"""Connections on which connecting, sending and receiving an answer each end within a time.

The timeout of a socket bounds a single read: a host that sends one byte at a time would keep an answer waiting for
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

    `HTTPConnection` hands its socket over to such an answer, which ends with the connection.

    Attributes:
        reached: the socket of the last `connect`; None before the first.
    """

    reached: socket.socket | None = None

    @override
    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.reached = self.sock


class TlsConnection(HTTPSConnection):
    """A connection by TLS that has its socket before the handshake, so that the handshake can be ended.

    Attributes:
        reached: as that of `PlainConnection`.
    """

    reached: socket.socket | None = None

    @override
    def connect(self) -> None:
        """Connect, and agree on keys."""
        HTTPConnection.connect(self)
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        tls = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = self.reached = tls
        tls.do_handshake()


Connection = PlainConnection | TlsConnection


def connected(connection: Connection, seconds: float) -> None:
    """Connect, unless that is done.

    Raises:
        OSError: it cannot be done within the time.
    """
    if connection.sock is None:
        with _limited(connection, seconds):
            connection.connect()


def answered(connection: Connection, seconds: float, most_bytes: int) -> tuple[HTTPResponse, bytes]:
    """Return the answer to a request that was sent, and the beginning of its body.

    Raises:
        OSError: there is no whole answer within the time.
        HTTPException: it is none.
    """
    with _limited(connection, seconds):
        response = connection.getresponse()
        return response, response.read(most_bytes)


def interrupt(connection: Connection) -> None:
    """Have what is at work on a connection fail; from any thread."""
    if (at_work := connection.reached) is not None:
        with suppress(OSError):  # that of TLS would forget its keys while another thread reads
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
    if is_over:  # a body without a length may look like a whole one
        raise TimeoutError("timed out")
