"""Values of expressions over single rows, without a query for each row."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import apsw

from derive.algebra.expression import Expression
from derive.algebra.rewrite import columns_read
from derive.algebra.types import Row
from derive.compute.sqlite import translated
from derive.functions.registry import register, sql_of


class _Connections(threading.local):
    """A connection for each thread, which evaluates."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        register(self.connection)


_CONNECTIONS = _Connections()


class RowValues:
    """A function from rows to the values of some expressions.

    >>> from derive.algebra.expression import Column
    >>> from derive.algebra.types import Type
    >>> RowValues([Column(1, Type.TEXT)])((1, "a"))
    ('a',)

    Args:
        expressions: expressions over the columns of rows, without parameters and subqueries.
        condition: condition of the rows that have values; None for all rows.
    """

    def __init__(self, expressions: Sequence[Expression], condition: Expression | None = None) -> None:
        conditions = () if condition is None else (condition,)
        read = set().union(*map(columns_read, (*expressions, *conditions)))
        self._read = sorted(read)
        places = {index: place for place, index in enumerate(self._read, start=1)}
        texts = [sql_of(part, lambda column: f"?{places[column.index]}") for part in (*expressions, *conditions)]
        where = f" WHERE {texts.pop()}" if conditions else ""
        self._select = f"SELECT {', '.join(texts)}{where}"

    def __call__(self, row: Row) -> Row | None:
        """Return the values for a row; None if the condition is not true.

        Raises:
            SqlError: an expression fails.
        """
        with translated():
            values = _CONNECTIONS.connection.execute(self._select, [row[index] for index in self._read]).fetchone()
        return None if values is None else tuple(values)
