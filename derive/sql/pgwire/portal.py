"""Prepared statements, portals, and the delivery of their rows to the client at the speed of the client."""

from __future__ import annotations

import asyncio
import codecs
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.functions.types.encodings import CLIENT
from derive.recently_used import RecentlyUsed
from derive.sql.pgwire import messages
from derive.sql.pgwire.messages import Body, Wire, formats_for
from derive.sql.pgwire.values import Encoder, argument_of, data_rows, encoder_of
from derive.sql.pgwire.work import Work
from derive.sql.results import Prepared, ReadyRows, Result, ResultColumn, Session


def copy_data(lines: Sequence[bytes]) -> bytes:
    """Return each line as a CopyData message."""
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
        SqlError: the client's encoding is not UTF-8 (0A000).
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
        begun = time.perf_counter()
        tag = await self._carry_out(portal, most, is_described=is_described)
        self._work.statistics.seconds.observe(time.perf_counter() - begun)
        return tag

    async def _carry_out(self, portal: Portal, most: int, *, is_described: bool) -> str | None:
        result = await portal.begin(self._session)
        for notice in result.notices:
            self._wire.send(messages.notice(notice))
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
            await self._let_read()  # the first row may arrive late
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


_MOST_SHAPES = 16
_MOST_COLUMNS = 1664
"""Greatest number of result columns, as in PostgreSQL; the protocol allows 32,767."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The wire form of rows.

    Attributes:
        formats: format of each column.
        encoders: encoder of each column.
        description: RowDescription message.
    """

    formats: tuple[int, ...]
    encoders: tuple[Encoder, ...]
    description: bytes


def shape_of(columns: Sequence[ResultColumn] | None, formats: Sequence[int]) -> RowFormat:
    """Return the wire form of rows with some columns; for None, an empty form.

    Raises:
        SqlError: the number of formats differs, a format is unknown, or there are too many columns.
    """
    if columns is None:
        return RowFormat((), (), messages.NO_DATA)
    if len(columns) > _MOST_COLUMNS:
        what = f"target lists can have at most {_MOST_COLUMNS} entries"
        raise SqlError("54011", what, hint="Select fewer columns, or combine columns in a jsonb.")
    forms = formats_for(formats, len(columns), "result columns")
    encoders = tuple(encoder_of(column, form) for column, form in zip(columns, forms, strict=True))
    return RowFormat(forms, encoders, messages.row_description(columns, forms))


class PreparedStatement:
    """A prepared statement with cached wire forms.

    Attributes:
        prepared: the statement of the session.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._shapes: RecentlyUsed[tuple[str, tuple[int, ...]], RowFormat] = RecentlyUsed(_MOST_SHAPES)

    def shape(self, formats: tuple[int, ...]) -> RowFormat:
        """Return the wire form of its rows, in the formats of `Bind`.

        Raises:
            SqlError: as for `shape_of`.
        """
        key = CLIENT.get().name, formats
        return self._shapes.get(key) or self._shapes.put(key, shape_of(self.prepared.columns, formats))


_ROWS_AT_ONCE = 500
"""Number of rows that are encoded before other tasks can run."""


class Portal:
    """A portal: a statement with its arguments.

    Attributes:
        prepared: the statement.
        shape: wire form of its rows.
        result: result of the execution; None before the execution.
        is_done: whether all rows were returned.
    """

    def __init__(self, statement: PreparedStatement, arguments: Sequence[Datum], formats: tuple[int, ...]) -> None:
        self.prepared = statement.prepared
        self.shape = statement.shape(formats)
        self._arguments = tuple(arguments)
        self.result: Result | None = None
        self.is_done = False
        self._rows: AsyncIterator[Sequence[Row]] | None = None
        self._batch: Sequence[Row] = ()
        self._at = 0

    @staticmethod
    def of_bytes(
        statement: PreparedStatement,
        formats: Sequence[int],
        arguments: Sequence[bytes | None],
        result_formats: tuple[int, ...],
    ) -> Portal:
        """Return a portal with arguments in the form of the client.

        Raises:
            SqlError: the number of arguments differs from the number of parameters, or an argument is invalid.
        """
        oids = statement.prepared.parameters
        if len(arguments) != len(oids):
            what = f"bind message supplies {len(arguments)} parameters, but prepared statement requires {len(oids)}"
            raise SqlError("08P01", what, hint="Give one argument for each parameter of the statement.")
        forms = formats_for(formats, len(arguments), "arguments")
        zone = statement.prepared.zone
        data = [argument_of(oid, form, raw, zone) for oid, form, raw in zip(oids, forms, arguments, strict=True)]
        return Portal(statement, data, result_formats)

    async def begin(self, session: Session) -> Result:
        """Execute the statement, if it is not executed yet.

        Raises:
            SqlError: the execution fails, or a portal without rows was executed before.
        """
        if self.result is None:
            self.result = result = await session.execute(self.prepared, self._arguments)
            if result.columns is not None and result.columns != self.prepared.columns:
                self.shape = _fitting(result.columns, self.shape)
            if isinstance(result.rows, ReadyRows):
                self._batch = result.rows.take()
            else:
                self._rows = result.rows
        elif self.result.columns is None:
            raise SqlError("55000", "a portal without rows cannot be run again", hint="Bind the statement again.")
        return self.result

    def look_up(self, session: Session) -> Sequence[Row] | None:
        """Return the rows of a point lookup on the fast path, as `Session.look_up` does."""
        return session.look_up(self.prepared, self._arguments)

    async def next_rows(self, most: int) -> Sequence[Row]:
        """Return more rows, at most `most` (0 for any number); no rows at the end."""
        while (rows := self.ready_rows(most)) is None:
            assert self._rows is not None
            try:
                self._batch, self._at = await anext(self._rows), 0
            except StopAsyncIteration:
                self._batch, self._at, self._rows = (), 0, None
        return rows

    def ready_rows(self, most: int) -> Sequence[Row] | None:
        """Return more rows like `next_rows`; None if the call would wait."""
        begin = self._at
        if begin >= len(self._batch):
            if self._rows is not None:
                return None
            self.is_done = True
            return ()
        count = min(most, _ROWS_AT_ONCE) if most else _ROWS_AT_ONCE
        self._at = min(len(self._batch), begin + count)
        return self._batch[begin : self._at]

    @property
    def has_batch_left(self) -> bool:
        """Return whether rows are ready."""
        return self._at < len(self._batch)

    @property
    def is_under_way(self) -> bool:
        """Return whether the portal has an open iterator that must be closed."""
        return self._rows is not None

    async def close(self) -> None:
        """Close the portal."""
        rows, self._rows, self._batch, self.is_done = self._rows, None, (), True
        close = getattr(rows, "aclose", None)
        if close:
            await close()


def _fitting(columns: Sequence[ResultColumn], shape: RowFormat) -> RowFormat:
    """Return the wire form of rows after a change of columns, in the same formats for the same number of columns."""
    return shape_of(columns, shape.formats if len(shape.formats) == len(columns) else ())
