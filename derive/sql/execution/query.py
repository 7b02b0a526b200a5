"""Queries: the time of a read, and rows from a point lookup, an instance or a one-shot evaluation.

A point lookup follows the rules of `select`, at the current time of the timeline, and is executed in one turn of the
event loop. `SqlSession.execute` executes all statements that may wait or be rolled back.

Functions with effects on the session (settings, sleep, advisory locks) are executed with the query that calls them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from time import thread_time
from types import MappingProxyType

from derive.algebra.bounds import bounds_of
from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.rewrite import mentions
from derive.algebra.types import Datum, Row, Type
from derive.compute import oneshot
from derive.compute.protocol.messages import PeekResponse, Query
from derive.contents.rows import contents_at
from derive.errors import FlowError, FrontierError, SqlError, UsageError
from derive.event_loop import Handover
from derive.functions.statement_context import CatalogNames, StatementContext, each_in_context
from derive.recently_used import MOST_CHARACTERS, RecentlyUsed
from derive.relations.columns import Source, columns_of
from derive.sql.catalog.items import is_provisional
from derive.sql.catalog.snapshot import Objects
from derive.sql.coordinator import Coordinator
from derive.sql.execution import keyed_joins
from derive.sql.execution.keyed_joins import COMPUTED
from derive.sql.execution.read_names import has_current_names, has_same_dataflows, take_names
from derive.sql.execution.read_time import stale_views, time_of, with_arguments
from derive.sql.execution.sequences import SEQUENCE_FUNCTIONS, call_sequence
from derive.sql.execution.state import State
from derive.sql.maintenance.view_state import Maintained
from derive.sql.parser.statement import AsOf, ObjectKind, SelectStatement
from derive.sql.pg_catalog.objects import SessionFacts
from derive.sql.pg_catalog.snapshot import UserCatalog, snapshot_of
from derive.sql.planner.dependencies import has_effects, ids_of, types_read
from derive.sql.planner.interfaces import FIRST_SYSTEM_ID, STAGED
from derive.sql.planner.planned import PlannedQuery, is_read_time
from derive.sql.preparation import Lookup, Plan
from derive.sql.results import Result, in_thread, of_rows
from derive.sql.transactions.resident_tables import TableQuery
from derive.sql.transactions.timeline import time_text
from derive.storage.table_types import Table

_MOST_SECONDS = 366 * 86_400.0


def context_of(state: State, catalog: CatalogNames) -> StatementContext:
    """Return the context of a statement that is evaluated in another thread."""
    loop, functions = asyncio.get_running_loop(), SessionFunctions(state)

    def setting(name: str) -> str | None:
        try:
            return state.settings.get(name)
        except SqlError:
            return None

    def effect(name: str, arguments: tuple[Datum, ...]) -> Datum:
        return asyncio.run_coroutine_threadsafe(functions.call(name, arguments), loop).result()

    return StatementContext(catalog, setting, effect, state.backends.process, state.objects.path_schemas)


def facts_of(state: State) -> SessionFacts:
    """Return facts about the session and the other sessions."""
    return SessionFacts(state.settings.all(), state.backends.all(), state.user.name)


class SessionFunctions:
    """The effects of functions on one session.

    Args:
        state: state of the session.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    async def call(self, name: str, arguments: tuple[Datum, ...]) -> Datum:
        """Execute the effect of a function, and return its value.

        Args:
            name: name of the function.
            arguments: a datum for each argument, of the types in `derive.functions.scalar.catalog`.

        Raises:
            SqlError: the effect is invalid, or the statement is cancelled.
        """
        if name in SEQUENCE_FUNCTIONS:
            return await call_sequence(self._state, name, arguments)
        match name, arguments:
            case "pg_notify", _:
                raise SqlError("0A000", "NOTIFY is not supported", hint="Use SUBSCRIBE to receive changes.")
            case "set_config", (str() as setting, str() | None as value, is_local):
                self._state.settings.set(setting, value, is_local=bool(is_local))
                return self._state.settings.get(setting)
            case "pg_cancel_backend", (int() as process,):
                return int(self._state.backends.cancel(process))
            case "pg_terminate_backend", (int() as process,):
                return int(self._state.backends.terminate(process))
            case "pg_sleep", (float() as seconds,):
                await self._wait(asyncio.sleep(max(0.0, min(seconds, _MOST_SECONDS))))
                return ""
        return await self._lock(name, tuple(argument for argument in arguments if isinstance(argument, int)))

    async def _lock(self, name: str, key: tuple[int, ...]) -> Datum:
        locks = self._state.coordinator.advisory_locks
        if name == "pg_advisory_unlock_all":
            locks.release(self._state, is_of_transaction=False)
            return ""
        is_shared, is_of_transaction = name.endswith("_shared"), "_xact_" in name
        if name.startswith("pg_advisory_unlock"):
            return int(locks.unlock(self._state, key, is_shared=is_shared))
        if name.startswith("pg_try_"):
            return int(locks.try_lock(self._state, key, is_shared=is_shared, is_of_transaction=is_of_transaction))
        done = self._state.limit_lock()
        try:
            await self._wait(locks.lock(self._state, key, is_shared=is_shared, is_of_transaction=is_of_transaction))
        finally:
            done()
        return ""

    async def _wait(self, work: Coroutine[None, None, None]) -> None:
        """Wait for work, subject to the statement timeout."""
        done = self._state.limit()
        try:
            with self._state.interruptible():
                await work
        finally:
            work.close()  # no effect if the work has run
            done()


