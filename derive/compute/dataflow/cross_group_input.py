"""A dataflow as the input of another dataflow group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import apsw

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row, Type
from derive.compute.dataflow.database import folder_of, open_reader
from derive.compute.dataflow.dataflow_group import DataflowGroup
from derive.compute.dataflow.input import Update
from derive.compute.dataflow.peek import history_of
from derive.compute.operators.arrangement import copies, rows_as_of
from derive.compute.operators.operator import weighted

_BATCH = 10_000


class ArrangedInput:
    """The rows of a dataflow at one time, in an instance of another process.

    Attributes:
        types: types of its columns.
        since: the time.
        has_more: False: there are no later updates.
    """

    has_more = False

    def __init__(self, reader: apsw.Connection, number: int, types: tuple[Type, ...], since: int) -> None:
        """Describe the rows.

        Args:
            reader: connection that reads the instance's database.
            number: number of the operator that has the rows.
            types: types of its columns.
            since: the time, which must not be compacted.
        """
        self.types = types
        self.since = since
        self._reader = reader
        self._number = number

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `since`."""
        assert as_of == self.since
        return _rows_at(self._reader, self._number, self.types, as_of)

    def poll(self) -> tuple[int, list[Update]]:
        """Return no updates: the instance itself reads them."""
        return self.since + 1, []

    def close(self) -> None:
        """Close the database."""
        self._reader.close()


class ChainedInput:
    """The rows of a dataflow from a time on, which must not be compacted.

    Attributes:
        upstream: identifier of the dataflow.
        types: types of its columns.
        since: the time.
        keeps: False: nothing of the snapshot is stored.
    """

    keeps = False

    def __init__(
        self, connection: apsw.Connection, upstream: GlobalId, group_of: Callable[[GlobalId], DataflowGroup], since: int
    ) -> None:
        """Describe the input.

        Args:
            connection: writing connection of the database of both.
            upstream: identifier of the dataflow.
            group_of: returns the dataflow's group.
            since: the time.
        """
        self.upstream = upstream
        self.since = since
        self._connection = connection
        self._group_of = group_of
        self._operator = group_of(upstream).roots[upstream]
        self.types: tuple[Type, ...] = self._operator.plan.types
        self._frontier = since + 1

    def count(self, as_of: int) -> int:
        """Return an approximate number of rows."""
        count = self._connection.execute(f"SELECT ifnull(max(rowid), 0) FROM a{self._operator.number}").get
        return int(count)

    def opener(self, as_of: int, required: Collection[int] | None, place: Path) -> Callable[[], ArrangedInput]:
        """Return a function that opens the rows at a time in another process."""
        return partial(_opened, folder_of(self._connection), self._operator.number, self.types, as_of)

    def adopt(self, as_of: int, place: Path) -> None:
        """Continue from a time."""
        self.since = as_of
        self._frontier = as_of + 1

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `since`."""
        return _rows_at(self._connection, self._operator.number, self.types, self.since)

    @property
    def has_more(self) -> bool:
        """Return whether the other group has advanced since the last poll."""
        return self._group_of(self.upstream).upper > self._frontier

    def poll(self) -> tuple[int, list[Update]]:
        """Return the frontier and the updates since the last poll."""
        begin, self._frontier = self._frontier, self._group_of(self.upstream).upper
        if begin == self._frontier:
            return self._frontier, []
        history = history_of(self._operator.number, self._operator.width)
        rows = self._connection.execute(history, {"begin": begin, "end": self._frontier}).fetchall()
        return self._frontier, [(_time(row), row[1 : 1 + len(self.types)], diff) for row, diff in weighted(rows)]

    def close(self) -> None:
        """Do nothing: callers hold the resources."""


def _opened(folder: Path, number: int, types: tuple[Type, ...], since: int) -> ArrangedInput:
    return ArrangedInput(open_reader(folder), number, types, since)


def _rows_at(connection: apsw.Connection, number: int, types: tuple[Type, ...], time: int) -> Iterator[list[Row]]:
    """Yield the rows that an operator had at a time, in batches."""
    width = len(types) or 1
    cursor = connection.execute(
        f"SELECT * FROM {copies(rows_as_of(f'a{number}', f'h{number}', width, str(time)), width)}"
    )
    while batch := [row[: len(types)] for row in islice(cursor, _BATCH)]:
        yield batch


def _time(row: Row) -> int:
    time = row[0]
    assert isinstance(time, int)
    return time
