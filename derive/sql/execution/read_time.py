"""The time of a read, and the time that AS OF names.

AS OF takes every form of time that commands and pages take (`parse_time`), and every value of SQL that is a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Datum, Type
from derive.document.clock import TIME_FORMS, format_rfc3339, parse_time
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.sql.catalog.items import Item, is_provisional
from derive.sql.catalog.snapshot import Objects
from derive.sql.coordinator import Coordinator
from derive.sql.execution.read_names import take_names
from derive.sql.execution.state import State
from derive.sql.parser.statement import AsOf, ObjectKind
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.output import start_of
from derive.sql.planner.plan import plan_time, plan_value
from derive.sql.planner.planned import bind_expression
from derive.sql.results import Notice
from derive.sql.transactions.programs import as_commands, programs_of
from derive.sql.transactions.timeline import time_text
from derive.time import FOREVER

_CLOCKS = frozenset({Type.BIGINT, Type.INTEGER, Type.SMALLINT, Type.MZ_TIMESTAMP, Type.TIMESTAMPTZ})
_LOCAL = frozenset({Type.TIMESTAMP, Type.DATE})
"""Types of times in the time zone of the session."""
_NEWEST = "reads at the newest known time"


async def time_of(
    state: State,
    ids: Collection[GlobalId],
    as_of: AsOf | None,
    least: int = 0,
    upper: int | None = None,
    *,
    is_timed: bool = False,
) -> int:
    """Return the time of a read.

    Args:
        state: state of the session.
        ids: relations that are read from Storage.
        as_of: AS OF clause; None if missing.
        least: a preferred lower bound without AS OF.
        upper: time before which the maintained rows are complete; None if rows are read from Storage.
        is_timed: whether the rows depend on the time.

    Raises:
        SqlError: the time is compacted, or too far in the future (22023); or a relation is not known at the time.
        OutdatedPlanError: another session has committed definitions since the statement was planned.
    """
    ids = frozenset(identifier for identifier in ids if not is_provisional(identifier))
    if not ids:
        return 0 if as_of is None else clock_of(state.objects, as_of)
    coordinator = state.coordinator
    coordinator.source_feeder.check(ids)
    if as_of is None:
        await coordinator.source_feeder.begun(ids)
        is_ours = coordinator.ownership.is_held and not coordinator.objects.is_written_by_others(ids)
        at_present = is_timed or not is_ours
        time = await state.transaction.read(ids, at_present=at_present, least=least, upper=upper)
        await take_names(state, ids)
        return time
    time = clock_of(state.objects, as_of)
    since, upper = await coordinator.storage_clock.frontiers(ids)
    if as_of.is_at_least:
        time = max(time, since, upper - 1)
    if time >= upper and time > await coordinator.storage_clock.horizon(ids):
        raise SqlError(
            "22023",
            f"the relations of the query are not known at {time_text(time)}",
            offset=start_of(as_of.time),
            hint=_newest(upper - 1) if upper > since else f"AS OF AT LEAST an earlier time {_NEWEST}.",
        )
    await coordinator.timeline.reach(ids, time)
    await take_names(state, ids)
    return time


def stale_views(state: State, relation: Relation) -> tuple[Notice, ...]:
    """Return a notice for each materialized view that a query reads at an earlier time, as no server maintains it."""
    coordinator, items = state.coordinator, state.objects.items
    if coordinator.ownership.is_held:
        return ()
    stored = [items[id_] for id_ in sorted(coordinator.maintained.sources(ids_of(relation))) if id_ in items]
    views = [item for item in stored if item.kind is ObjectKind.MATERIALIZED_VIEW]
    if not views or coordinator.ownership.is_somebodys():
        return ()
    uppers = [coordinator.storage_clock.frontiers_of(item.id)[1] for item in views]
    # The rows of a view of constants are known for all times.
    return tuple(_stale(coordinator, *pair) for pair in zip(views, uppers, strict=True) if pair[1] < FOREVER)


def _stale(coordinator: Coordinator, view: Item, upper: int) -> Notice:
    at = format_rfc3339(upper - 1)
    commands = as_commands(programs_of(coordinator.objects, [view.id]))
    message = f'the rows of "{view.name}" are those of {at}, because no server maintains the view'
    return Notice("NOTICE", "00000", message, f"Start: {commands}")


def _newest(clock: int) -> str:
    """Return a hint to read at the newest known time."""
    at = format_rfc3339(clock)
    return f"They are known up to {at}. AS OF AT LEAST '{at}' {_NEWEST}."


def with_arguments(
    objects: Objects, as_of: AsOf | None, types: Sequence[Type], arguments: Sequence[Datum]
) -> AsOf | None:
    """Return AS OF of a query with parameters, evaluated with the arguments.

    Raises:
        SqlError: as for `clock_of`.
    """
    return replace(as_of, clock=clock_of(objects, as_of, types, arguments)) if as_of and types else as_of


def clock_of(objects: Objects, as_of: AsOf, types: Sequence[Type] = (), arguments: Sequence[Datum] = ()) -> int:
    """Evaluate the time of AS OF as microseconds since 1970.

    A number counts microseconds since 1970. A text has the forms of `parse_time`; in a text, timestamp or date without
    a time zone, the zone is that of the session.

    Args:
        objects: objects of the session.
        as_of: the clause.
        types: types of the query's parameters.
        arguments: a datum for each parameter.

    Raises:
        SqlError: the value is not a time (22023).
    """
    if as_of.clock is not None:
        return as_of.clock
    expression = plan_time(as_of.time, objects, types)
    if expression.type in _LOCAL:
        expression, _ = plan_value(as_of.time, objects, Type.TIMESTAMPTZ, types)
    datum = evaluate(bind_expression(expression, arguments))
    if isinstance(datum, int) and expression.type in _CLOCKS:
        return datum
    if isinstance(datum, str) and expression.type is Type.TEXT:
        with suppress(ValueError):
            return parse_time(datum, objects.zone)
    raise SqlError(
        "22023",
        "the value of AS OF is not a time",
        offset=start_of(as_of.time),
        hint=f"AS OF takes {TIME_FORMS} (as texts), now() - interval '1 hour', or microseconds since 1970.",
    )
