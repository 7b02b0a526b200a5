"""A session: one client's conversation in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from derive.adapter import defining, reading, writing
from derive.adapter.batches import of_rows
from derive.adapter.coordinator import Coordinator
from derive.adapter.outcome import Notice, Prepared, Result, TransactionStatus
from derive.adapter.parser.definition import CreateIndex, CreateSource, CreateTable, CreateView, Drop, Rename
from derive.adapter.parser.parse import split
from derive.adapter.parser.statement import (
    Begin,
    Commit,
    Delete,
    Insert,
    Rollback,
    SelectStatement,
    Set,
    SetTransaction,
    Show,
    Statement,
    Update,
)
from derive.adapter.planner.planned import bind
from derive.adapter.preparing import Plan, plan
from derive.adapter.settings import Settings, isolation_of, name_of
from derive.adapter.state import State
from derive.compute.algebra.types import Datum
from derive.errors import SqlError

_ALWAYS = (Commit, Rollback)
"""What may be said in a transaction that has failed."""


class SqlSession:
    """One client's conversation in SQL.

    Args:
        coordinator: what it shares with others.
        begun: settings with which it begins.
        most_bytes: so much may be in a result; None for any amount.
    """

    def __init__(
        self, coordinator: Coordinator, begun: Mapping[str, str] | None = None, most_bytes: int | None = None
    ) -> None:
        self._coordinator = coordinator
        self._state = State(coordinator, Settings(begun or {}), most_bytes)

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open, or has failed."""
        return self._state.status

    @property
    def parameters(self) -> dict[str, str]:
        """What clients are told of settings."""
        return self._state.settings.told

    def split(self, text: str) -> Sequence[str]:
        """The statements of a text."""
        return split(text)

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Understand one statement."""
        self._state.go_on()
        return plan(text, oids, self._coordinator.refresh()).prepared()

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Begin to carry out a statement."""
        self._state.go_on()
        planned = prepared.plan
        assert isinstance(planned, Plan)
        if self._state.is_failed and not isinstance(planned.statement, _ALWAYS):
            raise SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        with self._state.limited():
            return await self._carry_out(self._current(planned), arguments)

    def _current(self, planned: Plan) -> Plan:
        """A plan for what names stand for now."""
        objects = self._coordinator.refresh()
        if planned.version == objects.version:
            return planned
        again = plan(planned.text, planned.given, objects)
        if again.columns != planned.columns or again.parameters != planned.parameters:
            raise SqlError("0A000", "cached plan must not change result type", hint="prepare the statement again")
        return again

    async def _carry_out(self, planned: Plan, arguments: Sequence[Datum]) -> Result:
        state = self._state
        match planned.statement:
            case None:
                return Result(lambda _: "")
            case SelectStatement(_, as_of):
                assert planned.query is not None
                return await reading.select(state, bind(planned.query, arguments), as_of, arguments)
            case Insert() | Update() | Delete():
                assert planned.write is not None
                return await writing.write(state, planned.write, arguments)
            case CreateTable() | CreateView() | CreateIndex() | CreateSource() | Drop() | Rename() as statement:
                return await defining.define(state, statement, planned.text)
            case statement:
                return await self._control(statement)

    async def _control(self, statement: Statement) -> Result:
        state = self._state
        match statement:
            case Begin(modes):
                notices = (_notice("25001", "there is already a transaction in progress"),) * state.is_explicit
                isolation = isolation_of(modes.isolation) if modes.isolation else None
                if not state.is_explicit:
                    state.begin(isolation, modes.is_read_only)
                return Result(lambda _: "BEGIN", notices=notices)
            case Commit():
                return await self._commit()
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
                return self._show(name, offset)
            case _:
                raise SqlError("0A000", "this statement is not supported yet")

    async def _commit(self) -> Result:
        state = self._state
        if state.is_failed:
            await state.roll_back()
            return Result(lambda _: "ROLLBACK")
        notices = (_notice("25P01", "there is no transaction in progress"),) * (not state.is_explicit)
        with state.interruptible():
            await state.commit()
        return Result(lambda _: "COMMIT", notices=notices)

    def _show(self, name: str, offset: int) -> Result:
        settings = self._state.settings
        rows = list(settings.all().items()) if name == "all" else [(settings.get(name_of(name, offset)),)]
        planned = plan(f'SHOW "{name}"', (), self._coordinator.objects)
        return Result(lambda _: "SHOW", planned.columns, of_rows(rows))

    async def begin_implicit(self) -> None:
        """What follows is one transaction unless one is open."""

    async def end_implicit(self) -> None:
        """Commit what is not part of an explicit transaction."""
        if not self._state.is_explicit:
            self._state.go_on()
            with self._state.interruptible():
                await self._state.commit()

    async def fail(self) -> None:
        """A statement has failed."""
        if self._state.is_explicit:
            self._state.is_failed = True
        else:
            await self._state.roll_back()

    def cancel(self) -> None:
        """Have the statement at work end with an error; from any thread."""
        self._state.stop()

    async def close(self) -> None:
        """The client is gone."""
        self._state.stop()
        await self._state.roll_back()


def _notice(sqlstate: str, message: str) -> Notice:
    return Notice("WARNING", sqlstate, message)
