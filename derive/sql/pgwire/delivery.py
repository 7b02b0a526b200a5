"""Delivery of results to the client, including COPY, at the speed of the client."""

from __future__ import annotations

import asyncio
import codecs
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext

from derive.errors import SqlError
from derive.sql.client_encodings import CLIENT
from derive.sql.outcome import Result, Session
from derive.sql.pgwire import messages
from derive.sql.pgwire.messages import Body
from derive.sql.pgwire.portal import Portal
from derive.sql.pgwire.values import data_rows
from derive.sql.pgwire.wire import Wire
from derive.sql.pgwire.work import Work


def copy_data(lines: Sequence[bytes]) -> bytes:
    """Return lines as CopyData messages, one each."""
    return b"".join(part for line in lines for part in (b"d", struct.pack("!i", len(line) + 4), line))


class CopyIn:
    """The data of a client for `COPY … FROM STDIN`."""

    def __init__(self, receive: Callable[[], Awaitable[tuple[bytes, bytes]]]) -> None:
        self._receive = receive
        self._is_ended = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces, of any size.

        Raises:
            SqlError: the client aborts the COPY, or sends another message.
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
        """Discard the remaining data."""
        async for _ in self.pieces():
            pass


def _recoded(line: bytes) -> bytes:
    """Return a line of COPY in the client's encoding."""
    encoding = CLIENT.get()
    return line if encoding.is_utf8 else encoding.recode(line)


async def _decoded(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a client's pieces of COPY in UTF-8; a character may be in two pieces.

    Raises:
        SqlError: the pieces are not in the client's encoding.
    """
    encoding = CLIENT.get()
    decoder = codecs.getincrementaldecoder(encoding.codec)()
    async for piece in pieces:
        try:
            yield piece if encoding.is_utf8 else decoder.decode(piece).encode()
        except UnicodeDecodeError as exc:
            raise encoding.invalid(exc.object[exc.start : exc.start + 1]) from exc
    if not encoding.is_utf8 and decoder.getstate()[0]:
        raise encoding.invalid(decoder.getstate()[0])


def _refuse_binary(*, is_binary: bool) -> None:
    """Refuse COPY in binary if its texts would have to be converted.

    Raises:
        SqlError: 0A000, the client's encoding is not UTF-8.
    """
    if is_binary and not (encoding := CLIENT.get()).is_utf8:
        what = f"COPY in binary is not supported with the client encoding {encoding.name}"
        raise SqlError("0A000", what, hint="SET client_encoding = 'UTF8'")


class Delivery:
    """Sends results over a connection."""

    def __init__(self, wire: Wire, session: Session, work: Work) -> None:
        self._wire = wire
        self._session = session
        self._work = work

    async def carry_out(self, portal: Portal, most: int, *, is_described: bool) -> str | None:
        """Execute a portal, and send its results.

        Args:
            portal: the portal, which may be suspended.
            most: greatest number of rows; 0 for all.
            is_described: whether RowDescription precedes the rows.

        Returns:
            The command tag; None if the portal is suspended.
        """
        result = await portal.begin(self._session)
        for said in result.notices:
            self._wire.send(messages.notice(said))
        if result.copy_in:
            return result.tag(await self._copy_in(result, result.copy_in))
        if result.columns is None:
            return result.tag(0)
        if result.copy_out:
            _refuse_binary(is_binary=result.copy_out.is_binary)
            most = 0
            self._wire.send(messages.copy_response(b"H", len(result.columns), is_binary=result.copy_out.is_binary))
            if result.copy_out.header:
                self._wire.send(copy_data([_recoded(result.copy_out.header)]))
        elif is_described:
            self._wire.send(portal.shape.description)
        if result.is_prompt:
            await self._let_read()  # the first row may come late
        with self._work.settled() if result.has_happened else nullcontext():
            count = await self._send_rows(portal, result, most)
        if result.copy_out:
            if result.copy_out.end:
                self._wire.send(copy_data([result.copy_out.end()]))
            self._wire.send(messages.COPY_DONE)
        return result.tag(count) if portal.is_done else None

    async def _send_rows(self, portal: Portal, result: Result, most: int) -> int:
        encoders = portal.shape.encoders
        count = 0
        while not most or count < most:
            desired = most and most - count
            rows = portal.ready_rows(desired)
            if rows is None:
                rows = await portal.next_rows(desired)
            if portal.is_done:
                break
            count += len(rows)
            if result.copy_out:
                self._wire.send(copy_data(list(map(_recoded, result.copy_out.lines(rows)))))
            else:
                self._wire.send(data_rows(rows, encoders))
            if self._wire.has_enough or (result.is_prompt and not portal.has_batch_left):
                await self._let_read()
        return count

    async def _let_read(self) -> None:
        """Flush the output, and wait for the client and for other tasks."""
        self._wire.flush()
        if self._wire.is_full:
            with self._work.waiting_for_client():
                await self._wire.drained()
        else:
            await asyncio.sleep(0)
        self._work.require_going_on()

    async def _copy_in(self, result: Result, take: Callable[[AsyncIterator[bytes]], Awaitable[int]]) -> int:
        _refuse_binary(is_binary=result.is_binary)
        self._wire.send(messages.copy_response(b"G", len(result.columns or ()), is_binary=result.is_binary))
        self._wire.flush()
        copy = CopyIn(self._receive)
        count = await take(_decoded(copy.pieces()))
        await copy.drain()
        return count

    async def _receive(self) -> tuple[bytes, bytes]:
        with self._work.waiting_for_client():
            return await self._wire.receive()
