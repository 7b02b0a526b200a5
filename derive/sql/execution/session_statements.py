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
    Grant,
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
from derive.sql.planner.interfaces import RelationKind
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


def refresh(state: State, name: QualifiedName) -> Result:
    """Execute REFRESH MATERIALIZED VIEW, which has no effect: reads see the present rows.

    Raises:
        SqlError: the relation does not exist (42P01), or is a table (0A000) or another relation (42809).
    """
    kind = relation_named(name, state.objects).kind
    if kind is not RelationKind.MATERIALIZED_VIEW:
        sqlstate = "0A000" if kind is RelationKind.TABLE else "42809"
        raise SqlError(sqlstate, f'"{name.name}" is not a materialized view', offset=name.offset)
    return Result(lambda _: "REFRESH MATERIALIZED VIEW")


_ROLES = frozenset({"public", "current_user", "session_user", "current_role"})


def grant(state: State, statement: Grant) -> Result:
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
