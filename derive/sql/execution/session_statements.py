"""Statements about the session: transactions and settings."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.relation import GlobalId
from derive.errors import SqlError
from derive.sql.execution.settings import Settings
from derive.sql.execution.state import State
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.session_statements import SHOWN_OBJECTS
from derive.sql.parser.statement import (
    Begin,
    Commit,
    ObjectKind,
    ReleaseSavepoint,
    Rollback,
    RollbackTo,
    Set,
    SetSavepoint,
    SetTransaction,
    Show,
    Statement,
    TransactionModes,
)
from derive.sql.planner.ddl import relation_named
from derive.sql.planner.dependencies import ids_of
from derive.sql.preparation import boolean_of, isolation_of, shown_columns
from derive.sql.results import Notice, Result, of_rows
from derive.sql.transactions.transaction import Isolation


async def control(state: State, statement: Statement) -> Result:
    """Execute a statement about the session."""
    match statement:
        case Begin(modes):
            notices = (_notice("25001", "there is already a transaction in progress"),) * state.is_explicit
            isolation = isolation_of(modes.isolation) if modes.isolation else None
            if not state.is_explicit:
                state.begin(isolation, modes.is_read_only)
            return Result(lambda _: "BEGIN", notices=notices)
        case Commit():
            return await _commit(state)
        case Rollback():
            notices = (_notice("25P01", "there is no transaction in progress"),) * (not state.is_explicit)
            await state.roll_back()
            return Result(lambda _: "ROLLBACK", notices=notices)
        case SetSavepoint() | ReleaseSavepoint() | RollbackTo():
            return await _savepoint(state, statement)
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
        await state.commit()
    return Result(lambda _: "COMMIT", notices=notices)


def _set(state: State, statement: SetTransaction | Set) -> None:
    match statement:
        case SetTransaction(modes, is_session=True):
            _set_defaults(state.settings, modes)
        case SetTransaction(modes):
            isolation = isolation_of(modes.isolation) if modes.isolation else None
            state.set_modes(isolation, modes.is_read_only)
        case Set("transaction_read_only", (value,)):
            state.set_modes(None, boolean_of("transaction_read_only", value) == "on")
        case Set(name, values, offset, is_local):
            text = None if values is None else ", ".join(values)
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
