"""INSERT, UPDATE, DELETE and TRUNCATE; COPY, for rows of a query to a client, and of a client into a table.

The rows that a statement deletes and inserts are computed in up to three steps, and checked. The query of the statement
gives staged rows. Identity columns get their numbers, and the completion computes generated columns, RETURNING and
checks from the staged rows. ON CONFLICT looks up the rows with the same keys, and computes the rows that replace them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from derive.algebra.expression import Literal, Parameter
from derive.algebra.relation import Constant, Get, GlobalId, Project, Relation
from derive.algebra.rewrite import with_gets
from derive.algebra.types import Datum, Row
from derive.compute import oneshot
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.recently_used import MOST_CHARACTERS
from derive.sql.catalog.items import is_provisional
from derive.sql.copy_format import BinaryCopyIn, CopyIn, copy_out
from derive.sql.execution import foreign_keys, query, subscribe
from derive.sql.execution import query as reading
from derive.sql.execution.alter_table import add_change, numbered
from derive.sql.execution.read_names import OutdatedPlanError
from derive.sql.execution.read_time import time_of, with_arguments
from derive.sql.execution.staged_rows import completed, over_staged
from derive.sql.execution.state import State
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import Copy, SelectStatement, Subscribe
from derive.sql.planner.ddl import copied_columns, copied_table
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.dml import default_of, plan_completion
from derive.sql.planner.interfaces import NamedRelation
from derive.sql.planner.planned import (
    NewRows,
    PlannedColumn,
    PlannedQuery,
    PlannedWithWrites,
    PlannedWrite,
    WriteKind,
    Written,
    in_session,
    returned_id,
)
from derive.sql.planner.with_writes import reads_of
from derive.sql.preparation import Plan, result_columns
from derive.sql.results import Result, in_thread, of_rows
from derive.sql.transactions.group_commit import Shape, shape_of
from derive.sql.transactions.key_index import KeyChanges, KeyPacker
from derive.sql.transactions.writes import ChangedRows, InsertedRows, Write, tables_of


def bound_write(state: State, planned: PlannedWrite, arguments: Sequence[Datum]) -> PlannedWrite:
    """Return a planned write with its arguments and session values bound."""
    planned = _partly_bound(state, planned, arguments)
    return replace(planned, query=state.bound(planned.query, arguments))


def _partly_bound(state: State, planned: PlannedWrite, arguments: Sequence[Datum]) -> PlannedWrite:
    """Return a planned write that is bound except for its query."""
    completion, conflict = planned.completion, planned.conflict
    if conflict is not None and conflict.update is not None:
        conflict = replace(conflict, update=state.bound(conflict.update, arguments))
    if completion is not None:
        completion = state.bound(completion, arguments)
    if completion is None and conflict is None:
        return planned
    return replace(planned, completion=completion, conflict=conflict)


async def written_rows(
    state: State,
    planned: PlannedWrite,
    *,
    is_short: bool,
    is_alone: bool,
    given: Sequence[Row] | None = None,
    arguments: Sequence[Datum] | None = None,
) -> Sequence[Written]:
    """Return the rows that a bound write deletes and inserts.

    Args:
        state: state of the session.
        planned: the write.
        is_short: whether the query may run on the event loop.
        is_alone: whether the caller excludes other writers of tables.
        given: staged rows that the query reads; None if it reads none.
        arguments: arguments of the query, which is not bound, and which tables in memory may answer; None if it is
            bound.
    """
    if given is not None:
        rows = await over_staged(state, planned.query, given)
    else:
        ready = None if arguments is None else await reading.read_tables(state, planned.query, arguments)
        if ready is None:
            query = planned.query if arguments is None else state.bound(planned.query, arguments)
            ready = await _evaluated(state, query, is_short=is_short)
        rows = ready
    if planned.completion is not None:
        rows = await completed(state, planned, rows)
    planned.check(rows)
    parts = planned.parts(rows)
    if planned.conflict is None:
        return parts
    if is_alone:
        return await _without_conflicts(state, planned, parts)
    async with state.coordinator.commits.exclusive():
        return await _without_conflicts(state, planned, parts)


async def _evaluated(state: State, query: PlannedQuery, *, is_short: bool) -> list[Row]:
    """Return the rows of the query of a write."""
    rows: list[Row] = []
    if ids_of(query.relation) or query.needs_context:
        batches = await reading.read(state, query)
    else:
        if is_short:
            try:  # Long work is restarted in a thread; this is cheaper than a thread for each statement.
                return [row for batch in _computed(state, query, lambda: True) for row in batch]
            except SqlError as error:
                if error.sqlstate != "57014":
                    raise
        batches = in_thread(_computed(state, query, lambda: state.is_stopped), state.stop)
    try:
        async for batch in batches:
            rows += batch
            await asyncio.sleep(0)
    except SqlError as error:
        if error.sqlstate == "57014":
            state.check_stopped()  # raises the reason of the cancellation
        raise
    return rows


def _computed(state: State, query: PlannedQuery, is_over: Callable[[], bool]) -> Iterator[list[Row]]:
    """Return the rows of a query that reads no relations."""
    relation = query.relation
    if query.is_of_session:
        relation = oneshot.at_time(relation, state.transaction.begun)
    return oneshot.evaluate(relation, query.finishing, lambda *_: iter(()), state.most_bytes, is_over)


# Conflicts of keys


async def _without_conflicts(state: State, planned: PlannedWrite, proposed: Sequence[Written]) -> Sequence[Written]:
    """Return the inserted rows without conflicts, and the rows updated by DO UPDATE; other writers are excluded."""
    assert planned.conflict is not None
    table, update = planned.table, planned.conflict.update
    present = await _PresentRows.read(state, table)
    keys = list(table.keys)
    numbers = [keys.index(key) for key in planned.conflict.arbiters] or list(range(len(keys)))
    existing = await present.of(numbers, proposed)
    packers = [KeyPacker(table, key) for key in keys]
    inserted: set[tuple[int, bytes]] = set()
    written: list[Written | None] = []
    """The inserted rows, and None for each row that may be updated."""
    conflicts: list[_Conflict] = []
    for part in proposed:
        new = part[1]
        assert new is not None
        own = _keys_of(new, packers, numbers)
        old = next((existing[key] for key in own if key in existing), None)
        if old is None and inserted.isdisjoint(own):
            written.append(part)
            inserted.update(own)
        elif update is not None and old is not None:
            conflicts.append(_Conflict(old, new, frozenset(_keys_of(old, packers, numbers)), len(written)))
            written.append(None)
        elif update is not None:
            raise _second_update()
    while conflicts:
        for place, updated in (await _updated(state, planned, conflicts)).items():
            written[place] = updated
        modified = {key for conflict in conflicts if written[conflict.place] is not None for key in conflict.keys}
        conflicts = _repeated(conflicts)
        if any(not modified.isdisjoint(conflict.keys) for conflict in conflicts):
            raise _second_update()
    return [part for part in written if part is not None]


@dataclass(frozen=True, slots=True)
class _Conflict:
    """A present row, the proposed row with one of its keys, the present row's keys, and the place of the update."""

    old: Row
    new: Row
    keys: frozenset[tuple[int, bytes]]
    place: int


