"""SHOW and EXPLAIN: lists of objects, and the operators of a query with the time of its read."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns

from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Row
from derive.compute.instance import Progress, explanation_of
from derive.document.clock import format_rfc3339
from derive.errors import SqlError
from derive.sql.catalog.snapshot import Objects, listing
from derive.sql.execution.query import time_of
from derive.sql.execution.state import State
from derive.sql.maintenance.controller.replica import ReplicaState
from derive.sql.maintenance.view_maintenance import Maintenance
from derive.sql.parser.statement import ObjectKind, SelectStatement, ShowObjects
from derive.sql.planner.ddl import relation_named
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.interfaces import RelationKind
from derive.sql.preparation import Plan, text_column
from derive.sql.results import ResultColumn
from derive.sql.sources.source_feeder import SourceFeeder
from derive.sql.transactions.timeline import time_text


def explained(state: State, plan: Plan) -> Sequence[Row]:
    """Return a line for each operator of a query."""
    relation = _relation(plan)
    names = {identifier: _name(state.objects, identifier) for identifier in ids_of(relation)}
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
        lines.append(f"{_name(state.objects, identifier)}: since {time_text(since)}, upper {time_text(upper)}")
    return [(line,) for line in lines]


def _relation(plan: Plan) -> Relation:
    if plan.query is not None:
        return plan.query.relation
    if plan.view is not None:
        return plan.view.relation
    if plan.write is not None:
        return plan.write.query.relation
    raise SqlError(
        "0A000", "only queries can be explained", hint="EXPLAIN takes SELECT, VALUES, INSERT, UPDATE and DELETE."
    )


def _name(objects: Objects, identifier: GlobalId) -> str:
    named = objects.described(identifier)
    return named.name if named else str(identifier)


_KINDS = {
    "tables": {RelationKind.TABLE},
    "views": {RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW},
    "materialized views": {RelationKind.MATERIALIZED_VIEW},
    "sources": {RelationKind.SOURCE, RelationKind.COLLECTION},
}
_ONE = {"schemas": "public", "databases": "flow", "clusters": "default", "roles": "flow"}

_REPLICAS = (
    *("name", "address", "process", "state", "reason", "dataflows"),
    *("kept", "rebuilt", "dropped", "lag_ms", "memory_mib"),
)


def shown(  # noqa: PLR0911 (one for each kind)
    statement: ShowObjects, objects: Objects, maintenance: Maintenance, source_feeder: SourceFeeder
) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    """Return the columns and rows of a SHOW.

    Raises:
        SqlError: the kind of object is not supported.
    """
    what = statement.what
    if what in _KINDS:
        names: list[Row] = [(named.name,) for named in listing(objects) if named.kind in _KINDS[what]]
        return (text_column("name"),), names
    if what in _ONE:
        return (text_column("name"),), [(_ONE[what],)]
    if what == "connections":
        return (text_column("name"),), []
    if what == "objects":
        return (text_column("name"), text_column("type")), [
            (named.name, named.kind.value) for named in listing(objects)
        ]
    if what == "indexes":
        return _indexes(statement, objects)
    if what == "maintenance":
        return _maintenance(objects, [*maintenance.states(), *source_feeder.states()], maintenance.hydrations())
    if what == "hydrations":
        return _hydrations(objects, maintenance)
    if what == "replicas":
        return tuple(map(text_column, _REPLICAS)), list(map(_replica, maintenance.replicas()))
    if statement.relation is None:
        raise SqlError("0A000", f"SHOW {what.upper()} is not supported", offset=statement.offset)
    named = relation_named(statement.relation, objects)
    if what == "columns":
        columns = tuple(map(text_column, ("name", "nullable", "type")))
        return columns, [
            (column.name, "t" if column.is_nullable else "f", column.type.value) for column in named.columns
        ]
    item = objects.items.get(named.id)
    if item is None or item.definition is None:
        raise SqlError(
            "0A000",
            f"{named.kind.value} {named.name} has no definition",
            offset=statement.offset,
            hint="SHOW COLUMNS FROM lists columns.",
        )
    text = f'CREATE {item.kind.value.upper()} "{item.name}" AS {item.definition}'
    return (text_column("name"), text_column("create_sql")), [(named.name, text)]


def _indexes(statement: ShowObjects, objects: Objects) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    on = relation_named(statement.relation, objects).id if statement.relation else None
    rows: list[Row] = []
    for item in objects.items.values():
        subject = objects.described(item.on) if item.kind is ObjectKind.INDEX and item.on is not None else None
        if subject is not None and on in {None, subject.id}:
            rows.append((item.name, subject.name, ", ".join(item.indexed)))
    return tuple(map(text_column, ("name", "on", "columns"))), sorted(rows, key=str)


def _maintenance(
    objects: Objects, states: Sequence[tuple[GlobalId, int | None, Exception | None]], hydrations: Sequence[Progress]
) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    """Return a row with the upper, the error and the progress of each maintained relation and each source."""
    rows: list[Row] = []
    progress = {one.identifier: _progress(one) for one in hydrations}
    for identifier, upper, failure in states:
        if (named := objects.described(identifier)) is not None:
            error = f"{type(failure).__name__}: {failure}" if failure else None
            known = (None, None) if upper is None else (str(upper), format_rfc3339(upper))
            rows.append((named.name, known[0], error, known[1], progress.get(identifier)))
    return tuple(map(text_column, ("name", "upper", "error", "upper_time", "progress"))), rows


def _progress(progress: Progress) -> str:
    """Return since when a relation hydrates or is maintained alone, and for how long its present statement runs."""
    what = "hydrating" if progress.is_hydrating else "slow, maintained alone"
    since = f"{what} since {format_rfc3339(progress.since)}" if progress.since else what
    if not progress.running:
        return since
    seconds = max(0, time_ns() // 1000 - progress.running) // 1_000_000
    return f"{since}; statement running for {seconds} s"


def _hydrations(objects: Objects, maintenance: Maintenance) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    items = objects.items
    rows: list[Row] = [
        (items[one.identifier].name, one.stage, str(one.rows))
        for one in maintenance.hydrations()
        if one.identifier in items and one.is_hydrating
    ]
    return tuple(map(text_column, ("name", "stage", "rows"))), rows


def _replica(state: ReplicaState) -> Row:
    """Return the row of a replica: state, and dataflows kept, rebuilt and dropped when it connected."""
    welcome, report = state.welcome, state.report
    if welcome is None:
        return (state.name, state.address, None, "connecting", state.trouble, *[None] * 6)
    counts = [len(welcome.kept), len(welcome.rebuilt), len(welcome.dropped), state.lag // 1000]
    memory = report.memory_bytes >> 20 if report is not None else None
    numbers = [len(state.uppers), *counts, memory]
    texts = [None if number is None else str(number) for number in numbers]
    return (state.name, state.address, welcome.process, "connected", None, *texts)
