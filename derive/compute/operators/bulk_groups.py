"""The contribution of many rows to groups, computed by columns in Python.

SQLite sorts the rows by their keys, and calls a function of Python for each row and aggregate. By columns, many numbers
are added by one call. The rows may also be those of a join that does not store its rows: then the arguments of its
arithmetic are read, and the arithmetic is done by columns, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from itertools import compress, islice
from operator import add
from typing import Any, TypeAlias

import apsw

from derive.algebra.expression import Column, Expression
from derive.algebra.types import Row, Type
from derive.functions.aggregates.accumulator import Bulk, Numbers
from derive.functions.scalar.numeric_program import ColumnProgram, column_program, common_numbers
from derive.functions.types.numbers import EXACT, decimal_of

_BATCH = 50_000
"""Maximum number of rows whose columns are in memory."""
MOST_GROUPS = 50_000
"""Maximum number of groups whose states are in memory."""

_FIRST, LEAST_ROWS = 4_000, 6
"""Number of rows read first, and minimum number of rows of their groups, on average, for which columns are faster."""

Select: TypeAlias = Callable[[Sequence[Expression]], str]
"""A function that returns SQL of the values of expressions over the rows of a join, and of the counts of the rows."""
_Numbers: TypeAlias = dict[Row, list[Numbers]]


class _Uncommon(Exception):
    """Rows for which SQL must compute the groups."""


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


class _Reading:
    """The columns of a SELECT, from which the columns that aggregates read are computed.

    Args:
        columns: expressions of the columns that aggregates read, by index.
    """

    def __init__(self, columns: Mapping[int, Expression]) -> None:
        self._columns = columns
        self._programs: dict[int, ColumnProgram] = {}
        places: dict[Expression, int] = {}
        for index, expression in columns.items():
            program = column_program(expression)
            if program is not None:
                self._programs[index] = program
            for part in (expression,) if program is None else program.arguments:
                places.setdefault(part, len(places))
        self.selected: Sequence[Expression] = tuple(places)
        self._places = places

    def columns(self, data: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the columns that aggregates read, with numerics as decimals, for the data of `selected`.

        Raises:
            _Uncommon: the arguments of a program are not common numbers.
        """
        common: dict[Expression, Sequence[Any]] = {}
        for part in (part for program in self._programs.values() for part in program.arguments):
            if part not in common:
                numbers = common_numbers(data[self._places[part]])
                if numbers is None:
                    raise _Uncommon
                common[part] = numbers
        return [
            self._programs[index].numbers([common[part] for part in self._programs[index].arguments])
            if index in self._programs
            else _values(expression, data[self._places[expression]])
            for index, expression in self._columns.items()
        ]


def _values(expression: Expression, data: Sequence[Any]) -> Sequence[Any]:
    if expression.type is not Type.NUMERIC:
        return data
    known = {datum: None if datum is None else decimal_of(datum) for datum in set(data)}
    return list(map(known.__getitem__, data))


class BulkGroups:
    """The contribution of rows to groups.

    Args:
        types: types of the columns of the rows.
        keys: number of keys, which are the first columns.
        contributions: the aggregates.
    """

    def __init__(self, types: Sequence[Type], keys: int, contributions: Sequence[Contribution]) -> None:
        self._types, self._keys, self._contributions = types, keys, contributions
        read = [column for one in contributions for column in (*one.arguments, one.condition) if column is not None]
        self._read = list(dict.fromkeys(read))

    def rows(self, connection: apsw.Connection, source: str) -> list[Row] | None:
        """Return for each group its keys, the number of its rows, and its states; None if SQL must compute them.

        Args:
            connection: connection to the database.
            source: table of the rows and their counts.
        """
        reading = _Reading({index: Column(index, self._types[index]) for index in self._read})
        columns = ", ".join([*(f"c{index}" for index in (*range(self._keys), *self._read)), "w"])
        return self._grouped(reading, connection.execute(f"SELECT {columns} FROM {source}"))

    def rows_of_join(
        self, connection: apsw.Connection, outputs: Sequence[Expression], select: Select
    ) -> list[Row] | None:
        """Return for each group the values that `rows` returns, for the rows of a join that does not store its rows.

        Args:
            connection: connection to the database.
            outputs: expressions of the columns of the rows.
            select: returns SQL of other expressions over the same rows.

        Raises:
            SqlError: an expression fails.
        """
        reading = _Reading({index: outputs[index] for index in self._read})
        return self._grouped(reading, connection.execute(select([*outputs[: self._keys], *reading.selected])))

    def _grouped(self, reading: _Reading, cursor: apsw.Cursor) -> list[Row] | None:
        known: _Numbers = {}
        try:
            while batch := list(islice(cursor, _BATCH if known else min(_BATCH, _FIRST))):
                with localcontext(EXACT):
                    self._add(known, batch, reading)
                if len(known) > MOST_GROUPS:
                    raise _Uncommon
        except _Uncommon:
            cursor.close(force=True)
            return None
        return [(*key, *self._data(numbers)) for key, numbers in known.items()]

    def _add(self, known: _Numbers, batch: Sequence[Row], reading: _Reading) -> None:
        """Add the contribution of rows, whose last column is their count."""
        *data, weights = zip(*batch, strict=True)
        columns = reading.columns(data[self._keys :])
        groups: defaultdict[Row, list[tuple[Any, ...]]] = defaultdict(list)
        for key, values in zip(zip(weights, *data[: self._keys], strict=True), zip(*columns, strict=True), strict=True):
            groups[key].append(values)
        if len(groups) * LEAST_ROWS > len(batch) and not known:
            raise _Uncommon
        for (weight, *keys), rows in groups.items():
            own = dict(zip(self._read, zip(*rows, strict=True), strict=True))
            numbers = [(len(rows),), *(_numbers_of(one, own, len(rows)) for one in self._contributions)]
            if weight != 1:
                numbers = [tuple(weight * number for number in one) for one in numbers]
            key = tuple(keys)
            before = known.get(key)
            known[key] = numbers if before is None else list(map(_added, before, numbers))

    def _data(self, numbers: Sequence[Numbers]) -> Iterator[Any]:
        yield numbers[0][0]
        for one, state in zip(self._contributions, numbers[1:], strict=True):
            yield from one.bulk.data(state)


def _numbers_of(one: Contribution, columns: Mapping[int, Sequence[Any]], rows: int) -> Numbers:
    arguments = [columns[index] for index in one.arguments]
    if one.condition is not None:
        chosen = columns[one.condition]
        arguments = [tuple(compress(column, chosen)) for column in arguments]
        rows = sum(map(bool, chosen))
    return one.bulk.numbers(arguments, rows)


def _added(left: Numbers, right: Numbers) -> Numbers:
    return tuple(map(add, left, right))