def _repeated(conflicts: Sequence[_Conflict]) -> list[_Conflict]:
    """Return the conflicts with a present row that an earlier conflict has, too."""
    first: dict[frozenset[tuple[int, bytes]], _Conflict] = {}
    return [conflict for conflict in conflicts if first.setdefault(conflict.keys, conflict) is not conflict]


async def _updated(state: State, planned: PlannedWrite, conflicts: Sequence[_Conflict]) -> dict[int, Written]:
    """Return the updates of the present rows by their places; only the first conflict of a row is considered."""
    assert planned.conflict is not None
    assert planned.conflict.update is not None
    later = {conflict.place for conflict in _repeated(conflicts)}
    firsts = [conflict for conflict in conflicts if conflict.place not in later]
    rows = await over_staged(state, planned.conflict.update, [(*one.old, *one.new) for one in firsts])
    planned.check(rows, WriteKind.UPDATE)
    places = {one.old: one.place for one in firsts}
    return {places[part[0]]: part for part in planned.parts(rows, WriteKind.UPDATE) if part[0] is not None}


def _second_update() -> SqlError:
    hint = "Ensure that no rows proposed for insertion within the same command have duplicate constrained values."
    return SqlError("21000", "ON CONFLICT DO UPDATE command cannot affect row a second time", hint=hint)


