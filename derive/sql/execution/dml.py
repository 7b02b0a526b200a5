"""INSERT, UPDATE, DELETE and TRUNCATE."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeAlias

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.compute import oneshot
from derive.errors import SqlError
from derive.sql.execution import query as reading
from derive.sql.execution.state import State
from derive.sql.planner.planned import PlannedQuery, PlannedWrite, WriteKind, check_rows
from derive.sql.preparation import result_columns
from derive.sql.results import Result, in_thread, of_rows
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
