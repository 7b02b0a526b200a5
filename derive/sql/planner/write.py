"""What a statement writes: the rows that go and come, as a query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.errors import SqlError
from derive.sql.planner.names import NamedRelation
from derive.sql.planner.planned import PlannedColumn, PlannedQuery


class WriteKind(Enum):
    """What is done to a table."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """The rows that go and come, each as often as it does.

    Attributes:
        kind: of the statement.
        table: that is written.
        query: its columns are those of a row that goes (of UPDATE and DELETE), of one that comes (of INSERT and
            UPDATE), and what is returned.
        returning: columns of the statement's result; None if it has none.
        reads: what the query reads.
    """

    kind: WriteKind
    table: NamedRelation
    query: PlannedQuery
    returning: tuple[PlannedColumn, ...] | None
    reads: frozenset[GlobalId]

    def parts(self, row: Row) -> tuple[Row | None, Row | None, Row]:
        """Of a row of the query, the row that goes, the one that comes, and what is returned."""
        width = len(self.table.columns)
        if self.kind is WriteKind.UPDATE:
            return row[:width], row[width : 2 * width], row[2 * width :]
        if self.kind is WriteKind.DELETE:
            return row[:width], None, row[width:]
        return None, row[:width], row[width:]


def check_rows(table: NamedRelation, rows: Iterable[Row]) -> None:
    """Rows that come must have values in all columns that are NOT NULL.

    Raises:
        SqlError: 23502, one has not.
    """
    required = [index for index, column in enumerate(table.columns) if not column.is_nullable]
    for row in rows if required else ():
        for index in required:
            if row[index] is None:
                column = f'column "{table.columns[index].name}" of relation "{table.name}"'
                raise SqlError("23502", f"null value in {column} violates not-null constraint")
