"""COPY: rows of a query to a client, and rows of a client into a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from derive.algebra.expression import Literal
from derive.algebra.types import Datum, Row
from derive.functions.registry import evaluate
from derive.sql.copy_format import BinaryCopyIn, CopyIn, copy_out
from derive.sql.execution import query, subscribe
from derive.sql.execution.state import State
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import Copy, SelectStatement, Subscribe
from derive.sql.pg_types import oid_of
from derive.sql.planner.ddl import copied_table, indexes_of
from derive.sql.planner.dml import default_of
from derive.sql.planner.interfaces import NamedRelation
from derive.sql.planner.planned import check_rows, in_session
from derive.sql.preparation import Plan
from derive.sql.results import Result, ResultColumn


async def copy_to(state: State, plan: Plan, statement: Copy, arguments: Sequence[Datum]) -> Result:
    """Execute `COPY … TO STDOUT`."""
    columns = plan.columns or ()
    writer = copy_out(statement.format, columns)
    if isinstance(statement.source, Subscribe):
        assert plan.view is not None
        rows = await subscribe.updates(state, plan.view, statement.source)
    else:
        assert plan.query is not None
        as_of = statement.source.as_of if isinstance(statement.source, SelectStatement) else None
        rows = await query.read(state, state.bound(plan.query, arguments), as_of)
    is_prompt = isinstance(statement.source, Subscribe)
    return Result(lambda count: f"COPY {count}", columns, rows, copy_out=writer, is_prompt=is_prompt)


def copy_from(state: State, statement: Copy) -> Result:
    """Execute `COPY … FROM STDIN`."""
    assert isinstance(statement.source, QualifiedName)
    state.transaction.check_writable()
    state.coordinator.own()
    table = copied_table(statement.source, state.objects)
    indexes = indexes_of(table, statement.columns)
    copied = [table.columns[index] for index in indexes]
    columns = tuple(
        ResultColumn(column.name, column.type, oid_of(column.type, column.modifier), column.modifier)
        for column in copied
    )
    is_binary = statement.format.name == "binary"
    reader: CopyIn | BinaryCopyIn
    if is_binary:
        reader = BinaryCopyIn(table.name, columns)
    else:
        modifiers = [column.modifier for column in copied]
        reader = CopyIn(
            statement.format, table.name, [(column.name, column.type) for column in copied], modifiers=modifiers
        )
    complete = _completion(state, table, indexes)

    async def take(pieces: AsyncIterator[bytes]) -> int:
        rows: list[Row] = []
        async for piece in pieces:
            rows += complete(reader.feed(piece))
        rows += complete(reader.finish())
        state.transaction.write([(table.id, row, 1) for row in rows], table)
        return len(rows)

    return Result(lambda count: f"COPY {count}", columns, copy_in=take, is_binary=is_binary)


def _completion(state: State, table: NamedRelation, indexes: Sequence[int]) -> Callable[[Sequence[Row]], list[Row]]:
    """Return a function that completes copied rows to rows of the table, with defaults for the other columns."""
    width = len(table.columns)
    positions = {index: position for position, index in enumerate(indexes)}
    missing = [column for index, column in enumerate(table.columns) if index not in positions]
    defaults = [
        in_session(default_of(column, state.objects), state.transaction.begun, state.user.name) for column in missing
    ]
    behind = iter(range(len(indexes), width))
    order = [positions[index] if index in positions else next(behind) for index in range(width)]

    def completed(row: Row) -> Row:
        values = (*row, *(value.value if isinstance(value, Literal) else evaluate(value) for value in defaults))
        return tuple(values[position] for position in order)

    def complete(rows: Sequence[Row]) -> list[Row]:
        if order != list(range(len(indexes))):
            rows = list(map(completed, rows))
        check_rows(table, rows)
        return list(rows)

    return complete
