"""INSERT, UPDATE, DELETE and TRUNCATE; COPY, for rows of a query to a client, and of a client into a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeAlias

from derive.algebra.expression import Literal
from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.functions.types.pg_type import oid_of
from derive.sql.copy_format import BinaryCopyIn, CopyIn, copy_out
from derive.sql.execution import query, subscribe
from derive.sql.execution.state import State
from derive.sql.execution.write_rows import bound_write, check_keys, completed, written_rows
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import Copy, SelectStatement, Subscribe
from derive.sql.planner.ddl import copied_columns, copied_table
from derive.sql.planner.dml import default_of, plan_completion
from derive.sql.planner.interfaces import NamedRelation
from derive.sql.planner.planned import PlannedWrite, WriteKind, Written, in_session
from derive.sql.preparation import Plan, result_columns
from derive.sql.results import Result, ResultColumn, of_rows
from derive.sql.transactions.group_commit import Shape, shape_of
from derive.sql.transactions.timeline import Write

_MOST_TRIES = 3
"""Greatest number of attempts of a statement; the last attempt excludes other writers."""

WorkedOut: TypeAlias = Callable[[bool], Awaitable[tuple[list[list[Written]], list[Write]]]]
"""A function that evaluates the rows of each statement, and returns them with the writes.

Its argument is whether other writers are excluded.
"""


async def write(state: State, planned: PlannedWrite, arguments: Sequence[Datum], *, is_short: bool) -> Result:
    """Execute a statement that writes a table; a short statement may run on the event loop."""
    rows = await _written(state, [bound_write(state, planned, arguments)], is_short=is_short)
    # Without an open transaction, the write is committed already.
    has_happened = not (state.is_explicit or state.transaction.has_written)
    return replace(_result(planned, rows[0]), has_happened=has_happened)


async def truncate(state: State, planned: Sequence[PlannedWrite], *, restarts: bool) -> Result:
    """Execute TRUNCATE: delete all rows of some tables, and let their counters begin again if `restarts`."""
    tables = {table.table.id: table for table in planned}
    await _written(state, list(tables.values()), is_short=True)
    counters = [column.counter for table in tables.values() for column in table.table.columns if column.identity]
    if restarts and counters:
        if state.is_explicit:
            raise SqlError("0A000", "RESTART IDENTITY cannot run inside a transaction block")
        for counter in counters:
            await state.coordinator.counters.restart(counter)
    return Result(lambda _: "TRUNCATE TABLE")


async def _written(state: State, planned: Sequence[PlannedWrite], *, is_short: bool) -> list[list[Written]]:
    """Write tables by bound statements, and return the rows of each statement."""
    coordinator = state.coordinator
    state.transaction.check_writable()
    coordinator.own()
    ids = coordinator.maintained.sources(frozenset().union(*(table.reads for table in planned)))

    async def worked_out(is_alone: bool) -> tuple[list[list[Written]], list[Write]]:
        rows = [await written_rows(state, table, is_short=is_short, is_alone=is_alone) for table in planned]
        parts = zip(planned, rows, strict=True)
        return rows, [write for table, some in parts for write in _writes(table.table, some)]

    if ids and not state.is_explicit and not state.transaction.has_written:
        with state.interruptible():
            # before the exclusion of other writers, including source feeders
            await coordinator.source_feeder.begun(ids)
            await coordinator.commits.load_keys([table.table.id for table in planned])
            shapes = {table.table.id: shape_of(table.table) for table in planned}
            rows = await _by_itself(state, worked_out, ids, shapes)
    else:
        rows, writes = await worked_out(False)
        for table in planned:
            await check_keys(state, table.table, [write for write in writes if write[0] == table.table.id])
        state.transaction.write(writes)
        for table in planned:
            state.transaction.write((), table.table)
    return rows


async def _by_itself(
    state: State, worked_out: WorkedOut, ids: Collection[GlobalId], shapes: Mapping[GlobalId, Shape]
) -> list[list[Written]]:
    """Read and write in one transaction; retry if other writers have changed the relations that it reads."""
    tries = 0
    while True:
        tries += 1
        try:
            is_last = tries == _MOST_TRIES
            alone = state.coordinator.timeline.alone() if is_last else nullcontext()
            async with state.coordinator.commits.exclusive() as commit, alone:
                rows, writes = await worked_out(True)
                if writes:
                    await commit(writes, state.transaction.latest_basis(ids), shapes=shapes)
            return rows
        except SqlError as error:
            if error.sqlstate != "40001" or is_last:
                raise


def _writes(table: NamedRelation, parts: Iterable[Written]) -> list[Write]:
    """Return the writes of a statement's rows."""
    writes: list[Write] = []
    for old, new, _ in parts:
        if old == new:
            continue
        if old is not None:
            writes.append((table.id, old, -1))
        if new is not None:
            writes.append((table.id, new, 1))
    return writes


def _result(planned: PlannedWrite, rows: Sequence[Written]) -> Result:
    count = len(rows)
    prefix = "INSERT 0" if planned.kind is WriteKind.INSERT else planned.kind.value

    def tag(_: int) -> str:
        return f"{prefix} {count}"

    if planned.returning is None:
        return Result(tag)
    returned = [part[2] for part in rows]
    return Result(tag, result_columns(planned.returning), of_rows(returned))


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
    indexes = copied_columns(table, statement.columns)
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
    add = _adding(state, table, indexes)

    async def take(pieces: AsyncIterator[bytes]) -> int:
        count = 0
        async for piece in pieces:
            count += await add(reader.feed(piece))
        return count + await add(reader.finish())

    return Result(lambda count: f"COPY {count}", columns, copy_in=take, is_binary=is_binary)


def _adding(state: State, table: NamedRelation, indexes: Sequence[int]) -> Callable[[Sequence[Row]], Awaitable[int]]:
    """Return a function that completes, checks and writes copied rows, and returns their number."""
    complete = _completion(state, table, indexes)
    planned = plan_completion(table, state.objects)
    planned = replace(planned, completion=state.bound(planned.completion)) if planned.completion else planned

    async def add(copied: Sequence[Row]) -> int:
        if not copied:
            return 0
        rows = await completed(state, planned, complete(copied))
        planned.check(rows)
        writes: list[Write] = [(table.id, row[: len(table.columns)], 1) for row in rows]
        await check_keys(state, table, writes)
        state.transaction.write(writes, table)
        return len(rows)

    return add


def _completion(state: State, table: NamedRelation, indexes: Sequence[int]) -> Callable[[Sequence[Row]], list[Row]]:
    """Return a function from copied rows to staged rows, with defaults for the other columns."""
    width = len(table.columns)
    positions = {index: position for position, index in enumerate(indexes)}
    missing = [column for index, column in enumerate(table.columns) if index not in positions]
    defaults = [
        in_session(default_of(column, state.objects), state.transaction.begun, state.user.name) for column in missing
    ]
    behind = iter(range(len(indexes), width))
    order = [positions[index] if index in positions else next(behind) for index in range(width)]
    flags = tuple(
        int(index not in positions) for index, column in enumerate(table.columns) if column.identity is not None
    )

    def completed_row(row: Row) -> Row:
        values = (*row, *(value.value if isinstance(value, Literal) else evaluate(value) for value in defaults))
        return (*(values[position] for position in order), *flags)

    def complete(rows: Sequence[Row]) -> list[Row]:
        is_complete = not flags and order == list(range(len(indexes)))
        return list(rows if is_complete else map(completed_row, rows))

    return complete
