"""Statements without rows of their own: transactions, settings and grants; SHOW and EXPLAIN."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns

from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Row
from derive.compute.instance import Progress, explanation_of
from derive.document.clock import format_rfc3339
from derive.errors import SqlError
from derive.functions.scalar.text import quoted_name
from derive.plural import counted
from derive.sql.catalog.snapshot import Objects, listing
from derive.sql.execution.deferred_keys import check_deferred, set_constraints
from derive.sql.execution.read_names import OutdatedPlanError
from derive.sql.execution.read_time import time_of
from derive.sql.execution.settings import Settings
from derive.sql.execution.state import State
from derive.sql.maintenance.controller.replica import ReplicaState
from derive.sql.maintenance.view_maintenance import Maintenance
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.session_statements import SHOWN_OBJECTS
from derive.sql.parser.statement import (
    Grant,
    ObjectKind,
    Refresh,
    SelectStatement,
    Set,
    Show,
    ShowObjects,
    Statement,
    Vacuum,
)
from derive.sql.parser.transaction_statements import (
    Begin,
    Commit,
    ReleaseSavepoint,
    Rollback,
    RollbackTo,
    SetConstraints,
    SetSavepoint,
    SetTransaction,
    TransactionModes,
)
from derive.sql.planner.ddl import relation_named
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.interfaces import RelationKind
from derive.sql.planner.planned import of_read
from derive.sql.preparation import Plan, boolean_of, isolation_of, shown_columns, text_column
from derive.sql.results import Notice, Result, ResultColumn, of_rows
from derive.sql.sources.source_feeder import SourceFeeder
from derive.sql.transactions.timeline import time_text
from derive.sql.transactions.transaction import Isolation


async def control(state: State, statement: Statement) -> Result:  # noqa: PLR0911 (one for each kind)
    """Execute a statement about the session."""
    match statement:
        case Begin(modes, tag):
            notices = (_notice("25001", "there is already a transaction in progress"),) * state.is_explicit
            if state.is_explicit:
                state.set_modes(modes.isolation, modes.is_read_only)
            else:
                state.begin(modes.isolation, modes.is_read_only)
            return Result(lambda _: tag, notices=notices)
        case Commit():
            return await _commit(state)
        case Rollback():
            notices = (_notice("25P01", "there is no transaction in progress"),) * (not state.is_explicit)
            await state.roll_back()
            return Result(lambda _: "ROLLBACK", notices=notices)
        case SetSavepoint() | ReleaseSavepoint() | RollbackTo():
            return await _savepoint(state, statement)
        case SetConstraints():
            with state.interruptible():
                notices = await set_constraints(state, statement)
            return Result(lambda _: "SET CONSTRAINTS", notices=notices)
        case SetTransaction() | Set():
            _set(state, statement)
            return Result(lambda _: "SET")
        case Show(name, offset):
            return _show(state, name, offset)
        case _:
            raise SqlError("0A000", "this statement is not supported yet")


async def _commit(state: State) -> Result:
    if state.is_failed:
        await state.roll_back()
        return Result(lambda _: "ROLLBACK")
    notices = (_notice("25P01", "there is no transaction in progress"),) * (not state.is_explicit)
    with state.interruptible():
        try:
            await _check_deferred(state)
        except SqlError:
            await state.roll_back()
            raise
        await state.commit()
    return Result(lambda _: "COMMIT", notices=notices)


_MOST_CHECKS = 10
"""Greatest number of checks of deferred keys that other sessions' definitions overtake, before COMMIT fails."""


async def _check_deferred(state: State) -> None:
    """Check the deferred keys; check again while other sessions commit definitions meanwhile."""
    for _ in range(_MOST_CHECKS):
        state.planned = state.objects.version
        try:
            return await check_deferred(state)
        except OutdatedPlanError:
            continue
    return await check_deferred(state)


