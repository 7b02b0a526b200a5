"""What columns of a table are in rows that are wanted, as its files and its texts tell it.

A row goes with the text with which it came. So its updates fulfil conditions all or not at all, wherever they are, and
what is left comes to the rows that are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from derive.algebra.bounds import Bounds
from derive.relations.tables.rows import TableRows
from derive.storage.segments.columns import typed_columns
from derive.storage.segments.condition import Condition
from derive.storage.table import AppendedRow, Table

_MOST_PARTS = 10
"""For more, texts are not looked into before they are parsed."""


class TableConditions:
    """Conditions on the columns of a table of which its files have typed ones; of others nothing is asked.

    Args:
        table: the table.
        rows: of it.
        bounds: what its columns are.
    """

    def __init__(self, table: Table, rows: TableRows, bounds: Bounds) -> None:
        typed = {column.pointer: column for column in typed_columns(table.spec)} if bounds else {}
        self._rows = rows
        self._bounds = {index: bound for index, bound in bounds.items() if table.columns[index].pointer in typed}
        self._typed = {index: typed[table.columns[index].pointer] for index in self._bounds}

    def of_files(self) -> list[Condition]:
        """As files tell it."""
        conditions = []
        for index, bound in self._bounds.items():
            column, data = self._typed[index], bound.data
            told = None if data is None else [self._rows.value(index, one) for one in data if one is not None]
            ends: list[Any] = [bound.least, bound.most]
            conditions.append(Condition(column.name, None if told is None else pa.array(told, column.type), *ends))
        return conditions

    def within_texts(self) -> list[list[str]]:
        """Parts of texts, of each of which one is within the text of every row that is wanted, and of some others."""
        return [
            [self._rows.part(index, datum) for datum in bound.data if datum is not None]
            for index, bound in self._bounds.items()
            if bound.data is not None and len(bound.data) <= _MOST_PARTS
        ]

    def wanted(self, appended: Sequence[AppendedRow]) -> Sequence[AppendedRow]:
        """Those of some updates whose rows are wanted."""
        if not self._bounds:
            return appended
        rows = self._rows.rows([text for *_, text in appended])
        return [
            update
            for update, row in zip(appended, rows, strict=True)
            if all(bound.holds(row[index]) for index, bound in self._bounds.items())
        ]
