"""Statements about the session itself: its transactions and its settings."""

from __future__ import annotations

from derive.adapter.batches import of_rows
from derive.adapter.outcome import Notice, Result
from derive.adapter.parser.statement import Begin, Commit, Rollback, Set, SetTransaction, Show, Statement
from derive.adapter.preparing import text_column
from derive.adapter.settings import isolation_of, name_of
from derive.adapter.state import State
from derive.errors import SqlError


async def control(state: State, statement: Statement) -> Result:
    """Carry out a statement about the session."""
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
        case SetTransaction(modes, is_session):
            if is_session:
                if modes.isolation:
                    state.settings.set("transaction_isolation", modes.isolation)
            else:
                isolation = isolation_of(modes.isolation) if modes.isolation else None
                state.set_modes(isolation, modes.is_read_only)
            return Result(lambda _: "SET")
        case Set(name, values, offset, is_local):
            value = None if values is None else ", ".join(values)
            state.settings.set(name, value, is_local=is_local, offset=offset)
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


def _show(state: State, name: str, offset: int) -> Result:
    settings = state.settings
    rows = list(settings.all().items()) if name == "all" else [(settings.get(name_of(name, offset)),)]
    columns = ("name", "setting") if name == "all" else (name,)
    return Result(lambda _: "SHOW", tuple(map(text_column, columns)), of_rows(rows))


def _notice(sqlstate: str, message: str) -> Notice:
    return Notice("WARNING", sqlstate, message)