def _set(state: State, statement: SetTransaction | Set) -> None:
    match statement:
        case SetTransaction(modes, is_session=True):
            _set_defaults(state.settings, modes)
        case SetTransaction(modes):
            state.set_modes(modes.isolation, modes.is_read_only)
        case Set("transaction_read_only", (value,)):
            state.set_modes(None, boolean_of("transaction_read_only", value) == "on")
        case Set(name, values, offset, is_local):
            is_path = name.lower() == "search_path"
            text = None if values is None else ", ".join(map(quoted_name, values) if is_path else values)
            state.settings.set(name, text, is_local=is_local, offset=offset)


def _set_defaults(settings: Settings, modes: TransactionModes) -> None:
    """Set the modes of later transactions. Only `SET transaction_isolation` can make their isolation less strict."""
    if modes.isolation and isolation_of(modes.isolation) is Isolation.STRICT_SERIALIZABLE:
        settings.set("transaction_isolation", modes.isolation)
    if modes.is_read_only is not None:
        settings.set("default_transaction_read_only", "on" if modes.is_read_only else "off")


async def _savepoint(state: State, statement: SetSavepoint | ReleaseSavepoint | RollbackTo) -> Result:
    if not state.is_explicit:
        message = "savepoints can only be used in transaction blocks"
        raise SqlError("25P01", message, offset=statement.offset, hint="BEGIN first")
    match statement:
        case SetSavepoint(name):
            state.set_savepoint(name)
            return Result(lambda _: "SAVEPOINT")
        case ReleaseSavepoint(name, offset):
            state.release_savepoint(name, offset)
            return Result(lambda _: "RELEASE")
        case RollbackTo(name, offset):
            await state.roll_back_to(name, offset)
            return Result(lambda _: "ROLLBACK")


def lock(state: State, relations: Sequence[QualifiedName]) -> Result:
    """Make the transaction fail if another session drops some relations, or rewrites their rows, before its end."""
    if not state.is_explicit:
        raise SqlError("25P01", "LOCK TABLE can only be used in transaction blocks", hint="BEGIN first")
    ids: set[GlobalId] = set()
    for name in relations:
        item = state.objects.find(name.schema, name.name)
        if item is not None and item.kind in {ObjectKind.INDEX, ObjectKind.MATERIALIZED_VIEW}:
            raise SqlError("42809", f'"{name.name}" is not a table or view', offset=name.offset)
        ids |= ids_of(relation_named(name, state.objects).relation)
    state.transaction.lock(state.coordinator.maintained.sources(frozenset(ids)))
    return Result(lambda _: "LOCK TABLE")


def _show(state: State, name: str, offset: int) -> Result:
    if name == "all":
        rows = [(name, value, None) for name, value in state.settings.all().items()]
        return Result(lambda _: "SHOW", shown_columns(name), of_rows(rows))
    match name:
        case "transaction isolation level":
            value = Isolation.SERIALIZABLE.value  # the stricter level has no name that clients know
        case "transaction_read_only":
            value = "on" if state.transaction.modes.is_read_only else "off"
        case _:
            value = state.settings.get(name, offset, others=SHOWN_OBJECTS)
    return Result(lambda _: "SHOW", shown_columns(name), of_rows([(value,)]))


def _notice(sqlstate: str, message: str) -> Notice:
    return Notice("WARNING", sqlstate, message)


def check_names(state: State, statement: Refresh | Vacuum | Grant) -> Result:
    """Execute a statement that has no effect, after checks of its names."""
    match statement:
        case Refresh(name):
            return _refresh(state, name)
        case Vacuum():
            return _vacuum(state, statement)
        case Grant():
            return _grant(state, statement)


