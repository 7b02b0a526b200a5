"""Bounds of a table's columns as conditions on its files and texts.

A deletion has the same text as its insertion, so a condition is true for all updates of a row or for none. The sum of
the remaining updates has all needed rows. Only readers of files import this module, because it needs PyArrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from derive.algebra.bounds import Bounds
from derive.relations.table_rows import TableRows
from derive.storage.segments.columns import typed_columns
from derive.storage.segments.reader import Condition
from derive.storage.table_types import AppendedRow, Table

_MOST_PARTS = 10
"""Maximum number of values for which texts are searched before they are parsed."""


class TableConditions:
    """Conditions on the typed columns of a table; bounds of other columns are ignored.

    Args:
        table: the table.
        rows: converter of its rows.
        bounds: bounds of its columns.
    """

    def __init__(self, table: Table, rows: TableRows, bounds: Bounds) -> None:
        typed = {column.pointer: column for column in typed_columns(table.spec)} if bounds else {}
        self._rows = rows
        self._bounds = {index: bound for index, bound in bounds.items() if table.columns[index].pointer in typed}
        self._typed = {index: typed[table.columns[index].pointer] for index in self._bounds}

    def of_files(self) -> list[Condition]:
        """Return the conditions on files."""
        conditions = []
        for index, bound in self._bounds.items():
            column, data = self._typed[index], bound.data
            told = None if data is None else [self._rows.value(index, one) for one in data if one is not None]
            ends: list[Any] = [bound.least, bound.most]
            conditions.append(Condition(column.name, None if told is None else pa.array(told, column.type), *ends))
        return conditions

    def within_texts(self) -> list[list[str]]:
        """Return lists of substrings: the text of every needed row contains a substring of each list.

        Other texts may, too.
        """
        return [
            [self._rows.part(index, datum) for datum in bound.data if datum is not None]
            for index, bound in self._bounds.items()
            if bound.data is not None and len(bound.data) <= _MOST_PARTS
        ]

    def matching(self, appended: Sequence[AppendedRow]) -> Sequence[AppendedRow]:
        """Return the updates of needed rows."""
        if not self._bounds:
            return appended
        rows = self._rows.rows([text for *_, text in appended])
        return [
            update
            for update, row in zip(appended, rows, strict=True)
            if all(bound.holds(row[index]) for index, bound in self._bounds.items())
        ]