def _keys_of(row: Row, packers: Sequence[KeyPacker], numbers: Iterable[int]) -> list[tuple[int, bytes]]:
    """Return number and value of those keys of a row that are not NULL."""
    return [(number, key) for number in numbers if (key := packers[number](row)) is not None]


class _PresentRows:
    """The rows of a table as a transaction sees them, by keys."""

    def __init__(self, state: State, table: NamedRelation, changes: KeyChanges) -> None:
        self._state, self._table, self._changes = state, table, changes

    @classmethod
    async def read(cls, state: State, table: NamedRelation) -> _PresentRows:
        """Read a table, while other writers are excluded.

        Raises:
            SqlError: the transaction reads at an earlier time, and the table was written since then (40001).
        """
        coordinator, transaction = state.coordinator, state.transaction
        if not is_provisional(table.id):
            await time_of(state, [table.id], None)
            basis = transaction.latest_basis([table.id])
            if basis is not None:
                coordinator.commits.check_unwritten(basis)
            await coordinator.commits.load_keys_alone(coordinator.commits.keys.keyed([table.id]))
        return cls(state, table, transaction.key_changes(table))

    async def of(self, numbers: Iterable[int], parts: Sequence[Written]) -> dict[tuple[int, bytes], Row]:
        """Return the present rows that have the keys of new rows, by number and value of the key."""
        index = self._state.coordinator.commits.keys
        rows: dict[tuple[int, bytes], Row] = {}
        for number in numbers:
            packer = KeyPacker(self._table, self._table.keys[number])
            keys = {key for _, new, _ in parts if new is not None and (key := packer(new)) is not None}
            committed = await index.rows(self._table, number, keys)
            for key in keys:
                if (key in committed) + self._changes.count(number, key) > 0:
                    own = self._changes.row(number, key)
                    rows[number, key] = committed[key] if own is None else own
        return rows


async def check_keys(state: State, table: NamedRelation, writes: Sequence[Write]) -> None:
    """Check that the keys of a table stay unique after writes of the transaction, which are not added yet.

    An error in an explicit transaction is a read of the table, because the client learns that a row exists.

    Raises:
        SqlError: two rows would have one key (23505), or a row was written after the reads of the transaction (40001).
    """
    if not table.keys:
        return
    commits, transaction = state.coordinator.commits, state.transaction
    changes = KeyChanges(table)
    changes.add_writes(writes)
    await commits.load_keys([table.id])
    violation = await commits.keys.violation(changes, transaction.key_changes(table))
    if violation is None:
        return
    if state.is_explicit and not is_provisional(table.id):
        async with commits.exclusive():
            await _PresentRows.read(state, table)
            violation = await commits.keys.violation(changes, transaction.key_changes(table))
    if violation is not None:
        raise violation


_MOST_TRIES = 3
"""Greatest number of attempts of a statement; the last attempt excludes other writers."""

Evaluation: TypeAlias = Callable[[bool], Awaitable[tuple[list[Sequence[Written]], Sequence[Write]]]]
"""A function that evaluates the rows of each statement, and returns them with the writes.

Its argument is whether other writers are excluded.
"""


async def write(state: State, plan: Plan, arguments: Sequence[Datum]) -> Result:
    """Execute a statement that writes tables; a short statement may run on the event loop."""
    is_short = len(plan.text) <= MOST_CHARACTERS
    if plan.writes is not None:
        result = await _with_writes(state, plan.writes, arguments, is_short=is_short)
    elif plan.write is not None and plan.rows is None and (row := _plain_row(plan.write, arguments)) is not None:
        result = await _insert_row(state, plan.write, row, arguments)
    else:
        assert plan.write is not None
        unbound = arguments if is_short and plan.rows is None else None
        bind = bound_write if unbound is None else _partly_bound
        bound = bind(state, plan.write, arguments)
        rows = await _written(state, [bound], is_short=is_short, given=plan.rows, arguments=unbound)
        result = _result(plan.write, rows[0], plan.zone)
    # Without an open transaction, the write is committed already.
    return replace(result, has_happened=not (state.is_explicit or state.transaction.has_written))


def _plain_row(planned: PlannedWrite, arguments: Sequence[Datum]) -> Row | None:
    """Return the row of an INSERT of one row of parameters and literals; None for other writes."""
    parts = _plain_parts(planned)
    return None if parts is None else _row_of(parts, arguments)


