"""The executor: dispatches statements by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.functions.types.pg_type import OID_OF
from derive.sql.catalog.snapshot import Objects
from derive.sql.execution import ddl, dml, foreign_keys, session_statements, subscribe
from derive.sql.execution import query as reading
from derive.sql.execution.read_names import OutdatedPlanError
from derive.sql.execution.replicas import change_replicas
from derive.sql.execution.session_statements import check_names, control, lock
from derive.sql.execution.state import Cursor, State
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import (
    Close,
    Copy,
    CreateReplica,
    Deallocate,
    Declare,
    Delete,
    Discard,
    DropReplica,
    Execute,
    Explain,
    Explanation,
    Fetch,
    Grant,
    Insert,
    LockTable,
    Merge,
    Prepare,
    Refresh,
    SelectStatement,
    Set,
    Show,
    ShowObjects,
    Subscribe,
    Truncate,
    Update,
    Vacuum,
    WithWrites,
)
from derive.sql.parser.transaction_statements import TransactionStatement
from derive.sql.planner.coercion import type_of
from derive.sql.planner.plan import plan_value
from derive.sql.planner.planned import PlannedWrite
from derive.sql.planner.writes import plan_write
from derive.sql.preparation import Plan, plan, plan_statement, text_column
from derive.sql.results import ChangedResultError, Result, ResultColumn, of_rows
from derive.sql.sources.definitions import micros_of

_WITHOUT_SNAPSHOT = (TransactionStatement, Set, Show, LockTable, Fetch, Close, Deallocate, type(None))
"""Statements that a transaction may have before its isolation level is set."""

_MOST_PLANS = 10
"""Greatest number of plans of a statement that other sessions' definitions have overtaken, before it fails."""


def planned(state: State, text: str, oids: Sequence[int]) -> Plan:
    """Plan a statement, which may refer to the session's prepared statements and cursors.

    Raises:
        SqlError: the statement has an error; or the transaction cannot commit, because other sessions have changed a
            table that it has written, which may be the cause of the error (40001).
    """
    try:
        return _completed(state, state.coordinator.plans.plan(text, oids, state.objects))
    except SqlError:
        state.check_written()
        raise


def _completed(state: State, begun: Plan) -> Plan:
    match begun.statement:
        case Execute(name, _, offset):
            return replace(begun, columns=_prepared(state.statements, name, offset).columns)
        case Fetch(name, _, offset, is_move=False):
            return replace(begun, columns=_cursor(state.cursors, name, offset).columns)
        case ShowObjects() as statement:
            return replace(begun, columns=_shown(state, statement)[0])
    return begun


async def execute(state: State, before: Plan, arguments: Sequence[Datum]) -> Result:
    """Execute a statement; plan it again while other sessions commit definitions between its plan and its read."""
    for _ in range(_MOST_PLANS):
        ended, ddl, begun = state.ended, state.ddl, current(state, before)
        try:
            return await carry_out(state, begun, arguments)
        except SqlError as error:
            # A statement that has ended its transaction, such as COMMIT, is never repeated: the writes are gone.
            has_ended = state.ended != ended or state.ddl is not ddl
            if has_ended or not await _is_outdated(state, begun, error):
                raise
    return await carry_out(state, current(state, before), arguments)


async def _is_outdated(state: State, begun: Plan, error: SqlError) -> bool:
    """Return whether a statement has failed because of names that have changed, as a table was created again."""
    if error.sqlstate == "42P01":
        await state.coordinator.commits.published()
        return state.objects.version != begun.version
    return isinstance(error, OutdatedPlanError)


