"""COPY: rows as lines of text, and what a client sends as pieces of bytes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from derive.adapter.server.requests import Body
from derive.adapter.server.values import Encoder
from derive.compute.algebra.types import Row
from derive.errors import SqlError

_ESCAPED = (
    (b"\\", b"\\\\"),
    (b"\n", b"\\n"),
    (b"\r", b"\\r"),
    (b"\t", b"\\t"),
    (b"\b", b"\\b"),
    (b"\f", b"\\f"),
    (b"\v", b"\\v"),
)
_SPECIAL = frozenset(b"\\\n\r\t\b\f\v")


def copy_lines(rows: Sequence[Row], encoders: Sequence[Encoder]) -> bytes:
    """Rows as messages of COPY in its text format: a line each, with tabs between values."""
    parts: list[bytes] = []
    for row in rows:
        values = (
            b"\\N" if datum is None else _escaped(encode(datum)) for datum, encode in zip(row, encoders, strict=True)
        )
        line = b"\t".join(values)
        parts += (b"d", struct.pack("!i", len(line) + 5), line, b"\n")
    return b"".join(parts)


def _escaped(data: bytes) -> bytes:
    if _SPECIAL.isdisjoint(data):
        return data
    for plain, escaped in _ESCAPED:
        data = data.replace(plain, escaped)
    return data


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