def _row_of(parts: Sequence[Literal | Parameter], arguments: Sequence[Datum]) -> Row:
    return tuple([part.value if isinstance(part, Literal) else arguments[part.index] for part in parts])


def _plain_parts(planned: PlannedWrite) -> Sequence[Literal | Parameter] | None:
    """Return the values of an INSERT of one row of parameters and literals; None for other writes."""
    relation = planned.query.relation
    is_plain = planned.kind is WriteKind.INSERT and planned.completion is None and planned.conflict is None
    if not is_plain or planned.returning is not None or len(relation.types) != len(planned.table.columns):
        return None
    match relation:
        case Project(input=Constant(rows=((),)), expressions=expressions):
            parts = [part for part in expressions if isinstance(part, Literal | Parameter)]
            return parts if len(parts) == len(expressions) else None
    return None


class RowInsert:
    """The execution of an INSERT of one row into a table without keys, without awaiting.

    Args:
        plan: plan of the statement.
        planned: its write.
        parts: values of the row.
    """

    def __init__(self, plan: Plan, planned: PlannedWrite, parts: Sequence[Literal | Parameter]) -> None:
        self._plan, self._planned, self._parts = plan, planned, parts
        table = planned.table
        self._is_checked = bool(table.checks) or not all(column.is_nullable for column in table.columns)
        self._result = _result(planned, NewRows([()]), None)

    def is_possible(self, state: State) -> bool:
        """Return whether the statement can be executed now."""
        return not state.is_failed and self._plan.version == state.objects.version and not state.objects.references

    def execute(self, state: State, arguments: Sequence[Datum]) -> Result:
        """Execute the statement."""
        planned = self._planned
        row = _row_of(self._parts, arguments)
        state.transaction.check_writable()
        state.coordinator.own()
        if self._is_checked:
            planned.check([row])
        state.transaction.write(InsertedRows(planned.table.id, [row]), _committed(state, planned.table))
        return self._result


def row_insert(plan: Plan) -> RowInsert | None:
    """Return the execution of an INSERT of one row without awaiting; None for other statements."""
    planned = plan.write
    if planned is None or plan.writes is not None or plan.rows is not None or planned.table.keys:
        return None
    parts = _plain_parts(planned)
    return None if parts is None else RowInsert(plan, planned, parts)


async def _insert_row(state: State, planned: PlannedWrite, row: Row, arguments: Sequence[Datum]) -> Result:
    """Execute an INSERT of a row, which needs no evaluation."""
    if state.objects.references:  # foreign keys
        bound = bound_write(state, planned, arguments)
        return _result(planned, (await _written(state, [bound], is_short=True))[0], None)
    state.transaction.check_writable()
    state.coordinator.own()
    planned.check([row])
    writes = InsertedRows(planned.table.id, [row])
    await check_keys(state, planned.table, writes)
    state.transaction.write(writes, _committed(state, planned.table))
    return _result(planned, NewRows([row]), None)


async def _with_writes(
    state: State, planned: PlannedWithWrites, arguments: Sequence[Datum], *, is_short: bool
) -> Result:
    """Execute the writes of a WITH clause and the main statement; all read the rows from before the statement."""
    main = planned.main
    tables = [bound_write(state, table, arguments) for table in planned.writes]
    selected: list[Row] = []
    query = None
    if isinstance(main, PlannedWrite):
        tables.append(bound_write(state, main, arguments))
    else:
        query = state.bound(main, arguments)

    reads = reads_of(planned)
    ids = state.coordinator.maintained.sources(reads)
    _check_one_snapshot(state, ids)

    async def evaluated(is_alone: bool) -> tuple[list[Sequence[Written]], Sequence[Write]]:
        histories = state.coordinator.commits.histories(
            [identifier for identifier in ids if not is_provisional(identifier)]
        )
        returned: dict[GlobalId, Relation] = {}

        def rows_of(get: Get) -> Relation:
            return returned.get(get.id, get)

        rows, writes = list[Sequence[Written]](), list[Write]()
        for number, table in enumerate(tables):
            written = await written_rows(state, table.over(rows_of), is_short=is_short, is_alone=is_alone)
            columns = table.returning or ()
            types, modifiers = tuple(column.type for column in columns), tuple(column.modifier for column in columns)
            returned[returned_id(number)] = Constant(tuple(part[2] for part in written), types, modifiers)
            rows.append(written)
            writes += _writes(table.table, written)
        if query is not None:
            selected[:] = await _evaluated(state, with_gets(query, rows_of), is_short=is_short)
        state.coordinator.commits.check_histories(histories)
        return rows, writes

    rows = await _written_in_one(state, tables, evaluated, reads)
    if isinstance(main, PlannedWrite):
        return _result(main, rows[-1], state.objects.zone)
    return Result(lambda count: f"SELECT {count}", result_columns(main.columns, state.objects.zone), of_rows(selected))


