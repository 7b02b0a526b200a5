"""Point lookups on the fast path, without awaiting.

A lookup is decided and executed in one turn of the event loop, by the rules of `query.select`, at the current time of
the timeline. `SqlSession.execute` takes all statements that may wait or be rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from derive.algebra.types import Datum, Row
from derive.errors import FlowError
from derive.sql.coordinator import Coordinator
from derive.sql.execution.state import State
from derive.sql.parser.statement import SelectStatement
from derive.sql.parser.text_cache import MOST_CHARACTERS
from derive.sql.preparation.point_lookup_plans import Lookup
from derive.sql.preparation.prepare import Plan

_logger = logging.getLogger(__name__)


def look_up(state: State, plan: Plan, arguments: Sequence[Datum]) -> Sequence[Row] | None:
    """Return the rows of a statement that is its own transaction; None if `execute` must take it.

    A call that returns None changes no state and raises no error: `execute` raises errors.
    """
    coordinator = state.coordinator
    # A process that is not the owner must refresh the names.
    if not (coordinator.computing.is_owner and state.is_at_rest) or len(plan.text) > MOST_CHARACTERS:
        return None
    try:
        lookup = _lookup(coordinator, plan)
        frontiers = coordinator.lookups.frontiers(lookup) if lookup else None
        if lookup is None or frontiers is None or lookup.at_present:
            return None
        coordinator.source_feeder.check(lookup.sources)
        if not coordinator.source_feeder.is_begun(lookup.sources):
            return None
        time = coordinator.timeline.time_at_once(*coordinator.storage_clock.bounds(lookup.sources), least=frontiers[0])
    except FlowError:
        return None
    if time is None or time >= frontiers[1]:
        return None
    rows = rows_at_once(state, lookup, time, arguments)
    if rows is not None:
        _logger.debug("point lookup: %s", plan.text)
    return rows


def _lookup(coordinator: Coordinator, plan: Plan) -> Lookup | None:
    """Return the lookup of a statement under the current names; None if there is none, or its columns changed."""
    objects, before = coordinator.objects, plan
    if plan.version != objects.version:
        plan = coordinator.plans.plan(plan.text, plan.given, objects)
        if plan.columns != before.columns or plan.parameters != before.parameters:
            return None
    if plan.query is None or not isinstance(plan.statement, SelectStatement) or plan.statement.as_of is not None:
        return None
    return coordinator.lookups.find(plan.query, objects)


def rows_at_once(state: State, lookup: Lookup, time: int, arguments: Sequence[Datum]) -> Sequence[Row] | None:
    """Return the rows of a lookup at a time from the local instance; None if the lookup needs a peek."""
    local = state.coordinator.computing.local
    return local.look_up(lookup.asked, time, arguments, state.most_bytes) if local else None