_logger = logging.getLogger(__name__)


def look_up(state: State, plan: Plan, arguments: Sequence[Datum]) -> Sequence[Row] | None:
    """Return the rows of a statement that is its own transaction; None if `execute` must execute the statement.

    A call that returns None changes no state; errors also return None, and `execute` raises them.
    """
    coordinator = state.coordinator
    # A process that is not the owner must refresh the names.
    if not (coordinator.computing.is_owner and state.is_at_rest) or len(plan.text) > MOST_CHARACTERS:
        return None
    if coordinator.commits.is_publishing:
        return None
    try:
        present = _present(state, plan)
        query = present.query if present is not None else None
        if query is None:
            return None
        lookup = coordinator.lookups.find(query, state.objects)
        rows = _look_up_at_once(state, lookup, arguments) if lookup else None
        if rows is not None:
            _logger.debug("point lookup: %s", plan.text)
            return rows
        return _rows_of_tables_at_once(state, query, arguments)
    except FlowError:
        return None


def _look_up_at_once(state: State, lookup: Lookup, arguments: Sequence[Datum]) -> Sequence[Row] | None:
    """Return the rows of a lookup at the current time; None if the lookup needs a new time, a wait or a peek."""
    coordinator = state.coordinator
    frontiers = coordinator.lookups.frontiers(lookup)
    if frontiers is None or lookup.at_present:
        return None
    coordinator.source_feeder.check(lookup.sources)
    if not coordinator.source_feeder.is_begun(lookup.sources):
        return None
    time = coordinator.timeline.time_at_once(*coordinator.storage_clock.bounds(lookup.sources), least=frontiers[0])
    if time is None or time >= frontiers[1]:
        return None
    return rows_at_once(state, lookup, time, arguments)


def _present(state: State, plan: Plan) -> Plan | None:
    """Return the plan of a SELECT under the current names; None for other plans, or after a change of its columns."""
    coordinator, objects, before = state.coordinator, state.objects, plan
    if plan.version != objects.version:
        plan = coordinator.plans.plan(plan.text, plan.given, objects)
        if plan.columns != before.columns or plan.parameters != before.parameters:
            return None
    if not isinstance(plan.statement, SelectStatement) or plan.statement.as_of is not None:
        return None
    return plan


def _rows_of_tables_at_once(state: State, query: PlannedQuery, arguments: Sequence[Datum]) -> Sequence[Row] | None:
    """Return the rows of a query from copies of its tables in memory; None if a copy is missing."""
    coordinator = state.coordinator
    asked = _query_of_copies(state, query)
    if asked is None or asked.tables is None or not coordinator.commits.residents.are_loaded(asked):
        return None
    time = coordinator.timeline.time_at_once(*coordinator.storage_clock.bounds(asked.tables))
    if time is None:
        return None
    return coordinator.commits.rows_of_tables_at_once(asked, time, arguments, state.most_bytes)


def rows_at_once(state: State, lookup: Lookup, time: int, arguments: Sequence[Datum]) -> Sequence[Row] | None:
    """Return the rows of a lookup at a time from the local instance; None if the lookup needs a peek."""
    local = state.coordinator.computing.local
    return local.look_up(lookup.asked, time, arguments, state.most_bytes) if local else None


