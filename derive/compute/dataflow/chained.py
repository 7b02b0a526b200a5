"""A dataflow as the input of another cohort."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Row, Type
from derive.compute.dataflow.arrangement import copies, rows_as_of
from derive.compute.dataflow.cohort import Cohort, Update
from derive.compute.dataflow.operator import weighted
from derive.compute.dataflow.peek import history_of

_BATCH = 10_000


class ChainedInput:
    """The rows of a dataflow from a time on, which must not be forgotten.

    Attributes:
        upstream: the dataflow.
        types: of its columns.
        since: the time.
    """

    def __init__(self, connection: apsw.Connection, upstream: GlobalId, cohort: Cohort, since: int) -> None:
        """What is read.

        Args:
            connection: that writes to the database of both.
            upstream: the dataflow.
            cohort: in which it is.
            since: the time.
        """
        self.upstream = upstream
        self.since = since
        self._connection = connection
        self._cohort = cohort
        self._operator = cohort.roots[upstream]
        self.types: tuple[Type, ...] = self._operator.plan.types
        self._frontier = since + 1

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at `since`."""
        number, width = self._operator.number, self._operator.width
        rows = copies(rows_as_of(f"a{number}", f"h{number}", width, str(as_of)), width)
        cursor = self._connection.execute(f"SELECT * FROM {rows}")
        batch = []
        for row in cursor:
            batch.append(row[: len(self.types)])
            if len(batch) == _BATCH:
                yield batch
                batch = []
        yield batch

    def poll(self) -> tuple[int, list[Update]]:
        """What has changed."""
        begin, self._frontier = self._frontier, self._cohort.upper
        if begin == self._frontier:
            return self._frontier, []
        history = history_of(self._operator.number, self._operator.width)
        rows = self._connection.execute(history, {"begin": begin, "end": self._frontier}).fetchall()
        return self._frontier, [(_time(row), row[1 : 1 + len(self.types)], diff) for row, diff in weighted(rows)]

    def close(self) -> None:
        """Nothing is held but by those who ask for it."""


def _time(row: Row) -> int:
    time = row[0]
    assert isinstance(time, int)
    return time
