"""EXPLAIN: the operators of a query, and the time of its read."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Row
from derive.compute.instance import explanation_of
from derive.errors import SqlError
from derive.sql.execution.query import time_of
from derive.sql.execution.state import State
from derive.sql.parser.statement import SelectStatement
from derive.sql.planner.dependencies import ids_of
from derive.sql.preparation.prepare import Plan
from derive.sql.transactions.timeline import time_text


def explained(state: State, plan: Plan) -> Sequence[Row]:
    """Return a line for each operator of a query."""
    relation = _relation(plan)
    names = {identifier: _name(state, identifier) for identifier in ids_of(relation)}
    text = explanation_of(relation, names)
    return [(line,) for line in text.splitlines()]


async def timed(state: State, plan: Plan) -> Sequence[Row]:
    """Return lines about the time of a query's read, and the relations read."""
    coordinator = state.coordinator
    ids = coordinator.maintained.sources(ids_of(_relation(plan)))
    as_of = plan.statement.as_of if isinstance(plan.statement, SelectStatement) else None
    time = await time_of(state, ids, as_of)
    lines = [
        f"query time: {time_text(time)}",
        f"isolation: {state.transaction.modes.isolation.value}",
        f"latest time of the timeline: {time_text(coordinator.timeline.latest)}",
    ]
    for identifier in sorted(ids):
        since, upper = coordinator.storage_clock.frontiers_of(identifier)
        lines.append(f"{_name(state, identifier)}: since {time_text(since)}, upper {time_text(upper)}")
    return [(line,) for line in lines]


def _relation(plan: Plan) -> Relation:
    if plan.query is not None:
        return plan.query.relation
    if plan.view is not None:
        return plan.view.relation
    if plan.write is not None:
        return plan.write.query.relation
    raise SqlError("0A000", "only what reads can be explained")


def _name(state: State, identifier: GlobalId) -> str:
    named = state.objects.described(identifier)
    return named.name if named else str(identifier)