def _check_one_snapshot(state: State, ids: frozenset[GlobalId]) -> None:
    """Check that all parts of a statement read the same rows.

    In a transaction block, all reads have one time. Otherwise each read has its own time, and only writers of tables
    are excluded in between.

    Raises:
        SqlError: the statement reads a collection outside of a transaction block (0A000).
    """
    is_changing = state.transaction.has_written or state.objects.is_written_by_others(ids)
    if ids and is_changing and not state.is_explicit:
        message = "WITH that writes, and reads collections, is supported in transaction blocks only"
        raise SqlError("0A000", message, hint="Send BEGIN before the statement, and COMMIT after it.")


async def truncate(state: State, planned: Sequence[PlannedWrite], *, restarts: bool) -> Result:
    """Execute TRUNCATE: delete all rows of some tables, and let their counters begin again if `restarts`."""
    tables = {table.table.id: table for table in planned}
    for table, _ in foreign_keys.referring_elsewhere(state.objects, tables.keys()):
        message = "cannot truncate a table referenced in a foreign key constraint"
        detail = f'Table "{table.name}" references a truncated table.'
        raise SqlError("0A000", message, detail=detail, hint=f'Truncate table "{table.name}" at the same time.')
    await _written(state, list(tables.values()), is_short=True)
    counters = [column.counter for table in tables.values() for column in table.table.columns if column.identity]
    if restarts and counters and state.is_explicit:
        for item in [state.objects.items[identifier] for identifier in tables]:
            columns = await numbered(state, [replace(column, counter=0) for column in item.columns])
            add_change(state, replace(item, columns=columns))  # new counters, which ROLLBACK forgets
    elif restarts:
        for counter in counters:
            await state.coordinator.counters.restart(counter)
    return Result(lambda _: "TRUNCATE TABLE")


async def _written(
    state: State,
    planned: Sequence[PlannedWrite],
    *,
    is_short: bool,
    given: Sequence[Row] | None = None,
    arguments: Sequence[Datum] | None = None,
) -> list[Sequence[Written]]:
    """Write tables by bound statements, and return the rows of each statement; see `written_rows`."""

    async def evaluated(is_alone: bool) -> tuple[list[Sequence[Written]], Sequence[Write]]:
        rows = [
            await written_rows(state, table, is_short=is_short, is_alone=is_alone, given=given, arguments=arguments)
            for table in planned
        ]
        parts = zip(planned, rows, strict=True)
        writes = [_writes(table.table, written) for table, written in parts]
        return rows, writes[0] if len(writes) == 1 else list(chain.from_iterable(writes))

    return await _written_in_one(state, planned, evaluated, frozenset().union(*(table.reads for table in planned)))


async def _written_in_one(
    state: State, planned: Sequence[PlannedWrite], evaluated: Evaluation, reads: frozenset[GlobalId]
) -> list[Sequence[Written]]:
    """Write tables in one transaction, and return the rows of each statement; `reads` are the relations read."""
    coordinator, names = state.coordinator, state.objects
    state.transaction.check_writable()
    coordinator.own()
    checked = foreign_keys.tables_read(names, {table.table.id for table in planned})
    if checked:
        evaluated = _with_foreign_keys(state, planned, evaluated)
    ids = coordinator.maintained.sources(reads | checked)
    if ids and not state.is_explicit and not state.transaction.has_written:
        with state.interruptible():
            # before the exclusion of other writers, including source feeders
            await coordinator.source_feeder.begun(ids)
            await coordinator.commits.load_keys([table.table.id for table in planned])
            shapes = {one.table.id: shape_of(one.table, names.references.get(one.table.id, ())) for one in planned}
            others = (names.described(identifier) for identifier in checked)
            shapes |= {table.id: shape_of(table) for table in others if table is not None}
            rows = await _by_itself(state, evaluated, ids, shapes)
    else:
        rows, writes = await evaluated(False)
        written = {table.table.id: table.table for table in planned}
        for identifier in dict.fromkeys(write[0] for write in writes):
            changed = written.get(identifier) or names.described(identifier)
            assert changed is not None
            written[identifier] = changed  # also the tables that foreign keys have changed
            await check_keys(state, changed, writes)
        state.transaction.write(writes)
        base = state.ddl.base if state.ddl else names
        deletes = not isinstance(writes, InsertedRows) and any(change < 0 for _, _, change in writes)
        for table in written.values():
            referring = base.references.get(table.id, ()) if deletes else None
            state.transaction.write((), _committed(state, table), referring)
    return rows