_HEDGE_SECONDS = 0.05
"""Seconds after which a peek is also sent to the other replicas (hedging)."""

_LOOK_SECONDS = 0.25
"""Interval of checks for cancellation, in seconds; a cursor may take rows after its statement."""


async def ask(
    state: State, query: Query, time: int, arguments: Sequence[Datum] = ()
) -> AsyncIterator[Sequence[Row]] | None:
    """Return the rows of a query over dataflows at a time, in batches; None if no replica has the rows.

    The call waits for the first batch, until a replica has reached the time.

    Raises:
        SqlError: the query has a row error; or the statement is cancelled.
    """
    controller = state.coordinator.computing.controller
    handover: Handover[PeekResponse] = Handover(is_patient=controller.is_local)
    uuid = controller.peek(query, time, handover.put, arguments=arguments, most_bytes=state.most_bytes)
    first = handover.get_nowait()
    if first is None:
        late = asyncio.get_running_loop().call_later(_HEDGE_SECONDS, controller.hasten, uuid)
        try:
            with state.interruptible():
                while first is None:
                    first = await handover.get()
        except BaseException:
            _Answer(state, handover, uuid).close()
            raise
        finally:
            late.cancel()
    if isinstance(first.result, SqlError):
        maintained = state.coordinator.maintained
        raise await asyncio.to_thread(maintained.stored_error, first.result, query.reads, time)
    if isinstance(first.result, FlowError):
        return None
    if first.is_last:
        return of_rows(first.result)
    answer = _Answer(state, handover, uuid)
    answer.rows = first.result
    return answer


class _Answer:
    """A peek's answer in several parts.

    Attributes:
        rows: rows that were received and are not returned yet.
    """

    def __init__(self, state: State, handover: Handover[PeekResponse], uuid: int) -> None:
        self._state, self._handover, self._uuid = state, handover, uuid
        self.rows: Sequence[Row] = ()
        self._is_whole = False

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> Sequence[Row]:
        while not self.rows:
            if self._is_whole:
                raise StopAsyncIteration
            try:
                response = await self._handover.get(_LOOK_SECONDS)
                self._state.check_stopped()
                if response is None:
                    continue
                if isinstance(response.result, SqlError):
                    raise response.result
                if isinstance(response.result, FlowError):
                    raise SqlError("XX000", response.result.message, hint=response.result.hint)
            except BaseException:
                self.close()
                raise
            self.rows, self._is_whole = response.result, response.is_last
        rows, self.rows = self.rows, ()
        return rows

    async def aclose(self) -> None:
        """Cancel the peek and discard the remaining rows."""
        self.close()

    def close(self) -> None:
        """Cancel the peek and discard the remaining rows."""
        self._state.coordinator.computing.controller.cancel(self._uuid)
        self._handover.close()
        self._is_whole, self.rows = True, ()


_PATIENCE_SECONDS = 0.25

_PROMPT_SECONDS = 0.005
"""Processor time up to which a query is evaluated without a thread, in seconds."""
_LONG: RecentlyUsed[int, Relation] = RecentlyUsed(256)
"""Relations of plans that needed more time, by identity; a thread evaluates them from now on."""


async def select(state: State, plan: Plan, arguments: Sequence[Datum], as_of: AsOf | None) -> Result:
    """Execute a SELECT.

    Args:
        state: state of the session.
        plan: plan of the query.
        arguments: a datum for each parameter.
        as_of: AS OF clause; None if missing.
    """
    assert plan.query is not None
    as_of = with_arguments(state.objects, as_of, plan.query.parameters, arguments)
    is_short = len(plan.text) <= MOST_CHARACTERS
    is_lookup = as_of is None and is_short and not plan.query.needs_context
    rows = await _look_up(state, plan.query, arguments) if is_lookup else None
    if rows is None and is_lookup:
        rows = await _look_up_key(state, plan.query, arguments)
    if rows is not None:
        _logger.debug("point lookup: %s", plan.text)
    elif is_lookup:
        ready = await read_tables(state, plan.query, arguments)
        rows = None if ready is None else of_rows(ready)
    if rows is None:
        rows = await read(state, state.bound(plan.query, arguments, as_of), as_of)
    shown = rows if plan.columns else without_columns(rows)
    notices = () if as_of is not None else stale_views(state, plan.query.relation)
    return Result(lambda count: f"SELECT {count}", plan.columns, shown, notices=notices)


