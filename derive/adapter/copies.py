"""COPY: rows of a query to a client, and of a client into a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from derive.adapter import reading, subscribing
from derive.adapter.copying import CopyIn, copy_out
from derive.adapter.oids import OID_OF
from derive.adapter.outcome import Result, ResultColumn
from derive.adapter.parser.statement import Copy, SelectStatement, Subscribe
from derive.adapter.parser.syntax import QualifiedName
from derive.adapter.planner.definition import copied_table, indexes_of
from derive.adapter.planner.names import NamedRelation
from derive.adapter.planner.planned import bind
from derive.adapter.planner.write import check_rows
from derive.adapter.preparing import Plan
from derive.adapter.state import State
from derive.compute.algebra.types import Datum, Row


async def copy_to(state: State, plan: Plan, statement: Copy, arguments: Sequence[Datum]) -> Result:
    """`COPY … TO STDOUT`."""
    columns = plan.columns or ()
    form = copy_out(statement.format, [column.name for column in columns], [column.type for column in columns])
    if isinstance(statement.source, Subscribe):
        assert plan.view is not None
        rows = await subscribing.updates(state, plan.view, statement.source)
    else:
        assert plan.query is not None
        as_of = statement.source.as_of if isinstance(statement.source, SelectStatement) else None
        rows = await reading.read(state, bind(plan.query, arguments), as_of)
    is_prompt = isinstance(statement.source, Subscribe)
    return Result(lambda count: f"COPY {count}", columns, rows, copy_out=form, is_prompt=is_prompt)


def copy_from(state: State, statement: Copy) -> Result:
    """`COPY … FROM STDIN`."""
    assert isinstance(statement.source, QualifiedName)
    state.transaction.check_writable()
    state.coordinator.own()
    table = copied_table(statement.source, state.coordinator.objects)
    indexes = indexes_of(table, statement.columns)
    copied = [table.columns[index] for index in indexes]
    columns = tuple(ResultColumn(column.name, column.type, OID_OF[column.type]) for column in copied)
    reader = CopyIn(statement.format, table.name, [(column.name, column.type) for column in copied])

    async def take(pieces: AsyncIterator[bytes]) -> int:
        rows: list[Row] = []
        async for piece in pieces:
            rows += _completed(table, indexes, reader.feed(piece))
        rows += _completed(table, indexes, reader.finish())
        state.transaction.write([(table.id, row, 1) for row in rows])
        return len(rows)

    return Result(lambda count: f"COPY {count}", columns, copy_in=take)


def _completed(table: NamedRelation, indexes: Sequence[int], rows: Sequence[Row]) -> list[Row]:
    """Rows with NULL in the columns that are not copied."""
    width = len(table.columns)
    if tuple(indexes) != tuple(range(width)):
        positions = {index: position for position, index in enumerate(indexes)}
        order = [positions.get(index) for index in range(width)]
        rows = [tuple(None if position is None else row[position] for position in order) for row in rows]
    check_rows(table, rows)
    return list(rows)
