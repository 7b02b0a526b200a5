"""INSERT, UPDATE, DELETE and TRUNCATE; COPY, for rows of a query to a client, and of a client into a table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeAlias

from derive.algebra.expression import Literal
from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.compute import oneshot
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.functions.types.pg_type import oid_of
from derive.sql.copy_format import BinaryCopyIn, CopyIn, copy_out
from derive.sql.execution import query, subscribe
from derive.sql.execution import query as reading
from derive.sql.execution.state import State
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import Copy, SelectStatement, Subscribe
from derive.sql.planner.ddl import copied_table, indexes_of
from derive.sql.planner.dml import default_of
from derive.sql.planner.interfaces import NamedRelation
from derive.sql.planner.planned import PlannedQuery, PlannedWrite, WriteKind, check_rows, in_session
from derive.sql.preparation import Plan, result_columns
from derive.sql.results import Result, ResultColumn, in_thread, of_rows
from derive.sql.transactions.group_commit import Shape, shape_of
from derive.sql.transactions.timeline import Write

_MOST_TRIES = 3
"""Greatest number of attempts of a statement; the last attempt excludes other writers."""

WorkedOut: TypeAlias = Callable[[], Awaitable[tuple[list[list[Row]], list[Write]]]]
"""A function that evaluates queries and returns the rows of each query, and the writes."""


async def write(state: State, planned: PlannedWrite, arguments: Sequence[Datum], *, is_short: bool) -> Result:
    """Execute a statement that writes a table; a short statement may run on the event loop."""
    rows = await _written(state, [(planned, state.bound(planned.query, arguments))], is_short=is_short)
    # Without an open transaction, the write is committed already.
    has_happened = not (state.is_explicit or state.transaction.has_written)
    return replace(_result(planned, rows[0]), has_happened=has_happened)


async def truncate(state: State, planned: Sequence[PlannedWrite]) -> Result:
    """Execute TRUNCATE: delete all rows of some tables."""
    tables = {table.table.id: table for table in planned}
    await _written(state, [(table, table.query) for table in tables.values()], is_short=True)
    return Result(lambda _: "TRUNCATE TABLE")


async def _written(
    state: State, planned: Sequence[tuple[PlannedWrite, PlannedQuery]], *, is_short: bool
) -> list[list[Row]]:
    """Write tables by queries, and return the rows of each query."""
    coordinator = state.coordinator
    state.transaction.check_writable()
    coordinator.own()
    ids = coordinator.maintained.sources(frozenset().union(*(table.reads for table, _ in planned)))

    async def worked_out() -> tuple[list[list[Row]], list[Write]]:
        rows = [await _rows(state, table, query, is_short=is_short) for table, query in planned]
        parts = zip(planned, rows, strict=True)
        return rows, [write for (table, _), some in parts for write in _writes(table, some)]

    if ids and not state.is_explicit and not state.transaction.has_written:
        with state.interruptible():
            # before the exclusion of other writers, including source feeders
            await coordinator.source_feeder.begun(ids)
            shapes = {table.table.id: shape_of(table.table.columns) for table, _ in planned}
            rows = await _by_itself(state, worked_out, ids, shapes)
    else:
        rows, writes = await worked_out()
        state.transaction.write(writes)
        for table, _ in planned:
            state.transaction.write((), table.table)
    return rows


async def _by_itself(
    state: State, worked_out: WorkedOut, ids: Collection[GlobalId], shapes: Mapping[GlobalId, Shape]
) -> list[list[Row]]:
    """Read and write in one transaction; retry if other writers have changed the relations that it reads."""
    tries = 0
    while True:
        tries += 1
        try:
            is_last = tries == _MOST_TRIES
            alone = state.coordinator.timeline.alone() if is_last else nullcontext()
            async with state.coordinator.commits.exclusive() as commit, alone:
                rows, writes = await worked_out()
                if writes:
                    await commit(writes, state.transaction.latest_basis(ids), shapes=shapes)
            return rows
        except SqlError as error:
            if error.sqlstate != "40001" or is_last:
                raise


async def _rows(state: State, planned: PlannedWrite, query: PlannedQuery, *, is_short: bool) -> list[Row]:
    """Return the rows of a write's query."""
    rows: list[Row] = []
    if planned.reads or query.needs_context:
        batches = await reading.read(state, query)
    else:
        if is_short:
            try:  # Long work is restarted in a thread; this is cheaper than a thread for each statement.
                return [row for batch in _evaluated(state, query, lambda: True) for row in batch]
            except SqlError as error:
                if error.sqlstate != "57014":
                    raise
        batches = in_thread(_evaluated(state, query, lambda: state.is_stopped), state.stop)
    try:
        async for batch in batches:
            rows += batch
            await asyncio.sleep(0)
    except SqlError as error:
        if error.sqlstate == "57014":
            state.check_stopped()  # raises the reason of the cancellation
        raise
    return rows


def _evaluated(state: State, query: PlannedQuery, is_over: Callable[[], bool]) -> Iterator[list[Row]]:
    """Return the rows of a query that reads no relations."""
    return oneshot.evaluate(query.relation, query.finishing, lambda *_: iter(()), state.most_bytes, is_over)


def _writes(planned: PlannedWrite, rows: Iterable[Row]) -> list[Write]:
    """Return the writes of a query's rows."""
    table = planned.table
    parts = [planned.parts(row) for row in rows]
    check_rows(table, (new for _, new, _ in parts if new is not None))
    writes: list[Write] = []
    for old, new, _ in parts:
        if old == new:
            continue
        if old is not None:
            writes.append((table.id, old, -1))
        if new is not None:
            writes.append((table.id, new, 1))
    return writes


def _result(planned: PlannedWrite, rows: Sequence[Row]) -> Result:
    count = len(rows)
    prefix = "INSERT 0" if planned.kind is WriteKind.INSERT else planned.kind.value

    def tag(_: int) -> str:
        return f"{prefix} {count}"

    if planned.returning is None:
        return Result(tag)
    returned = [planned.parts(row)[2] for row in rows]
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
