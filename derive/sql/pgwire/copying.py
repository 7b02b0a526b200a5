"""COPY: lines as messages, and what a client sends as pieces of bytes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from derive.errors import SqlError
from derive.sql.pgwire.requests import Body


def copy_data(lines: Sequence[bytes]) -> bytes:
    """Lines as messages of COPY, one of each."""
    return b"".join(part for line in lines for part in (b"d", struct.pack("!i", len(line) + 4), line))


class CopyIn:
    """What a client sends for `COPY … FROM STDIN`, up to its end."""

    def __init__(self, receive: Callable[[], Awaitable[tuple[bytes, bytes]]]) -> None:
        self._receive = receive
        self._is_ended = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces, of any size.

        Raises:
            SqlError: the client gives up, or sends what is no part of it.
        """
        while not self._is_ended:
            kind, body = await self._receive()
            if kind == b"d":
                yield body
            elif kind == b"c":
                self._is_ended = True
            elif kind == b"f":
                self._is_ended = True
                raise SqlError("57014", f"COPY from stdin failed: {Body(body).text()}")
            elif kind not in (b"H", b"S"):
                self._is_ended = True
                raise SqlError("08P01", f"unexpected message type 0x{kind.hex()} during COPY from stdin")

    async def drain(self) -> None:
        """Pass over what was not asked for."""
        async for _ in self.pieces():
            pass