async def without_columns(batches: AsyncIterator[Sequence[Row]]) -> AsyncIterator[Sequence[Row]]:
    """Yield an empty row for each row of a query without columns, whose rows have a placeholder."""
    async for batch in batches:
        yield [()] * len(batch)


async def _look_up(
    state: State, query: PlannedQuery, arguments: Sequence[Datum]
) -> AsyncIterator[Sequence[Row]] | None:
    """Return the rows of a query of maintained relations; None for other queries, or while rows are incomplete."""
    coordinator = state.coordinator
    lookup = coordinator.lookups.find(query, state.objects)
    frontiers = coordinator.lookups.frontiers(lookup) if lookup else None
    if lookup is None or frontiers is None:
        return None
    since, upper = frontiers
    if state.transaction.has_changed(lookup.sources):
        return None
    with state.interruptible():
        await coordinator.source_feeder.begun(lookup.sources)
        time = await state.transaction.read(lookup.sources, at_present=lookup.at_present, least=since, upper=upper)
        await take_names(state, lookup.sources)
        if since > time:
            return None
        if upper <= time and not await _is_known(state.coordinator, lookup.asked.reads, time):
            return None
        if not await has_same_dataflows(state, lookup.asked.reads):
            return None
    rows = rows_at_once(state, lookup, time, arguments)
    return of_rows(rows) if rows is not None else await ask(state, lookup.asked, time, arguments)


async def _look_up_key(
    state: State, query: PlannedQuery, arguments: Sequence[Datum]
) -> AsyncIterator[Sequence[Row]] | None:
    """Return the row of a key from the index of the key; None for other queries, or without an index for the time."""
    coordinator = state.coordinator
    lookup = coordinator.key_lookups.find(query, state.objects)
    if lookup is None or lookup.table is None or state.objects.version != coordinator.objects.version:
        return None
    ids = {lookup.table.id}
    if state.transaction.has_changed(ids):
        return None
    with state.interruptible():
        time = await time_of(state, ids, None)
        key = lookup.key(arguments)
        if key is None:
            return of_rows([])
        rows = await coordinator.commits.rows_of_keys(lookup.table, lookup.number, [key], time)
    if rows is None or not has_current_names(state):
        return None
    return of_rows([lookup.result(row) for row in rows])


async def read_tables(state: State, query: PlannedQuery, arguments: Sequence[Datum]) -> list[Row] | None:
    """Return the rows of a query from copies of its tables in memory; None if Storage must be read."""
    coordinator = state.coordinator
    asked = _query_of_copies(state, query)
    if asked is None or asked.tables is None or state.transaction.has_changed(asked.tables):
        return None
    with state.interruptible():
        time = await time_of(state, asked.tables, None)
        # the former owner's later commits are not noted here
        if time < coordinator.ownership.begun or not has_current_names(state):
            return None
        rows = await coordinator.commits.rows_of_tables(
            asked, time, arguments, state.most_bytes, lambda: state.is_stopped
        )
    if rows is None or not has_current_names(state):
        return None
    _logger.debug("evaluation over tables in memory: %s", asked.tables.keys())
    return rows


def _query_of_copies(state: State, query: PlannedQuery) -> TableQuery | None:
    """Return a query of tables that this process writes; None for other queries, or beside definitions."""
    coordinator = state.coordinator
    if not coordinator.ownership.is_held or state.ddl is not None:
        return None
    return coordinator.commits.residents.find(query, state.objects)


