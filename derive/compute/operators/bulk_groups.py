"""The contribution of many rows to groups, computed by columns in Python.

SQLite sorts the rows by their keys, and calls a function of Python for each row and aggregate. By columns, many numbers
are added by one call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import localcontext
from itertools import compress, islice
from operator import add
from typing import Any

import apsw

from derive.algebra.types import Row
from derive.functions.aggregates.accumulator import Bulk, Numbers
from derive.functions.types.numbers import EXACT

_BATCH = 50_000
"""Maximum number of rows whose columns are in memory."""
MOST_GROUPS = 50_000
"""Maximum number of groups whose states are in memory."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of rows to the state of one aggregate.

    Attributes:
        arguments: the argument columns.
        condition: the column that is true for the rows that count; None if all rows count.
        bulk: computes the contribution.
    """

    arguments: tuple[int, ...]
    condition: int | None
    bulk: Bulk


class BulkGroups:
    """The contribution of rows to groups.

    Args:
        keys: number of keys, which are the first columns.
        contributions: the aggregates.
    """

    def __init__(self, keys: int, contributions: Sequence[Contribution]) -> None:
        self._keys = keys
        self._contributions = contributions
        read = [column for one in contributions for column in (*one.arguments, one.condition) if column is not None]
        self._read = list(dict.fromkeys(read))
        self._places = {column: place for place, column in enumerate(self._read)}

    def rows(self, connection: apsw.Connection, source: str) -> list[Row] | None:
        """Return for each group its keys, the number of its rows, and its states; None if there are too many groups.

        Args:
            connection: connection to the database.
            source: table of the rows and their counts.
        """
        columns = ", ".join(["w", *(f"c{index}" for index in (*range(self._keys), *self._read))])
        cursor = connection.execute(f"SELECT {columns} FROM {source}")
        known: dict[Row, list[Numbers]] = {}
        while batch := list(islice(cursor, _BATCH)):
            with localcontext(EXACT):
                self._add(known, batch)
            if len(known) > MOST_GROUPS:
                cursor.close(force=True)
                return None
        return [(*key, *self._data(numbers)) for key, numbers in known.items()]

    def _add(self, known: dict[Row, list[Numbers]], batch: Sequence[Row]) -> None:
        """Add the contribution of rows, whose first column is their count."""
        groups: defaultdict[Row, list[Row]] = defaultdict(list)
        for row in batch:
            groups[row[: 1 + self._keys]].append(row)
        for (weight, *keys), rows in groups.items():
            assert isinstance(weight, int)
            key, numbers = tuple(keys), self._numbers(rows, weight)
            before = known.get(key)
            known[key] = numbers if before is None else list(map(_added, before, numbers))

    def _numbers(self, rows: Sequence[Row], weight: int) -> list[Numbers]:
        """Return the number of rows, and the contribution to each state, of rows of one group with one count."""
        columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True))[1 + self._keys :]
        numbers = [(len(rows),), *(self._numbers_of(one, columns, len(rows)) for one in self._contributions)]
        return numbers if weight == 1 else [tuple(weight * number for number in one) for one in numbers]

    def _numbers_of(self, one: Contribution, columns: Sequence[Sequence[Any]], rows: int) -> Numbers:
        arguments = [columns[self._places[index]] for index in one.arguments]
        if one.condition is not None:
            chosen = columns[self._places[one.condition]]
            arguments = [tuple(compress(column, chosen)) for column in arguments]
            rows = sum(map(bool, chosen))
        return one.bulk.numbers(arguments, rows)

    def _data(self, numbers: Sequence[Numbers]) -> Iterator[Any]:
        yield numbers[0][0]
        for one, state in zip(self._contributions, numbers[1:], strict=True):
            yield from one.bulk.data(state)


def _added(left: Numbers, right: Numbers) -> Numbers:
    return tuple(map(add, left, right))
