"""INSERT, UPDATE and DELETE."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from derive.adapter import reading
from derive.adapter.batches import of_rows
from derive.adapter.outcome import Result
from derive.adapter.planner.planned import PlannedQuery, bind
from derive.adapter.planner.reading import ids_of
from derive.adapter.planner.write import PlannedWrite, WriteKind, check_rows
from derive.adapter.preparing import result_columns
from derive.adapter.state import State
from derive.adapter.timeline import Write
from derive.compute.algebra.types import Datum, Row


async def write(state: State, planned: PlannedWrite, arguments: Sequence[Datum]) -> Result:
    """Carry out a statement that writes a table."""
    coordinator = state.coordinator
    state.transaction.check_writable()
    coordinator.own()
    query = bind(planned.query, arguments)
    ids = coordinator.maintenance.sources(ids_of(query.relation))
    if ids and not state.is_explicit and not state.transaction.has_written:
        # It reads, and nobody else writes before it does: it is a transaction by itself.
        with state.interruptible():
            async with coordinator.commits.exclusive() as commit:
                rows = await _rows(state, query)
                writes = _writes(planned, rows)
                if writes:
                    await commit(writes)
    else:
        rows = await _rows(state, query)
        state.transaction.write(_writes(planned, rows))
    return _result(planned, rows)


async def _rows(state: State, query: PlannedQuery) -> list[Row]:
    """The rows that go and come."""
    if not ids_of(query.relation):
        return [row for batch in reading.rows_at(state, query, 0) for row in batch]
    rows: list[Row] = []
    async for batch in await reading.read(state, query):
        rows += batch
        await asyncio.sleep(0)
    return rows


def _writes(planned: PlannedWrite, rows: Iterable[Row]) -> list[Write]:
    """What rows of the query do to the table."""
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