async def read(
    state: State, query: PlannedQuery, as_of: AsOf | None = None, staged: Sequence[Row] = ()
) -> AsyncIterator[Sequence[Row]]:
    """Return the rows of a query without parameters, in batches, at the time of its read.

    `staged` has the staged rows of a statement that writes.
    """
    maintained = state.coordinator.maintained
    # A function that waits, such as pg_sleep, must not occupy a thread that other statements need.
    may_wait = query.needs_context and has_effects(query.relation)
    if as_of is None and not may_wait and not ids_of(query.relation):
        ready = _rows_at_once(state, query, staged)
        if ready is not None:
            return of_rows(ready)
    with state.interruptible():
        await _await_instance(state, ids_of(query.relation))
    ids = maintained.sources(ids_of(query.relation), state.names)
    has_changed = as_of is None and state.transaction.has_changed(ids)
    asked = None if has_changed else _maintained(state.coordinator.maintained, query)
    frontiers = maintained.frontiers_of(asked.reads) if asked is not None else None
    with state.interruptible():
        least, upper = maintained.since(query.relation) or 0, frontiers[1] if frontiers else None
        time = await time_of(state, ids, as_of, least, upper, is_timed=_is_timed(state, query))
        since = maintained.since(query.relation)
        asked = None if has_changed else _maintained(state.coordinator.maintained, query)
        is_there = asked is not None and since is not None and since <= time
        is_answered = asked is not None and is_there and await _have_rows(state, asked.reads, time)
    if asked is not None and query.is_of_session:
        asked = replace(asked, relation=oneshot.at_time(asked.relation, time))
    rows = await ask(state, asked, time) if asked is not None and is_answered else None
    if rows is not None:
        _logger.debug("read of maintained relations %s at %s", sorted(ids), time_text(time))
        return rows
    _logger.debug("evaluation over stored relations %s at %s", sorted(ids), time_text(time))
    if asked is None and has_current_names(state):
        await _check_views(state, query.relation, time)
    known = {} if as_of is not None else await _rows_by_keys(state, query, time)
    computed: Sequence[Row] = ()
    if as_of is None and not may_wait:
        query, computed = await _joined_by_key(state, query, time, known, staged, has_changes=has_changed)
    if not may_wait and known.keys() >= maintained.sources(ids_of(query.relation), state.names):
        ready = _rows_at_once(state, query, staged, known, time, computed, has_changes=has_changed)
        if ready is not None:
            return of_rows(ready)
    rows_then = rows_at(state, query, time, staged=staged, known=known, computed=computed, has_changes=has_changed)
    return in_thread(rows_then, state.stop, ThreadPoolExecutor(1) if may_wait else None)


async def _rows_by_keys(state: State, query: PlannedQuery, time: int) -> dict[GlobalId, list[Row]]:
    """Return the rows of the tables of which a query needs the rows of some keys, from the indexes of the keys."""
    coordinator = state.coordinator
    sources = coordinator.maintained.sources(ids_of(query.relation), state.names)
    if not (has_current_names(state) and any(coordinator.commits.keys.keyed(sources))):
        return {}
    known = {}
    relation = coordinator.maintained.expanded(query.relation, state.names)
    for identifier, bounds in bounds_of((relation, query.finishing)).items():
        rows = await coordinator.commits.rows_within(identifier, bounds, time) if bounds else None
        if rows is not None:
            known[identifier] = rows
    return known if has_current_names(state) else {}


_MOST_JOINED = 50_000
"""Greatest number of updates of stored tables from which the rows of a join's side are computed first."""


async def _joined_by_key(
    state: State,
    query: PlannedQuery,
    time: int,
    known: dict[GlobalId, list[Row]],
    staged: Sequence[Row],
    *,
    has_changes: bool,
) -> tuple[PlannedQuery, Sequence[Row]]:
    """Compute the rows that a table is joined with by a key, and add their partners to `known`.

    Returns:
        The query over the computed rows, and these rows; the same query without such a join, or with many rows.
    """
    coordinator = state.coordinator
    keys = coordinator.commits.keys
    sources = coordinator.maintained.sources(ids_of(query.relation), state.names)
    if not (has_current_names(state) and any(keys.keyed(sources))):
        return query, ()
    relation = coordinator.maintained.expanded(query.relation, state.names)
    join = keyed_joins.find(relation, lambda identifier: next(iter(keys.keyed([identifier])), None))
    if join is None or join.table.id in known:
        return query, ()
    stored = ids_of(join.source) - known.keys()
    if not stored <= state.objects.items.keys() or coordinator.store.tables.updates_of(stored) > _MOST_JOINED:
        return query, ()
    finishing = Finishing((), None, 0, tuple(range(len(join.source.types))))
    source = replace(query, relation=join.source, finishing=finishing)
    rows = _rows_at_once(state, source, staged, known, time, has_changes=has_changes) if not stored else None
    if rows is None:
        batches = rows_at(state, source, time, staged=staged, known=known, has_changes=has_changes)
        rows = [row async for batch in in_thread(batches, state.stop) for row in batch]
    partners = await coordinator.commits.rows_of_keys(join.table, join.number, join.keys(rows), time)
    if partners is not None and has_current_names(state):
        known[join.table.id] = partners
    return replace(query, relation=join.over_computed(relation)), rows