def _refresh(state: State, name: QualifiedName) -> Result:
    """Execute REFRESH MATERIALIZED VIEW, which has no effect: reads see the present rows.

    Raises:
        SqlError: the relation does not exist (42P01), or is a table (0A000) or another relation (42809).
    """
    kind = relation_named(name, state.objects).kind
    if kind is not RelationKind.MATERIALIZED_VIEW:
        sqlstate = "0A000" if kind is RelationKind.TABLE else "42809"
        raise SqlError(sqlstate, f'"{name.name}" is not a materialized view', offset=name.offset)
    return Result(lambda _: "REFRESH MATERIALIZED VIEW")


def _vacuum(state: State, statement: Vacuum) -> Result:
    """Execute VACUUM or ANALYZE, which has no effect: data and statistics are maintained all the time.

    Raises:
        SqlError: a relation or a column does not exist (42P01 or 42703), or the session is in a transaction block and
            the statement is VACUUM (25001).
    """
    tag = "ANALYZE" if statement.is_analyze else "VACUUM"
    if state.is_explicit and not statement.is_analyze:
        raise SqlError("25001", "VACUUM cannot run inside a transaction block", hint="COMMIT first.")
    for name, columns in statement.tables:
        relation = relation_named(name, state.objects)
        for column, offset in columns:
            if column not in {named.name for named in relation.columns}:
                message = f'column "{column}" of relation "{name.name}" does not exist'
                raise SqlError("42703", message, offset=offset)
    return Result(lambda _: tag)


_ROLES = frozenset({"public", "current_user", "session_user", "current_role"})


def _grant(state: State, statement: Grant) -> Result:
    """Execute GRANT, which has no effect because all users have all rights; and REVOKE, which warns that it has none.

    Raises:
        SqlError: a relation or a role does not exist (42P01 or 42704).
    """
    for name in statement.relations:
        relation_named(name, state.objects)
    known = state.user.names
    for role, offset in statement.roles:
        if known is not None and role not in known | _ROLES:
            hint = "The password file names the users."
            raise SqlError("42704", f'role "{role}" does not exist', offset=offset, hint=hint)
    if not statement.is_revoked:
        return Result(lambda _: "GRANT")
    message = "no privileges could be revoked"
    what = [f'{message} for "{name.name}"' for name in statement.relations] or [message]
    hint = "All users have the same rights. The password file names the users who may connect."
    return Result(lambda _: "REVOKE", notices=tuple(Notice("WARNING", "01006", text, hint) for text in what))


def explained(state: State, plan: Plan) -> Sequence[Row]:
    """Return a line for each operator of a query."""
    relation = _relation(plan)
    names = {identifier: _name(state.objects, identifier) for identifier in ids_of(relation)}
    text = explanation_of(of_read(relation), names)
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
    text = f'CREATE {item.kind.value.upper()} "{item.name}" AS {item.shown_definition}'
    return (text_column("name"), text_column("create_sql")), [(named.name, text)]


def unlisted(statement: ShowObjects, objects: Objects) -> tuple[Notice, ...]:
    """Return a notice for SHOW TABLES if the catalog has collections, which it does not list."""
    collections = [named for named in listing(objects) if named.kind is RelationKind.COLLECTION]
    if statement.what != "tables" or not collections:
        return ()
    are = "is" if len(collections) == 1 else "are"
    text = f"{counted(len(collections), 'collection')} of the catalog {are} not listed"
    return (Notice("NOTICE", "00000", text, "SHOW OBJECTS lists tables, views and collections."),)


def _indexes(statement: ShowObjects, objects: Objects) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    on = relation_named(statement.relation, objects).id if statement.relation else None
    rows: list[Row] = []
    for item in objects.items.values():
        subject = objects.described(item.on) if item.kind is ObjectKind.INDEX and item.on is not None else None
        if subject is not None and on in {None, subject.id}:
            rows.append((item.name, subject.name, ", ".join(item.parts or item.indexed)))
        for key in item.constraints if item.kind is ObjectKind.TABLE and on in {None, item.id} else ():
            if key.is_key:
                rows.append((key.name, item.name, ", ".join(key.parts or key.columns)))
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
