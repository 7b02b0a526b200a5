"""The ordered values of groups, for aggregates that depend on more than sums: minimum, distinct values, lists."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from derive.algebra.expression import Column
from derive.algebra.relation import Aggregate
from derive.algebra.types import OF_BYTES, Type
from derive.compute.sqlite.block import order_term
from derive.functions.registry import aggregate_sql

_EXTREMES = {"min": "", "max": " DESC"}


def stand_in(kind: Type) -> str:
    """Return SQL of a replacement of NULL that equals no value of the type, where NULLs must be equal."""
    return "''" if kind in OF_BYTES else "x''"


def same(column: str, kind: Type) -> str:
    """Return SQL of a column whose NULLs are equal."""
    return f"ifnull({column}, {stand_in(kind)})"


class Multiset:
    """For each group, the arguments of one aggregate, with their counts.

    The table's columns are the keys `k0`, … of groups, values `x0`, … and `w`; none is NULL.
    """

    def __init__(self, connection: apsw.Connection, table: str, kinds: Sequence[Type], aggregate: Aggregate) -> None:
        """Describe the group key and the aggregate.

        Args:
            connection: writing connection.
            table: name of the table.
            kinds: types of the keys, which are the first columns of changes.
            aggregate: the aggregate, over columns of changes.
        """
        self._connection = connection
        self._table = table
        self._kinds = kinds
        self._aggregate = aggregate
        order = [part.expression for part in aggregate.order]
        read = [part for part in (*aggregate.arguments, *order) if isinstance(part, Column)]
        self._read = list(dict.fromkeys(read))
        self._keys = [f"k{index}" for index in range(len(kinds))]
        self._values = [f"x{index}" for index in range(len(self._read))]

    def create(self) -> None:
        """Create the table."""
        key = ", ".join([*self._keys, *self._values])
        self._connection.execute(
            f"CREATE TABLE {self._table}({key}, w INTEGER NOT NULL, PRIMARY KEY ({key})) WITHOUT ROWID"
        )
        self._connection.execute(f"CREATE INDEX {self._table}_none ON {self._table}(w) WHERE w = 0")

    def drop(self) -> None:
        """Drop the table."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self._table}")

    def merge(self, changes: str) -> None:
        """Apply changes.

        Args:
            changes: table of the changes.
        """
        read = [*enumerate(self._kinds), *((column.index, column.type) for column in self._read)]
        values = ", ".join(same(f"c{index}", kind) for index, kind in read)
        grouping = ", ".join(str(position + 1) for position in range(len(read)))
        conditions = []
        if self._is_extreme:
            conditions.append(f"c{self._read[0].index} IS NOT NULL")
        if isinstance(self._aggregate.condition, Column):
            conditions.append(f"c{self._aggregate.condition.index}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._connection.execute(
            f"INSERT INTO {self._table} SELECT {values}, sum(w) FROM {changes}{where} GROUP BY {grouping}"
            f" HAVING sum(w) <> 0 ON CONFLICT DO UPDATE SET w = w + excluded.w"
        )
        self._connection.execute(f"DELETE FROM {self._table} WHERE w = 0")

    def value(self) -> str:
        """Return SQL of the aggregate, for the group whose keys are `g.k0`, …."""
        pairs = zip(self._keys, self._kinds, strict=True)
        match = " AND ".join(f"m.{key} = {same(f'g.{key}', kind)}" for key, kind in pairs) or "1"
        if self._is_extreme:
            order = f"m.x0{_EXTREMES[self._aggregate.function]}"
            return f"(SELECT m.x0 FROM {self._table} m WHERE {match} ORDER BY {order} LIMIT 1)"
        values = ", ".join(self._values)
        arguments = [f"e.{self._name(part)}" for part in self._aggregate.arguments if isinstance(part, Column)]
        terms = [
            order_term(part, f"e.{self._name(part.expression)}")
            for part in self._aggregate.order
            if isinstance(part.expression, Column)
        ]
        form = aggregate_sql(self._aggregate, arguments, None, terms)
        known = ", ".join(
            f"nullif(m.{name}, {stand_in(column.type)}) AS {name}"
            for name, column in zip(self._values, self._read, strict=True)
        )
        rows = f"SELECT {known}, m.w FROM {self._table} m WHERE {match}"
        if self._aggregate.is_distinct:
            return f"(SELECT {form} FROM ({rows}) e)"
        return (
            f"(WITH RECURSIVE e({values}, w) AS ({rows} UNION ALL SELECT {values}, w - 1 FROM e WHERE w > 1)"
            f" SELECT {form} FROM e)"
        )

    @property
    def _is_extreme(self) -> bool:
        return self._aggregate.function in _EXTREMES

    def _name(self, column: Column) -> str:
        return self._values[self._read.index(column)]