def _rows_at_once(
    state: State,
    query: PlannedQuery,
    staged: Sequence[Row],
    known: Mapping[GlobalId, Sequence[Row]] = MappingProxyType({}),
    time: int = 0,
    computed: Sequence[Row] = (),
    *,
    has_changes: bool = False,
) -> list[Row] | None:
    """Return the rows of a query that reads nothing from Storage; None if it is too slow for the event loop."""
    if _LONG.get(id(query.relation)) is query.relation:
        return None
    end = thread_time() + _PROMPT_SECONDS
    try:
        batches = rows_at(
            state,
            query,
            time,
            lambda: thread_time() > end,
            staged=staged,
            known=known,
            computed=computed,
            has_changes=has_changes,
        )
        return [row for batch in batches for row in batch]
    except SqlError as error:
        if error.sqlstate != "57014":
            raise
        _LONG.put(id(query.relation), query.relation)
        return None


def _maintained(maintained: Maintained, query: PlannedQuery) -> Query | None:
    """Return a query over maintained relations; None if the instance cannot answer the query."""
    return None if query.needs_context else maintained.query(query.relation, query.finishing)


def _is_timed(state: State, query: PlannedQuery) -> bool:
    """Return whether the rows of a query depend on the time of its read."""
    is_read_at = query.is_of_session and mentions(query.relation, is_read_time)
    return is_read_at or state.objects.are_timed(ids_of(query.relation))


async def _check_views(state: State, relation: Relation, time: int) -> None:
    """Raise the errors of maintained views beside other relations, because evaluation might not raise them.

    Raises:
        SqlError: a view has an error.
    """
    maintained, items = state.coordinator.maintained, state.objects.items
    for identifier in sorted(ids_of(relation)):
        item = items.get(identifier)
        if item is None or item.kind not in {ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW}:
            continue
        nothing = Finishing((), 0, 0, (0,))
        asked = maintained.query(Get(identifier, tuple(column.type for column in item.columns)), nothing)
        frontiers = maintained.frontiers_of(asked.reads) if asked is not None else None
        if asked is None or frontiers is None or frontiers[0] > time:
            continue
        with state.interruptible():
            is_answered = await _is_known(state.coordinator, asked.reads, time)
        if is_answered:
            await ask(state, asked, time)


async def _await_instance(state: State, ids: frozenset[GlobalId]) -> None:
    """After a start of the server, wait for an instance to report, if all relations of a query are maintained."""
    coordinator = state.coordinator
    while coordinator.computing.is_awaited and coordinator.maintenance.failure is None:
        commit = coordinator.watcher.next
        if not (ids and state.objects.are_maintained(ids) and coordinator.computing.is_awaited):
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(commit.wait(), _PATIENCE_SECONDS)


async def _is_known(coordinator: Coordinator, places: Collection[GlobalId], time: int) -> bool:
    """Wait until maintained relations are complete at a time; return False if their maintenance fails."""
    is_awake = False
    while coordinator.maintenance.failure is None:
        commit = coordinator.watcher.next
        try:
            if coordinator.maintained.upper_of(places) > time:
                return True
        except FlowError:
            return False
        if not is_awake:  # the seal of a source for this query wakes no instance
            is_awake = True
            coordinator.store.changes.wake()
        with suppress(TimeoutError):
            await asyncio.wait_for(commit.wait(), _PATIENCE_SECONDS)
    return False


async def _have_rows(state: State, places: Collection[GlobalId], time: int) -> bool:
    """Wait until dataflows are complete at the time of a read; return False if they have other definitions then."""
    return await _is_known(state.coordinator, places, time) and await has_same_dataflows(state, places)


