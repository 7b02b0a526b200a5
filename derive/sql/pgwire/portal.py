"""Prepared statements, and portals: a statement with arguments, whose rows may be fetched in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.recently_used import RecentlyUsed
from derive.sql.client_encodings import CLIENT
from derive.sql.outcome import Prepared, ReadyRows, Result, ResultColumn, Session
from derive.sql.pgwire import messages
from derive.sql.pgwire.messages import formats_for
from derive.sql.pgwire.values import Encoder, argument_of, encoder_of

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
    """Return the wire form of rows with some columns; an empty one for None.

    Raises:
        SqlError: the number of formats differs, a format is unknown, or there are too many columns.
    """
    if columns is None:
        return RowFormat((), (), messages.NO_DATA)
    if len(columns) > _MOST_COLUMNS:
        what = f"target lists can have at most {_MOST_COLUMNS} entries"
        raise SqlError("54011", what, hint="select fewer columns, or combine columns in a jsonb")
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
            SqlError: as in `shape_of`.
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
        result: result of the execution; None before it.
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
            SqlError: the number of arguments differs from that of the parameters, or an argument is invalid.
        """
        oids = statement.prepared.parameters
        if len(arguments) != len(oids):
            what = f"bind message supplies {len(arguments)} parameters, but prepared statement requires {len(oids)}"
            raise SqlError("08P01", what, hint="give one argument for each parameter of the statement")
        forms = formats_for(formats, len(arguments), "arguments")
        data = [argument_of(oid, form, raw) for oid, form, raw in zip(oids, forms, arguments, strict=True)]
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
            raise SqlError("55000", "a portal without rows cannot be run again", hint="bind the statement again")
        return self.result

    async def next_rows(self, most: int) -> Sequence[Row]:
        """Return more rows, at most `most` (0 for any number); none at the end."""
        while (rows := self.ready_rows(most)) is None:
            assert self._rows is not None
            try:
                self._batch, self._at = await anext(self._rows), 0
            except StopAsyncIteration:
                self._batch, self._at, self._rows = (), 0, None
        return rows

    def ready_rows(self, most: int) -> Sequence[Row] | None:
        """Return more rows, as `next_rows` does; None if the call would wait."""
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
    """Return the wire form of rows whose columns have changed: in the same formats, if their number is equal."""
    return shape_of(columns, shape.formats if len(shape.formats) == len(columns) else ())
