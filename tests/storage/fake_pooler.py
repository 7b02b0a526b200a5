"""A connection pooler before a PostgreSQL server, as far as clients can tell it from the server itself."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from io import BufferedIOBase

_SSL_REQUEST = 80877103


class Pooler:
    """Forwards connections to a server, as PgBouncer does.

    Args:
        port: port of the server on this machine.
        shares: whether a session is given to another client after each transaction; otherwise a client keeps its own.

    Attributes:
        port: port of the pooler.
    """

    def __init__(self, port: int, *, shares: bool) -> None:
        self._target, self._shares = port, shares
        self._idle: list[BufferedIOBase] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections, and end the idle sessions."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        while self._idle:
            self._idle.pop().close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as client, suppress(OSError, EOFError):
            server = self._log_in(client)
            held: BufferedIOBase | None = None if self._shares else server
            if self._shares:
                self._idle.insert(0, server)  # the session that was used last is used first
            while True:
                requests = [_read(client)]
                while requests[-1][:1] not in b"QSX":
                    requests.append(_read(client))
                if requests[-1][:1] == b"X":
                    break
                held = held or self._idle.pop()
                if _exchange(client, held, requests) == b"I" and self._shares:
                    self._idle.append(held)
                    held = None
            if held is not None:
                held.close()

    def _log_in(self, client: BufferedIOBase) -> BufferedIOBase:
        """Let the server check the password; the client learns another process than that of the session."""
        first = _read_untyped(client)
        if int.from_bytes(first[4:8], "big") == _SSL_REQUEST:
            client.write(b"N")
            client.flush()
            first = _read_untyped(client)
        with socket.create_connection(("127.0.0.1", self._target)) as connection:
            server = connection.makefile("rwb")
        server.write(first)
        server.flush()
        while True:
            answer = _read(server)
            kind = answer[:1]
            client.write(b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x01" if kind == b"K" else answer)
            client.flush()
            if kind == b"Z":
                return server
            if kind == b"R" and answer[8:9] in (b"\x0a", b"\x0b"):  # SASL, which the client continues
                server.write(_read(client))
                server.flush()


def _exchange(client: BufferedIOBase, server: BufferedIOBase, requests: list[bytes]) -> bytes:
    """Forward requests and their answers; return the status of the transaction."""
    server.write(b"".join(requests))
    server.flush()
    answers = [_read(server)]
    while answers[-1][:1] != b"Z":
        answers.append(_read(server))
    client.write(b"".join(answers))
    client.flush()
    return answers[-1][5:6]


def _read(file: BufferedIOBase) -> bytes:
    return _exactly(file, 1) + _read_untyped(file)


def _read_untyped(file: BufferedIOBase) -> bytes:
    length = _exactly(file, 4)
    return length + _exactly(file, int.from_bytes(length, "big") - 4)


def _exactly(file: BufferedIOBase, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data