def _committed(state: State, table: NamedRelation) -> NamedRelation:
    """Return a table as it was before the definitions of the transaction, whose COMMIT finds changes by others."""
    before = state.ddl.base.described(table.id) if state.ddl else None
    return before or table


def _with_foreign_keys(state: State, planned: Sequence[PlannedWrite], evaluated: Evaluation) -> Evaluation:
    """Return an evaluation that also checks foreign keys, and adds the writes that deletions cause."""

    async def checked(is_alone: bool) -> tuple[list[Sequence[Written]], Sequence[Write]]:
        rows, writes = await evaluated(is_alone)
        parts = ((table.table.id, part) for table, written in zip(planned, rows, strict=True) for part in written)
        updated = {(table, old): new for table, (old, new, _) in parts if old is not None and new is not None}
        try:
            return rows, await foreign_keys.enforced(state, writes, updated)
        except SqlError:
            for table in planned:  # as in PostgreSQL, a repeated key is reported before a missing one
                await check_keys(state, table.table, writes)
            raise

    return checked


async def _by_itself(
    state: State, evaluated: Evaluation, ids: Collection[GlobalId], shapes: Mapping[GlobalId, Shape]
) -> list[Sequence[Written]]:
    """Read and write in one transaction; retry if other writers have changed the relations that it reads."""
    tries = 0
    while True:
        tries += 1
        try:
            is_last = tries == _MOST_TRIES
            alone = state.coordinator.timeline.alone() if is_last else nullcontext()
            async with state.coordinator.commits.exclusive() as commit, alone:
                rows, writes = await evaluated(True)
                emptied = state.temporary_tables("delete")
                if not tables_of(writes).isdisjoint(emptied):
                    writes = [write for write in writes if write[0] not in emptied]
                if writes:
                    await commit(writes, state.transaction.latest_basis(ids), shapes=shapes)
            return rows
        except OutdatedPlanError:
            raise
        except SqlError as error:
            if error.sqlstate != "40001" or is_last:
                raise


def _writes(table: NamedRelation, parts: Sequence[Written]) -> Sequence[Write]:
    """Return the writes of a statement's rows."""
    if type(parts) is NewRows:
        return InsertedRows(table.id, parts.rows)
    if all(old is None for old, _, _ in parts):
        return InsertedRows(table.id, [new for _, new, _ in parts if new is not None])
    if all(new is None for _, new, _ in parts):
        removed = [old for old, _, _ in parts if old is not None]
        return ChangedRows(table.id, removed, [-1] * len(removed))
    rows, diffs = list[Row](), list[int]()
    for old, new, _ in parts:
        if old != new:
            for row, diff in ((old, -1), (new, 1)):
                if row is not None:
                    rows.append(row)
                    diffs.append(diff)
    return ChangedRows(table.id, rows, diffs)


def _result(planned: PlannedWrite, rows: Sequence[Written], zone: str | None) -> Result:
    count = len(rows)
    prefix = "INSERT 0" if planned.kind is WriteKind.INSERT else planned.kind.value

    def tag(_: int) -> str:
        return f"{prefix} {count}"

    if planned.returning is None:
        return Result(tag)
    returned = [part[2] for part in rows]
    return Result(tag, result_columns(planned.returning, zone), of_rows(returned))


