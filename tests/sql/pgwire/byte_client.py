"""A client that writes bytes, and reads messages."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import TracebackType

from patience import PATIENCE_SECONDS

STARTUP = b"user\0flow\0database\0flow\0\0"


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def startup(body: bytes = STARTUP, version: int = 196608) -> bytes:
    return struct.pack("!iI", len(body) + 8, version) + body


class ByteClient:
    def __init__(self, port: int, *, is_let_in: bool = True, startup_body: bytes = STARTUP) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        if is_let_in:
            self.send(startup(startup_body))
            try:
                self.key = next(body for kind, body in self.until(b"Z") if kind == b"K")
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> ByteClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    def receive(self) -> tuple[bytes, bytes]:
        kind = self.read(1)
        return kind, self.read(struct.unpack("!i", self.read(4))[0] - 4)

    def until(self, last: bytes) -> list[tuple[bytes, bytes]]:
        received = [self.receive()]
        while received[-1][0] != last:
            received.append(self.receive())
        return received

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """All messages up to the end of the connection."""
        while kind := self._socket.recv(1):
            yield kind, self.read(struct.unpack("!i", self.read(4))[0] - 4)

    def is_sent_away(self) -> bool:
        """Whether nothing more comes, after whatever does."""
        try:
            while self._socket.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True


def state_of(body: bytes) -> str:
    """The SQLSTATE of an error."""
    return next(field[1:].decode() for field in body.split(b"\0") if field.startswith(b"C"))
