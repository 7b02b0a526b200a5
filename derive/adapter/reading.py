"""Queries: at which time they read, and who works them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import suppress

from derive.adapter.batches import in_thread
from derive.adapter.outcome import Result
from derive.adapter.parser.statement import AsOf
from derive.adapter.planner.plan import plan_value
from derive.adapter.planner.planned import PlannedQuery, bind, bind_expression
from derive.adapter.planner.reading import ids_of
from derive.adapter.preparing import Plan
from derive.adapter.state import State
from derive.compute import oneshot
from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Datum, Row, Type
from derive.compute.scalar.registry import evaluate
from derive.document.clock import parse_rfc3339
from derive.errors import FlowError, SqlError

_PATIENCE_SECONDS = 0.25


async def select(state: State, plan: Plan, arguments: Sequence[Datum], as_of: AsOf | None) -> Result:
    """The rows of a query.

    Args:
        state: of the session.
        plan: of the query.
        arguments: a datum for each of its parameters.
        as_of: what was said of the time.
    """
    assert plan.query is not None
    rows = await _look_up(state, plan.query, arguments) if as_of is None else None
    if rows is None:
        rows = await read(state, bind(plan.query, arguments), as_of)
    return Result(lambda count: f"SELECT {count}", plan.columns, rows)


async def _look_up(
    state: State, query: PlannedQuery, arguments: Sequence[Datum]
) -> AsyncIterator[Sequence[Row]] | None:
    """The rows of a query of what is maintained; None if it is of something else, or not known at its time."""
    coordinator = state.coordinator
    lookup = coordinator.lookups.find(query, coordinator.objects)
    since = coordinator.lookups.since(lookup) if lookup else None
    if lookup is None or since is None:
        return None
    with state.interruptible():
        time = await time_of(state, lookup.sources, None, since)
        if since > time:
            return None
        if not coordinator.lookups.is_known(lookup, time) and not await _is_known(state, lookup.peek.reads, time):
            return None
    stopping = (lambda: state.is_stopped), state.stop
    return coordinator.lookups.rows(lookup, time, arguments, state.most_bytes, stopping)


async def read(state: State, query: PlannedQuery, as_of: AsOf | None = None) -> AsyncIterator[Sequence[Row]]:
    """The rows of a query without parameters, in batches, at the time at which it is to be read."""
    maintenance = state.coordinator.maintenance
    ids = maintenance.sources(ids_of(query.relation))
    with state.interruptible():
        time = await time_of(state, ids, as_of, maintenance.since(query.relation))
        arranged = maintenance.arranged(query.relation, query.finishing, time)
        if arranged is not None and await _is_known(state, ids_of(arranged[0]), time):
            rows = maintenance.peek(*arranged, time, most_bytes=state.most_bytes, cancelled=lambda: state.is_stopped)
            return in_thread(rows, state.stop)
    return in_thread(rows_at(state, query, time), state.stop)


async def _is_known(state: State, places: Collection[GlobalId], time: int) -> bool:
    """Wait until what is maintained is known at a time; False if it will not be."""
    coordinator = state.coordinator
    while True:
        news = coordinator.news.next
        try:
            if coordinator.maintenance.upper(places) > time:
                return True
        except FlowError:
            return False
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), _PATIENCE_SECONDS)


def rows_at(state: State, query: PlannedQuery, time: int) -> Iterator[list[Row]]:
    """The rows of a query at a time, worked out from what is stored."""
    coordinator = state.coordinator

    def contents(identifier: GlobalId) -> Iterator[list[Row]]:
        return coordinator.contents(identifier, time)

    relation = coordinator.maintenance.expanded(query.relation)
    return oneshot.evaluate(relation, query.finishing, contents, state.most_bytes, lambda: state.is_stopped)


async def time_of(state: State, ids: Collection[GlobalId], as_of: AsOf | None, least: int = 0) -> int:
    """The time at which something is read.

    Args:
        state: of the session.
        ids: what is read of Storage.
        as_of: what was said of the time.
        least: a time that it is better not below, where nothing was said.
    """
    if not ids:
        return 0
    coordinator = state.coordinator
    coordinator.feeding.check(ids)
    if as_of is None:
        items = coordinator.objects.items
        at_present = any(identifier not in items or not items[identifier].is_written for identifier in ids)
        return await state.transaction.read(ids, at_present=at_present, least=least)
    time = clock_of(state, as_of)
    if as_of.is_at_least:
        since, upper = await coordinator.ledger.frontiers(ids)
        time = max(time, since, upper - 1)
    await coordinator.timeline.reach(ids, time)
    return time


def clock_of(state: State, as_of: AsOf, arguments: Sequence[Datum] = ()) -> int:
    """The time that AS OF says: a clock in microseconds, or RFC 3339.

    Raises:
        SqlError: 22023, it is no time.
    """
    expression, _ = plan_value(as_of.time, state.coordinator.objects)
    datum = evaluate(bind_expression(expression, arguments))
    kind = expression.type
    if isinstance(datum, int) and kind in {
        Type.BIGINT, Type.INTEGER, Type.SMALLINT, Type.MZ_TIMESTAMP, Type.TIMESTAMP, Type.TIMESTAMPTZ,
    }:  # fmt: skip
        return datum
    if isinstance(datum, str):
        try:
            return int(datum) if datum.strip().isdigit() else parse_rfc3339(datum)
        except ValueError:
            pass
    raise SqlError(
        "22023",
        "AS OF takes a clock in microseconds, or a time such as '2024-01-01T00:00:00Z'",
        offset=as_of.offset,
    )
