"""ALTER TABLE: the altered table with its rows, and the indexes, views and foreign keys that follow it.

Until COMMIT, a new table of the same name has the rows. What depends on the table depends on the new one from then on:
indexes are built again, views, functions and foreign keys of other tables follow a renamed column, and views and
functions must not use a column that changes otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.errors import SqlError
from derive.sql.catalog.items import Item, is_provisional
from derive.sql.catalog.renamed_columns import with_earlier_names
from derive.sql.catalog.snapshot import DdlTransaction, Objects, is_temporary, provisional_id
from derive.sql.execution.foreign_keys import check_existing
from derive.sql.execution.query import read
from derive.sql.execution.sequences import column_numbers
from derive.sql.execution.state import State
from derive.sql.parser.statement import DropColumn, DropConstraint, ObjectKind, TableAction
from derive.sql.planner.alteration import Alteration, plan_alteration
from derive.sql.planner.constraints import check_key_types
from derive.sql.planner.interfaces import Constraint, NamedColumn, NamedRelation
from derive.sql.results import Notice
from derive.sql.transactions.altered_table import keeps_identity
from derive.sql.transactions.key_index import KeyPacker, shown_key

_VIEWS = frozenset({ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW})
_FOLLOWING = _VIEWS | {ObjectKind.FUNCTION}
"""Kinds of items whose definitions may read an altered table."""


def add_change(
    state: State,
    *added: Item,
    removed: Iterable[GlobalId] = (),
    renamed: Mapping[GlobalId, str] | None = None,
) -> None:
    """Add a change to the DDL transaction of a session."""
    ddl = state.ddl or DdlTransaction(state.objects, state.objects)
    state.ddl = ddl.changed(added=added, removed=removed, renamed=renamed)


async def numbered(state: State, columns: Sequence[NamedColumn]) -> tuple[NamedColumn, ...]:
    """Return columns in which each identity column has a counter."""
    new = [column for column in columns if column.identity is not None and not column.counter]
    if not new:
        return tuple(columns)
    counters = iter(await asyncio.to_thread(state.coordinator.store.tables.new_ids, len(new)))
    return tuple(replace(column, counter=next(counters)) if column in new else column for column in columns)


def check_permanence(objects: Objects, table: NamedRelation, schema: str, offset: int | None = None) -> None:
    """Check that foreign keys of permanent tables refer to permanent tables, and those of temporary ones too."""
    for key in table.foreign_keys:
        to = key.reference
        target = objects.items.get(to.table) if to is not None else None
        if target is not None and is_temporary(target.schema) is not is_temporary(schema):
            kind = "temporary" if is_temporary(schema) else "permanent"
            message = f"constraints on {kind} tables may reference only {kind} tables"
            raise SqlError("42P16", message, offset=offset)


async def alter_table(state: State, item: Item, actions: Sequence[TableAction]) -> tuple[Notice, ...]:
    """Apply changes to a table, and return notices.

    Raises:
        SqlError: as for `plan_alteration` and `check_altered`; 2BP01, a view, a function or a foreign key needs what
            would change; 23503, a row that a new foreign key refers to is missing.
    """
    objects = state.objects
    table = objects.relation(item.id)
    assert table is not None
    planned = plan_alteration(table, actions, objects, lambda name: objects.is_taken(name, item.schema))
    notices = tuple(Notice("NOTICE", "00000", text) for text in planned.notices)
    is_same = (planned.table.columns, planned.table.constraints) == (item.columns, item.constraints)
    if is_same and not planned.converts:
        return notices
    drops = (action for action in actions if isinstance(action, DropColumn | DropConstraint))
    dependents = _Dependents(state, item, planned, is_cascading=any(action.is_cascading for action in drops))
    referring = dependents.referring()
    check_permanence(objects, planned.table, item.schema)
    _check_key_types(objects, item, planned.table)
    rows = [row async for batch in await read(state, state.bound(planned.query)) for row in batch]
    columns, rows = await _with_numbers(state, planned, rows)
    altered = replace(planned.table, columns=columns)
    await asyncio.to_thread(check_altered, None if planned.converts else table, altered, rows)
    await check_existing(state, altered, {one.name: one for one in item.constraints}, rows)
    changed = replace(item, columns=columns, constraints=altered.constraints)
    if not planned.converts and not state.is_explicit and _keeps_rows(state, item, planned.table):
        dependents.keep(changed, referring)
        return notices
    altering = item.alters if is_provisional(item.id) else item.id
    changed = replace(changed, id=provisional_id(), alters=altering)
    dependents.follow(changed, referring)
    state.transaction.write([(changed.id, row[: len(columns)], 1) for row in rows])
    return notices


class _Dependents:
    """The items that depend on an altered table.

    Args:
        state: state of the session.
        item: the table before.
        planned: the alteration.
        is_cascading: whether dependents of dropped columns and constraints are dropped, too.
    """

    def __init__(self, state: State, item: Item, planned: Alteration, *, is_cascading: bool) -> None:
        self._state, self._objects, self._item = state, state.objects, item
        self._planned, self._is_cascading = planned, is_cascading

    def referring(self) -> list[Item]:
        """Return the other tables with foreign keys to the altered table that change.

        Raises:
            SqlError: a foreign key needs a changed key or column (2BP01).
        """
        altered = self._planned.table
        keys = [set(key.columns) for key in altered.plain_keys]
        for key in altered.foreign_keys:
            to = key.reference
            if to is not None and to.table in {0, self._item.id} and set(to.columns) not in keys:
                raise self._referred(altered, key)
        changed: dict[GlobalId, Item] = {}
        for table, key in self._objects.referring(self._item.id):
            to = key.reference
            if to is None or table.id == self._item.id:
                continue
            columns = tuple(self._planned.kept.get(name, "") for name in to.columns)
            new = [replace(key, reference=replace(to, columns=columns))] if set(columns) in keys else []
            if not new and not self._is_cascading:
                raise self._referred(table, key)
            if new != [key]:
                other = changed.get(table.id, self._objects.items[table.id])
                parts = (new if one.name == key.name else [one] for one in other.constraints)
                changed[table.id] = replace(other, constraints=tuple(one for part in parts for one in part))
        return list(changed.values())

    def _referred(self, table: NamedRelation, key: Constraint) -> SqlError:
        message = f"cannot change table {self._item.name} because constraint {key.name} on table {table.name}"
        hint = f"ALTER TABLE {table.name} DROP CONSTRAINT {key.name} first, and add it again after the change."
        return SqlError("2BP01", f"{message} depends on it", hint=hint)

    def follow(self, changed: Item, referring: Sequence[Item]) -> None:
        """Add the altered table to the DDL transaction, with all that depends on it.

        Args:
            changed: the altered table, with its new identifier.
            referring: the other tables whose foreign keys change.
        """
        item, objects, ids = self._item, self._objects, {self._item.id: changed.id}
        tables = {one.id: one for one in referring}
        tables |= {
            table.id: objects.items[table.id]
            for table, _ in objects.referring(item.id)
            if table.id != item.id and table.id not in tables
        }
        indexes = [user for user in self._direct if user.kind is ObjectKind.INDEX]
        readers = [(self._with_earlier_names(user) or user).rebound(ids) for user in self._readers]
        dropped = self._dropped(changed, readers)
        added = (
            changed,
            *(table.rebound(ids) for table in tables.values()),
            *(reader for reader in readers if reader.id not in dropped),
            *(index for one in indexes if (index := self._followed(one, changed)) is not None),
        )
        add_change(self._state, *added, removed={item.id, *dropped, *(one.id for one in indexes)})

    def keep(self, changed: Item, referring: Sequence[Item]) -> None:
        """Add an altered table that keeps its identifier and its rows to the DDL transaction.

        Args:
            changed: the altered table.
            referring: the other tables whose foreign keys change.
        """
        add_change(self._state, changed, *referring, removed=self._dropped(changed, self._readers))

    @property
    def _direct(self) -> list[Item]:
        """Return the items that depend on the table directly."""
        return [user for user in self._objects.users([self._item.id]) if self._item.id in user.uses]

    @property
    def _readers(self) -> list[Item]:
        return [user for user in self._direct if user.kind is not ObjectKind.INDEX]

    def _with_earlier_names(self, reader: Item) -> Item | None:
        """Return a view or function that gives earlier names to renamed columns.

        None for a reader that takes the table as a row, whose fields would have other names.
        """
        renamed = {old: new for old, new in self._planned.names.items() if old != new}
        if not renamed or reader.kind not in _FOLLOWING:
            return reader
        columns = [column.name for column in self._item.columns]
        return with_earlier_names(reader, self._item.id, columns, renamed)

    def _dropped(self, changed: Item, readers: Sequence[Item]) -> set[GlobalId]:
        """Return the items that CASCADE drops.

        Raises:
            SqlError: there are some, without CASCADE (2BP01).
        """
        broken = self._broken(changed, readers)
        if broken and not self._is_cascading:
            depending = ", ".join(f"{user.kind.value} {user.name}" for user in broken)
            raise SqlError(
                "2BP01",
                f"cannot change table {self._item.name} because others depend on it",
                detail=f"These depend on it: {depending}.",
                hint="Drop the dependents first, and create them again after the change; one"
                " transaction can do all of this.",
            )
        return {user.id for user in (*broken, *self._objects.users([one.id for one in broken]))}

    def _followed(self, index: Item, changed: Item) -> Item | None:
        """Return an index of the altered table; None if an indexed column was dropped.

        Raises:
            SqlError: an expression of the index has no meaning for the new type of a column.
        """
        names = self._planned.names
        if not names.keys() >= set(index.indexed):
            return None
        indexed = tuple(names[name] for name in index.indexed)
        parts, condition = self._planned.renamed(index.parts, index.condition)
        return replace(index, id=provisional_id(), on=changed.id, indexed=indexed, parts=parts, condition=condition)

    def _broken(self, changed: Item, readers: Sequence[Item]) -> list[Item]:
        """Return the readers of the table that would no longer have the meaning of their creation.

        A reader may use columns that keep their type and values; views follow renamed columns.
        """
        if not readers:
            return []
        stored = self._state.coordinator.store.tables.table(changed.alters) if changed.alters is not None else None
        lost: list[Item] = []
        if changed.alters is not None and (stored is None or not keeps_identity(stored, changed)):
            # The altered table will be another one, which only queries that are not maintained can read in its place.
            lost = [reader for reader in readers if reader.kind is not ObjectKind.VIEW or self._is_maintained(reader)]
        lost += [reader for reader in readers if self._with_earlier_names(self._objects.items[reader.id]) is None]
        kept = set(self._planned.kept.values())
        usable = replace(changed, columns=tuple(column for column in changed.columns if column.name in kept))
        items = {**self._objects.items, usable.id: usable} | {reader.id: reader for reader in readers}
        if usable.id != self._item.id:
            del items[self._item.id]
        objects = self._objects.with_items(items.values())
        return [reader for reader in readers if reader in lost or not _is_valid(objects, reader)]

    def _is_maintained(self, view: Item) -> bool:
        """Return whether an index, or a materialized view, maintains rows of a view."""
        users = self._objects.users([view.id])
        return any(user.kind in {ObjectKind.INDEX, ObjectKind.MATERIALIZED_VIEW} for user in users)


def _is_valid(objects: Objects, reader: Item) -> bool:
    """Return whether the definition of a view or function can be planned."""
    try:
        if reader.kind is ObjectKind.FUNCTION:
            objects.resolved_function(reader)
        elif reader.kind in _FOLLOWING:
            objects.meaning(reader)
        else:
            return False
    except SqlError:
        return False
    return True


def _check_key_types(objects: Objects, item: Item, altered: NamedRelation) -> None:
    """Check that the foreign keys of an altered table still have the types of the keys that they refer to."""
    for key in altered.foreign_keys:
        to = key.reference
        assert to is not None
        target = altered if to.table in {0, item.id} else objects.described(to.table)
        assert target is not None
        check_key_types(altered, key.columns, target, to.columns)


def _keeps_rows(state: State, item: Item, altered: NamedRelation) -> bool:
    """Return whether an alteration of a committed table changes neither names, types nor the key of its rows."""
    stored = state.coordinator.store.tables.table(item.id)
    before = [(column.name, column.type, column.modifier) for column in item.columns]
    if stored is None or before != [(column.name, column.type, column.modifier) for column in altered.columns]:
        return False
    return keeps_identity(stored, replace(item, constraints=altered.constraints))


async def _with_numbers(
    state: State, planned: Alteration, rows: list[Row]
) -> tuple[tuple[NamedColumn, ...], list[Row]]:
    """Return columns with counters, and rows with numbers in the new columns."""
    columns = await numbered(state, planned.table.columns)
    present = set(planned.names.values())
    for index, column in enumerate(columns):
        if column.identity is not None and column.name not in present and rows:
            numbers = await column_numbers(state, planned.table.name, column, len(rows))
            rows = [(*row[:index], number, *row[index + 1 :]) for number, row in zip(numbers, rows, strict=True)]
    return columns, rows


def check_altered(before: NamedRelation | None, table: NamedRelation, rows: Sequence[Row]) -> None:
    """Check that the rows of an altered table fit its constraints.

    Args:
        before: the table before, whose rows fit its keys; None if values of columns have changed.
        table: the altered table.
        rows: its rows, with booleans for the checks.

    Raises:
        SqlError: a NOT NULL column has a NULL (23502), a check is false (23514), or two rows have one key (23505).
    """
    required = [index for index, column in enumerate(table.columns) if not column.is_nullable]
    for index in required:
        if any(row[index] is None for row in rows):
            message = f'column "{table.columns[index].name}" of relation "{table.name}" contains null values'
            raise SqlError("23502", message, violation=table.violation(column=table.columns[index].name))
    width = len(table.columns)
    for at, check in enumerate(table.checks, start=width):
        if any(row[at] is not None and not row[at] for row in rows):
            if check.domain is not None:
                raise check.domain.violation(check.name)
            message = f'check constraint "{check.name}" of relation "{table.name}" is violated by some row'
            raise SqlError("23514", message, violation=table.violation(check.name))
    for key in table.keys:
        if before is None or key not in before.constraints or before.columns != table.columns:
            _check_key(table, key, rows)


def _check_key(table: NamedRelation, key: Constraint, rows: Sequence[Row]) -> None:
    packer, seen = KeyPacker(table, key), set[bytes]()
    for row in rows:
        value = packer(row)
        if value in seen:
            message = f'could not create unique index "{key.name}"'
            detail = f"{shown_key(table, key, row)} is duplicated."
            raise SqlError("23505", message, detail=detail, violation=table.violation(key.name))
        if value is not None:
            seen.add(value)
