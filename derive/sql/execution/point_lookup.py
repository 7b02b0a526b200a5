"""Look-ups that are answered at once: without waiting for anything, and so without a task that could wait.

Each is decided upon and carried out in one turn of the event loop, by the rules of `reading.select` and with the time
that the timeline gives at that moment. Whatever may have to wait, or to be undone, is for `SqlSession.execute`.
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
    """The rows of a statement that is a transaction by itself; None if `execute` is to carry it out.

    Nothing has changed where there is None, and no error is raised: `execute` finds it again.
    """
    coordinator = state.coordinator
    # Whoever is not the owner asks what names stand for now.
    if not (coordinator.computing.is_owner and state.is_at_rest) or len(plan.text) > MOST_CHARACTERS:
        return None
    try:
        lookup = _lookup(coordinator, plan)
        frontiers = coordinator.lookups.frontiers(lookup) if lookup else None
        if lookup is None or frontiers is None or lookup.at_present:
            return None
        coordinator.feeding.check(lookup.sources)
        if not coordinator.feeding.is_begun(lookup.sources):
            return None
        time = coordinator.timeline.time_at_once(*coordinator.ledger.bounds(lookup.sources), least=frontiers[0])
    except FlowError:
        return None
    if time is None or time >= frontiers[1]:
        return None
    rows = rows_at_once(state, lookup, time, arguments)
    if rows is not None:
        _logger.debug("point lookup: %s", plan.text)
    return rows


def _lookup(coordinator: Coordinator, plan: Plan) -> Lookup | None:
    """The look-up that a statement is, for what names stand for now; None if it is none, or has another form now."""
    objects, before = coordinator.objects, plan
    if plan.version != objects.version:
        plan = coordinator.plans.plan(plan.text, plan.given, objects)
        if plan.columns != before.columns or plan.parameters != before.parameters:
            return None
    if plan.query is None or not isinstance(plan.statement, SelectStatement) or plan.statement.as_of is not None:
        return None
    return coordinator.lookups.find(plan.query, objects)


def rows_at_once(state: State, lookup: Lookup, time: int, arguments: Sequence[Datum]) -> Sequence[Row] | None:
    """The rows of a look-up at a time, if an instance in this process has them at once; None if it is to be asked."""
    local = state.coordinator.computing.local
    return local.look_up(lookup.asked, time, arguments, state.most_bytes) if local else None