async def carry_out(state: State, begun: Plan, arguments: Sequence[Datum]) -> Result:  # noqa: PLR0911, PLR0912
    """Execute a statement; raise an `OutdatedPlanError` if others have committed definitions since its plan."""
    _begin(state, begun)
    match begun.statement:
        case None:
            return Result(lambda _: "")
        case SelectStatement(_, as_of):
            return await reading.select(state, begun, arguments, as_of)
        case Insert() | Update() | Delete() | Merge() | WithWrites():
            return await dml.write(state, begun, arguments)
        case Truncate():
            return await dml.truncate(
                state, _truncated(state.objects, begun.statement), restarts=begun.statement.restarts
            )
        case LockTable(relations):
            return lock(state, relations)
        case Subscribe() as statement:
            return await subscribe.subscribe(state, begun, statement)
        case Copy(is_from=True) as statement:
            return dml.copy_from(state, statement)
        case Copy() as statement:
            return await dml.copy_to(state, begun, statement, arguments)
        case statement if isinstance(statement, ddl.Definition):
            return await ddl.define(state, statement)
        case Refresh() | Vacuum() | Grant() as statement:
            return check_names(state, statement)
        case CreateReplica() | DropReplica() as statement:
            return await change_replicas(state, statement)
        case Explain() as statement:
            return await _explain(state, begun, statement)
        case ShowObjects() as statement:
            columns, rows = _shown(state, statement)
            notices = session_statements.unlisted(statement, state.objects)
            return Result(lambda _: "SHOW", columns, of_rows(rows), notices=notices)
        case Prepare() | Execute() | Deallocate() | Discard() as statement:
            return await _of_prepared(state, statement)
        case Declare() | Fetch() | Close() as statement:
            return await _of_cursors(state, begun, statement, arguments)
        case statement:
            return await control(state, statement)


def _begin(state: State, begun: Plan) -> None:
    """Record the names of a statement, and whether its transaction may still set its isolation level.

    Raises:
        SqlError: another session has altered, renamed or dropped a table that the transaction has written (40001).
    """
    state.planned, state.names = begun.version, state.present_names
    if isinstance(begun.statement, _WITHOUT_SNAPSHOT):
        return
    state.check_written()
    if state.is_explicit:
        state.transaction.has_queried = True


def _truncated(objects: Objects, statement: Truncate) -> list[PlannedWrite]:
    """Return the deletions of TRUNCATE; CASCADE adds the tables that refer to truncated tables."""
    planned_writes = [plan_write(Delete(name, None), objects) for name in statement.relations]
    truncated = {write.table.id for write in planned_writes}
    while statement.cascades and (referring := next(foreign_keys.referring_elsewhere(objects, truncated), None)):
        table = referring[0]
        truncated.add(table.id)
        planned_writes.append(plan_write(Delete(QualifiedName(table.schema, table.name, 0), None), objects))
    return planned_writes


def _shown(state: State, statement: ShowObjects) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    coordinator = state.coordinator
    return session_statements.shown(statement, state.objects, coordinator.maintenance, coordinator.source_feeder)


async def _explain(state: State, begun: Plan, statement: Explain) -> Result:
    inner = plan_statement(replace(begun, statement=statement.statement), state.objects)
    if statement.explanation is Explanation.TIMESTAMP:
        with state.interruptible():
            rows = await session_statements.timed(state, inner)
    else:
        rows = session_statements.explained(state, inner)
    return Result(lambda _: "EXPLAIN", (text_column("Explanation"),), of_rows(rows))


# Prepared statements


async def _of_prepared(state: State, statement: Prepare | Execute | Deallocate | Discard) -> Result:
    match statement:
        case Prepare(name, types, _, text, offset, begin):
            if name in state.statements:
                raise SqlError("42P05", f'prepared statement "{name}" already exists', offset=offset)
            oids = [OID_OF[type_of(kind)] for kind in types]
            with _placed(begin):
                state.statements[name] = plan(text, oids, state.objects)
            return Result(lambda _: "PREPARE")
        case Execute(name, _, offset):
            before = _prepared(state.statements, name, offset)
            with _placed(None):
                prepared = current(state, before)
            arguments = _arguments(state.objects, prepared, statement)
            with _placed(None):
                return await carry_out(state, prepared, arguments)
        case Deallocate(name, offset):
            if name is None:
                state.statements.clear()
            else:
                _prepared(state.statements, name, offset)
                del state.statements[name]
            return Result(lambda _: "DEALLOCATE" if name else "DEALLOCATE ALL")
        case Discard(what):
            if state.is_explicit and what == "all":
                raise SqlError("25001", "DISCARD ALL cannot run inside a transaction block")
            if what in {"all", "temp", "temporary"} and not state.is_explicit:
                await ddl.drop_temporary(state)
            if what == "all":
                state.statements.clear()
                await state.close_cursors(all_of_them=True)
                state.settings.set("all", None)
                state.coordinator.advisory_locks.release(state, is_of_transaction=False)
            return Result(lambda _: "UNLISTEN" if what == "listeners" else f"DISCARD {what.upper()}")