async def copy_to(state: State, plan: Plan, statement: Copy, arguments: Sequence[Datum]) -> Result:
    """Execute `COPY … TO STDOUT`."""
    columns = plan.columns or ()
    writer = copy_out(statement.format, columns)
    if isinstance(statement.source, Subscribe):
        assert plan.view is not None
        rows = await subscribe.updates(state, plan.view, statement.source)
    else:
        assert plan.query is not None
        as_of = statement.source.as_of if isinstance(statement.source, SelectStatement) else None
        as_of = with_arguments(state.objects, as_of, plan.query.parameters, arguments)
        rows = await query.read(state, state.bound(plan.query, arguments, as_of), as_of)
        rows = rows if columns else query.without_columns(rows)
    is_prompt = isinstance(statement.source, Subscribe)
    return Result(lambda count: f"COPY {count}", columns, rows, copy_out=writer, is_prompt=is_prompt)


_COPIED, _SHORT = 1 << 19, 1 << 14
"""Number of copied bytes that are converted together, and that are converted on the event loop."""


def copy_from(state: State, statement: Copy) -> Result:
    """Execute `COPY … FROM STDIN`."""
    assert isinstance(statement.source, QualifiedName)
    state.transaction.check_writable()
    state.coordinator.own()
    table = copied_table(statement.source, state.objects)
    indexes = copied_columns(table, statement.columns)
    copied = [table.columns[index] for index in indexes]
    planned = [PlannedColumn(column.name, column.type, column.modifier) for column in copied]
    columns = result_columns(planned, state.objects.zone)
    is_binary = statement.format.name == "binary"
    reader: CopyIn | BinaryCopyIn
    if is_binary:
        reader = BinaryCopyIn(table.name, columns)
    else:
        modifiers, zone = [column.modifier for column in copied], state.objects.zone
        read = [(column.name, column.type) for column in copied]
        reader = CopyIn(statement.format, table.name, read, modifiers=modifiers, zone=zone)
    add = _adding(state, table, indexes)

    async def take(pieces: AsyncIterator[bytes]) -> int:
        count = 0
        async for data in _joined(pieces):
            count += await add(await asyncio.to_thread(reader.feed, data) if len(data) > _SHORT else reader.feed(data))
        return count + await add(reader.finish())

    return Result(lambda count: f"COPY {count}", columns, copy_in=take, is_binary=is_binary)


async def _joined(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the bytes of pieces in longer pieces, which are converted in less time."""
    parts, size = list[bytes](), 0
    async for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= _COPIED:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _adding(state: State, table: NamedRelation, indexes: Sequence[int]) -> Callable[[Sequence[Row]], Awaitable[int]]:
    """Return a function that completes, checks and writes copied rows, and returns their number."""
    complete, width = _completion(state, table, indexes), len(table.columns)
    planned = plan_completion(table, state.objects)
    planned = replace(planned, completion=state.bound(planned.completion)) if planned.completion else planned

    async def add(copied: Sequence[Row]) -> int:
        if not copied:
            return 0
        rows = await completed(state, planned, complete(copied))
        planned.check(rows)
        writes = InsertedRows(table.id, [row[:width] for row in rows] if len(rows[0]) > width else rows)
        await check_keys(state, table, writes)
        state.transaction.write(await foreign_keys.enforced(state, writes), _committed(state, table))
        return len(rows)

    return add


def _completion(state: State, table: NamedRelation, indexes: Sequence[int]) -> Callable[[Sequence[Row]], list[Row]]:
    """Return a function from copied rows to staged rows, with defaults for the other columns."""
    width = len(table.columns)
    positions = {index: position for position, index in enumerate(indexes)}
    missing = [column for index, column in enumerate(table.columns) if index not in positions]
    defaults = [
        in_session(default_of(column, state.objects), state.transaction.begun, state.user.name) for column in missing
    ]
    behind = iter(range(len(indexes), width))
    order = [positions[index] if index in positions else next(behind) for index in range(width)]
    flags = tuple(
        int(index not in positions) for index, column in enumerate(table.columns) if column.identity is not None
    )

    def completed_row(row: Row) -> Row:
        values = (*row, *(value.value if isinstance(value, Literal) else evaluate(value) for value in defaults))
        return (*(values[position] for position in order), *flags)

    def complete(rows: Sequence[Row]) -> list[Row]:
        is_complete = not flags and order == list(range(len(indexes)))
        return list(rows if is_complete else map(completed_row, rows))

    return complete