def rows_at(
    state: State,
    query: PlannedQuery,
    time: int,
    cancelled: Callable[[], bool] | None = None,
    *,
    staged: Sequence[Row] = (),
    known: Mapping[GlobalId, Sequence[Row]] = MappingProxyType({}),
    computed: Sequence[Row] = (),
    has_changes: bool = False,
) -> Iterator[list[Row]]:
    """Return the rows of a query at a time, evaluated from Storage.

    Args:
        state: state of the session.
        query: the query.
        time: time of the read; 0 if nothing stored is read.
        cancelled: returns whether the query is cancelled; by default, whether the statement is.
        staged: staged rows of a statement that writes.
        known: all needed rows of some tables at the time.
        computed: rows of the relation `COMPUTED`.
        has_changes: whether to include the changes of the transaction.
    """
    coordinator = state.coordinator
    begun: dict[GlobalId, Sequence[Row]] = {STAGED: staged, COMPUTED: computed}
    ids = ids_of(query.relation)
    begun.update((id_, state.transaction.rows(id_)) for id_ in ids if is_provisional(id_))
    relation = coordinator.maintained.expanded(query.relation, state.names)
    read = types_read(relation)
    if query.is_of_session or not ids <= read.keys():  # only views have `mz_now()` otherwise
        relation = oneshot.at_time(relation, time or state.transaction.begun)
    bounds = bounds_of((relation, query.finishing))
    stored = {id_: types for id_, types in read.items() if id_ not in begun and id_ < FIRST_SYSTEM_ID}
    changed = {id_: dict(state.transaction.changes(id_)) for id_ in stored} if has_changes else {}
    sources = _sources(coordinator, stored, state.names)
    catalog = snapshot_of(state.objects) if query.needs_context else None
    read_on = [source for identifier, source in sources.items() if identifier not in known]
    progress = state.reads.begin(coordinator.store, read_on) if state.reads is not None else _unwatched

    def contents(identifier: GlobalId, desired: Collection[int]) -> Iterator[list[Row]]:
        if identifier in begun:
            return iter((list(begun[identifier]),))
        if catalog is not None and identifier >= FIRST_SYSTEM_ID:
            return iter((catalog.rows(identifier, lambda: facts_of(state)),))
        changes = changed.get(identifier)
        if identifier in known:
            batches: Iterator[list[Row]] = iter((list(known[identifier]),))
        else:
            source, bound = sources[identifier], bounds.get(identifier)
            needed = None if changes else desired
            batches = contents_at(coordinator.store, source, time, needed, bound, progress)
            if isinstance(source, Table):
                batches = _unless_dropped(coordinator, identifier, batches)
        return _with_changes(batches, changes) if changes else batches

    is_over = cancelled or (lambda: state.is_stopped)
    rows = oneshot.evaluate(relation, query.finishing, contents, state.most_bytes, is_over)
    if catalog is None:
        return rows
    return each_in_context(context_of(state, UserCatalog(catalog, state.user.name)), rows)


def _unwatched(_: int) -> None:
    """Ignore the progress of a read."""


def _unless_dropped(
    coordinator: Coordinator, identifier: GlobalId, batches: Iterator[list[Row]]
) -> Iterator[list[Row]]:
    """Yield the rows of a table or view.

    Raises:
        SqlError: another session has dropped it (42P01), or its history at the time was lost meanwhile (40001).
    """
    try:
        yield from batches
    except (FrontierError, UsageError) as error:
        if (name := coordinator.dropped(identifier)) is not None:
            raise SqlError("42P01", f"relation {name} was dropped") from error
        message = f"could not serialize access: {error.message}"
        raise SqlError("40001", message, hint="Run the statement again.") from error


def _with_changes(batches: Iterator[list[Row]], changes: Mapping[Row, int]) -> Iterator[list[Row]]:
    """Yield complete rows of a table, with changes of their counts."""
    deleted = {row: -count for row, count in changes.items() if count < 0}
    for batch in batches:
        if not deleted:
            yield batch
            continue
        kept = []
        for row in batch:
            if deleted.get(row, 0) > 0:
                deleted[row] -= 1
            else:
                kept.append(row)
        yield kept
    yield [row for row, count in changes.items() for _ in range(count)]


def _sources(
    coordinator: Coordinator, read: Mapping[GlobalId, tuple[Type, ...]], names: Objects
) -> dict[GlobalId, Source]:
    """Return relations in Storage, with the names of the read.

    Raises:
        SqlError: the columns of a table have changed since the query was planned (40001).
    """
    sources = {identifier: coordinator.source(identifier, names) for identifier in read}
    for identifier, types in read.items():
        if tuple(column.type for column in columns_of(sources[identifier])) != types:
            message = "could not serialize access: another session has altered a table that the statement reads"
            raise SqlError("40001", message, hint="Run the statement again.")
    return sources
