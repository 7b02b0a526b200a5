"""Staged rows of a write: their identity numbers, generated columns, RETURNING and checks."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Column, Literal
from derive.algebra.relation import Get, Project, Relation
from derive.algebra.types import Row
from derive.errors import SqlError
from derive.sql.execution import query as reading
from derive.sql.execution.sequences import column_numbers
from derive.sql.execution.state import State
from derive.sql.planner.building import columns_of
from derive.sql.planner.interfaces import STAGED
from derive.sql.planner.planned import PlannedQuery, PlannedWrite


async def completed(state: State, planned: PlannedWrite, staged: list[Row]) -> list[Row]:
    """Return the complete rows of staged rows: with numbers, generated columns, RETURNING and checks."""
    assert planned.completion is not None
    staged = await _numbered(state, planned, staged)
    return await over_staged(state, planned.completion, staged)


async def over_staged(state: State, query: PlannedQuery, staged: Sequence[Row]) -> list[Row]:
    """Return the rows of a query over staged rows."""
    picked = _picked(query.relation)
    if picked is not None:
        places = [part.index if isinstance(part, Column) else None for part in picked]
        if staged and places == list(range(len(staged[0]))):
            return list(staged)
        return [
            tuple([row[part.index] if isinstance(part, Column) else part.value for part in picked]) for row in staged
        ]
    rows: list[Row] = []
    try:
        async for batch in await reading.read(state, query, staged=staged):
            rows += batch
    except SqlError as error:
        if error.sqlstate == "57014":
            state.check_stopped()  # raises the reason of the cancellation
        raise
    return rows


def _picked(relation: Relation) -> Sequence[Column | Literal] | None:
    """Return the staged columns and literals that a relation consists of; None for other relations."""
    match relation:
        case Get(id=identifier) if identifier == STAGED:
            return columns_of(relation)
        case Project(input=Get(id=identifier), expressions=expressions) if identifier == STAGED:
            parts = [part for part in expressions if isinstance(part, Column | Literal)]
            return parts if len(parts) == len(expressions) else None
    return None


async def _numbered(state: State, planned: PlannedWrite, staged: list[Row]) -> list[Row]:
    """Return staged rows with the numbers of identity columns."""
    for index, place, flag in planned.numbered:
        column = planned.table.columns[index]
        count = sum(1 for row in staged if row[flag])
        if not count:
            continue
        numbers = iter(await column_numbers(state, planned.table.name, column, count))
        staged = [(*row[:place], next(numbers), *row[place + 1 :]) if row[flag] else row for row in staged]
    return staged