def current(state: State, before: Plan) -> Plan:
    """Return a plan for the current names.

    Raises:
        ChangedResultError: the result columns have changed.
    """
    objects = state.objects
    if before.version == objects.version:
        return before
    again = planned(state, before.text, before.given)
    if again.parameters != before.parameters:  # as in PostgreSQL, parameters keep the types that they had
        again = planned(state, before.text, before.parameters)
    if _shown_types(again) != _shown_types(before) or again.parameters != before.parameters:
        state.check_written()
        raise ChangedResultError
    return again


def _shown_types(plan: Plan) -> list[tuple[str, int, int]] | None:
    return None if plan.columns is None else [(column.name, column.oid, column.typmod) for column in plan.columns]


@contextmanager
def _placed(begin: int | None) -> Iterator[None]:
    """Move the offsets of errors by `begin`; for None, remove the offsets, because they refer to another text."""
    try:
        yield
    except SqlError as error:
        if error.offset is not None:
            error.offset = None if begin is None else begin + error.offset
        raise


def _prepared(statements: Mapping[str, Plan], name: str, offset: int) -> Plan:
    try:
        return statements[name]
    except KeyError:
        raise SqlError("26000", f'prepared statement "{name}" does not exist', offset=offset) from None


def _arguments(objects: Objects, prepared: Plan, statement: Execute) -> list[Datum]:
    types = _parameter_types(prepared)
    if len(types) != len(statement.arguments):
        message = f'wrong number of parameters for prepared statement "{statement.name}"'
        detail = f"Expected {len(types)} parameters but got {len(statement.arguments)}."
        raise SqlError("42601", message, offset=statement.offset, detail=detail)
    pairs = zip(statement.arguments, types, strict=True)
    return [evaluate(plan_value(node, objects, kind)[0]) for node, kind in pairs]


def _parameter_types(prepared: Plan) -> Sequence[Type]:
    query = prepared.query or prepared.writes or (prepared.write.query if prepared.write else None)
    return query.parameters if query else ()


# Cursors


async def _of_cursors(
    state: State, begun: Plan, statement: Declare | Fetch | Close, arguments: Sequence[Datum]
) -> Result:
    match statement:
        case Declare():
            return await _declare(state, begun, statement, arguments)
        case Fetch():
            return await _fetch(state, statement)
        case Close(None):
            await state.close_cursors(all_of_them=True)
            return Result(lambda _: "CLOSE CURSOR ALL")
        case Close(name, offset):
            assert name is not None
            await _cursor(state.cursors, name, offset).close()
            del state.cursors[name]
            return Result(lambda _: "CLOSE CURSOR")


async def _declare(state: State, begun: Plan, statement: Declare, arguments: Sequence[Datum]) -> Result:
    if not state.is_explicit and not statement.is_held:
        raise SqlError("25P01", "DECLARE CURSOR can only be used in transaction blocks", offset=statement.offset)
    if statement.name in state.cursors:
        raise SqlError("42P03", f'cursor "{statement.name}" already exists', offset=statement.offset)
    inner = plan_statement(replace(begun, statement=statement.statement), state.objects)
    result = await carry_out(state, inner, arguments)
    assert result.columns is not None
    assert result.rows is not None
    is_endless = isinstance(statement.statement, Subscribe)
    cursor = Cursor(result.columns, result.rows, is_held=statement.is_held, is_endless=is_endless)
    state.cursors[statement.name] = cursor
    return Result(lambda _: "DECLARE CURSOR")


async def _fetch(state: State, statement: Fetch) -> Result:
    cursor = _cursor(state.cursors, statement.name, statement.offset)
    timeout = None if statement.timeout is None else micros_of(statement.timeout) / 1_000_000
    with state.interruptible():
        rows = await cursor.fetch(statement.count, timeout)
    if statement.is_move:
        return Result(lambda _: f"MOVE {len(rows)}")
    return Result(lambda count: f"FETCH {count}", cursor.columns, of_rows(rows))


def _cursor(cursors: Mapping[str, Cursor], name: str, offset: int) -> Cursor:
    try:
        return cursors[name]
    except KeyError:
        raise SqlError("34000", f'cursor "{name}" does not exist', offset=offset) from None
