"""The values of groups, in order, for aggregates that depend on more than sums: the least, distinct ones, lists."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from derive.compute.algebra.expression import Column
from derive.compute.algebra.relation import Aggregate
from derive.compute.algebra.types import Type
from derive.compute.dataflow.arrangement import names_of
from derive.compute.lowering.block import order_term
from derive.compute.scalar.registry import aggregate_sql

_OF_BYTES = {Type.BYTEA, Type.NUMERIC, Type.INTERVAL}
_EXTREMES = {"min": "", "max": " DESC"}


def same(column: str, kind: Type) -> str:
    """SQL of a column whose NULLs are equal: a value that none of its type is stands for them."""
    return f"ifnull({column}, '')" if kind in _OF_BYTES else f"ifnull({column}, x'')"


class Multiset:
    """For each group, the arguments of one aggregate, and how often they are there.

    The table's columns are the keys `k0`, … of groups, values `x0`, … and `w`.
    """

    def __init__(self, connection: apsw.Connection, table: str, kinds: Sequence[Type], aggregate: Aggregate) -> None:
        """What a group is told apart by, and what is asked of it.

        Args:
            connection: that writes.
            table: the name of the table.
            kinds: types of the keys, which are the first columns of changes.
            aggregate: about changes.
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
        """Make the table."""
        columns = ", ".join([*self._keys, *self._values, "w INTEGER NOT NULL"])
        self._connection.execute(f"CREATE TABLE {self._table}({columns})")
        self._connection.execute(f"CREATE UNIQUE INDEX {self._table}_row ON {self._table}({self._target()})")
        self._connection.execute(f"CREATE INDEX {self._table}_none ON {self._table}(w) WHERE w = 0")

    def drop(self) -> None:
        """Remove the table."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self._table}")

    def merge(self, changes: str) -> None:
        """Take in changes.

        Args:
            changes: the table that has them.
        """
        columns = names_of([*range(len(self._keys)), *(column.index for column in self._read)])
        conditions = []
        if self._is_extreme:
            conditions.append(f"c{self._read[0].index} IS NOT NULL")
        if isinstance(self._aggregate.condition, Column):
            conditions.append(f"c{self._aggregate.condition.index}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._connection.execute(
            f"INSERT INTO {self._table} SELECT {columns}, sum(w) FROM {changes}{where} GROUP BY {columns}"
            f" HAVING sum(w) <> 0 ON CONFLICT({self._target()}) DO UPDATE SET w = {self._table}.w + excluded.w"
        )
        self._connection.execute(f"DELETE FROM {self._table} WHERE w = 0")

    def value(self) -> str:
        """SQL of the aggregate, of the group whose keys are `g.k0`, …."""
        pairs = zip(self._keys, self._kinds, strict=True)
        match = " AND ".join(f"{same(f'm.{key}', kind)} = {same(f'g.{key}', kind)}" for key, kind in pairs) or "1"
        if self._is_extreme:
            first = same("m.x0", self._read[0].type)
            order = f"{first}{_EXTREMES[self._aggregate.function]}"
            return f"(SELECT m.x0 FROM {self._table} m WHERE {match} ORDER BY {order} LIMIT 1)"
        values = ", ".join(self._values)
        arguments = [f"e.{self._name(part)}" for part in self._aggregate.arguments if isinstance(part, Column)]
        terms = [
            order_term(part, f"e.{self._name(part.expression)}")
            for part in self._aggregate.order
            if isinstance(part.expression, Column)
        ]
        form = aggregate_sql(self._aggregate, arguments, None, terms)
        rows = f"SELECT {values}, m.w FROM {self._table} m WHERE {match}"
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

    def _target(self) -> str:
        kinds = [*self._kinds, *(column.type for column in self._read)]
        return ", ".join(same(name, kind) for name, kind in zip([*self._keys, *self._values], kinds, strict=True))
