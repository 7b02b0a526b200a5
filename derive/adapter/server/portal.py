"""A statement with its arguments, under way: its rows may be asked for in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from derive.adapter.outcome import Prepared, Result, Session
from derive.adapter.server.requests import formats_for
from derive.adapter.server.values import Encoder, argument_of, encoder_of
from derive.compute.algebra.types import Datum, Row
from derive.errors import SqlError

_ROWS_AT_ONCE = 500
"""Rows that become bytes before anything else is looked at."""


class Portal:
    """A statement that is, or is about to be, carried out.

    Attributes:
        prepared: the statement that is carried out.
        result_formats: of each column.
        result: None before it is carried out.
        is_done: whether all its rows were given.
    """

    def __init__(self, prepared: Prepared, arguments: Sequence[Datum], formats: Sequence[int]) -> None:
        self.prepared = prepared
        self._arguments = tuple(arguments)
        columns = prepared.columns
        self.result_formats = formats_for(formats, len(columns), "result columns") if columns is not None else ()
        self.result: Result | None = None
        self.is_done = False
        self._rows: AsyncIterator[Sequence[Row]] | None = None
        self._batch: Sequence[Row] = ()
        self._at = 0

    @staticmethod
    def of_bytes(
        prepared: Prepared, formats: Sequence[int], arguments: Sequence[bytes | None], result_formats: Sequence[int]
    ) -> Portal:
        """A portal whose arguments are as a client has sent them.

        Raises:
            SqlError: their number is not that of the parameters, or they are no values of their types.
        """
        oids = prepared.parameters
        if len(arguments) != len(oids):
            what = f"bind message supplies {len(arguments)} parameters, but prepared statement requires {len(oids)}"
            raise SqlError("08P01", what, hint="a statement takes an argument for each of its parameters")
        forms = formats_for(formats, len(arguments), "arguments")
        data = [argument_of(oid, form, raw) for oid, form, raw in zip(oids, forms, arguments, strict=True)]
        return Portal(prepared, data, result_formats)

    async def begin(self, session: Session) -> Result:
        """Have it carried out, if it is not under way already.

        Raises:
            SqlError: it cannot be, or it was and has no more to give.
        """
        if self.result is None:
            self.result = await session.execute(self.prepared, self._arguments)
            self._rows = self.result.rows
        elif self.result.columns is None:
            raise SqlError("55000", "a portal without rows cannot be run again", hint="bind the statement again")
        return self.result

    def encoders(self) -> list[Encoder]:
        """What makes bytes of its data."""
        columns = self.result.columns if self.result else None
        if columns is None:
            return []
        formats = self.result_formats if len(self.result_formats) == len(columns) else (0,) * len(columns)
        return [encoder_of(column, form) for column, form in zip(columns, formats, strict=True)]

    async def next_rows(self, most: int) -> Sequence[Row]:
        """Some more rows, at most so many (0 for any number); none at their end."""
        while self._at >= len(self._batch):
            if self._rows is None:
                self.is_done = True
                return ()
            try:
                self._batch, self._at = await anext(self._rows), 0
            except StopAsyncIteration:
                self._batch, self._at, self._rows = (), 0, None
        begin = self._at
        count = min(most, _ROWS_AT_ONCE) if most else _ROWS_AT_ONCE
        self._at = min(len(self._batch), begin + count)
        return self._batch[begin : self._at]

    @property
    def has_batch_left(self) -> bool:
        """Whether rows are there without waiting."""
        return self._at < len(self._batch)

    async def close(self) -> None:
        """Its rows are not asked for any more."""
        rows, self._rows, self._batch, self.is_done = self._rows, None, (), True
        close = getattr(rows, "aclose", None)
        if close:
            await close()
