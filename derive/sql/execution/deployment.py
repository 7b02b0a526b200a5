"""Deployment: commits definitions and writes of a transaction together, in one commit of Storage."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from derive.algebra.relation import GlobalId
from derive.errors import FlowError, SqlError, UsageError
from derive.event_loop import settled
from derive.sql.catalog.items import Change, Item, is_provisional, items_change, position_name, stored_name
from derive.sql.catalog.snapshot import DdlTransaction
from derive.sql.coordinator import Coordinator
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.dependencies import ids_of
from derive.sql.sources.definitions import position_columns
from derive.sql.transactions.altered_table import altered_table, stored_column
from derive.sql.transactions.group_commit import Commit
from derive.sql.transactions.writes import ChangedRows, InsertedRows, Write, tables_of
from derive.storage.metadata.definitions import Definitions, NewTable
from derive.storage.table_types import TableColumn

_PATIENCE_SECONDS = 2.0
"""Seconds for which ALTER TABLE waits until maintained views have the rows of all earlier commits."""


async def deploy(coordinator: Coordinator, ddl: DdlTransaction, writes: Sequence[Write], commit: Commit) -> None:
    """Commit a transaction with definitions; a cancelled caller waits for the end.

    Args:
        coordinator: the coordinator; no other session deploys at the same time.
        ddl: definitions of the transaction.
        writes: writes of the transaction, also to new tables.
        commit: a function that commits writes.

    Raises:
        SqlError: a definition or write of another session conflicts; nothing was committed.
        StorageError: Storage cannot write; nothing was committed.
    """
    await settled(_Deployment(coordinator, ddl, commit).carry_out(writes))


class _Deployment:
    def __init__(self, coordinator: Coordinator, ddl: DdlTransaction, commit: Commit) -> None:
        self._coordinator, self._ddl, self._commit = coordinator, ddl, commit
        self._ids: dict[GlobalId, GlobalId] = {}  # final identifiers by provisional identifier
        self._rewritten: list[GlobalId] = []

    async def carry_out(self, writes: Sequence[Write]) -> None:
        coordinator = self._coordinator
        coordinator.look()  # a commit of unknown outcome may have happened
        change = self._ddl.change(coordinator.objects)
        version = coordinator.objects.version
        change, writes = await asyncio.to_thread(self._alter, change, writes)
        change = await asyncio.to_thread(self._identify, change)
        kept = self._kept(writes)
        if change.is_empty and not kept:
            return
        # New names depend on no rows; constraints of altered tables do.
        commit = self._commit if kept or change.altered else partial(self._commit, basis=None)
        definitions = None if change.is_empty else self._definitions(change)
        if definitions is not None and definitions.redefined:
            await self._views_written(definitions.redefined)
        try:
            await commit(kept, then=self._publish, definitions=definitions)
        except UsageError as error:
            raise SqlError("42P07", error.message, hint=error.hint) from error
        except Exception as error:
            if isinstance(error, SqlError) and error.sqlstate == "08007":
                raise
            if not self._has_happened(version, error):
                raise
            self._publish()

    async def _views_written(self, inputs: Mapping[GlobalId, Collection[GlobalId]]) -> None:
        """Wait until views have the rows of all commits so far: their present definitions write no later rows.

        Other writers of tables are excluded. A view that is not maintained, or late, gets the rows at the commit.

        Args:
            inputs: inputs of the views.
        """
        coordinator = self._coordinator
        items, clock = coordinator.objects.items, coordinator.storage_clock
        tables = {id_ for ids in inputs.values() for id_ in ids if id_ in items and items[id_].is_written}
        time = max((clock.frontiers_of(identifier)[1] for identifier in tables), default=0) - 1
        await clock.seal(tables, time)
        # A view that also reads a collection without a present run cannot get there.
        views = [view for view, ids in inputs.items() if all(clock.frontiers_of(id_)[1] > time for id_ in ids)]
        coordinator.store.changes.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while coordinator.maintenance.failure is None:
                    progress = coordinator.watcher.next
                    if all(clock.frontiers_of(view)[1] > time for view in views):
                        return
                    await progress.wait()

    def _publish(self) -> None:
        """Publish the committed names to all sessions."""
        for table in self._rewritten:
            self._coordinator.storage_clock.forget(table)
        self._coordinator.look()
        self._coordinator.store.changes.wake()  # views are maintained by the published names

    def _has_happened(self, version: int, error: Exception) -> bool:
        """Return whether the commit has happened despite an error.

        Raises:
            SqlError: the outcome is unknown (08007).
        """
        try:
            self._coordinator.look()
        except FlowError as unknown:
            message = f"it is not known whether the transaction was committed: {unknown}"
            raise SqlError(
                "08007", message, hint="Check whether the change was committed, and run the statement again if not."
            ) from error
        return self._coordinator.objects.version != version

    def _kept(self, writes: Sequence[Write]) -> Sequence[Write]:
        """Return the writes to tables that exist now, with their final identifiers."""
        final = {id_: self._ids.get(id_, id_) for id_ in tables_of(writes) if self._is_there(id_)}
        if isinstance(writes, InsertedRows | ChangedRows):
            return replace(writes, table=final[writes.table]) if writes.table in final else ()
        return [(final[id_], row, diff) for id_, row, diff in writes if id_ in final]

    def _is_there(self, table: GlobalId) -> bool:
        """Return whether a table that the transaction wrote exists now."""
        if is_provisional(table):
            return table in self._ids
        is_altered = table in self._ids.values()
        return is_altered or table not in self._ddl.base.items or table in self._ddl.objects.items

    def _alter(self, change: Change, writes: Sequence[Write]) -> tuple[Change, Sequence[Write]]:
        """Convert altered tables to the original tables with updated rows."""
        for item in change.added:
            altered = altered_table(self._coordinator.store, item, writes)
            if altered is None:
                change = self._with_readers(change, item)
                continue
            self._ids[item.id] = altered.id
            if altered.is_rewritten:
                self._rewritten.append(altered.id)
            change = altered.applied(change, self._ddl.base.items[altered.id])
            # The rows of the altered table include the earlier writes to the original table.
            writes = [write for write in writes if write[0] not in {item.id, altered.id}] + altered.writes
        return change, writes

    def _with_readers(self, change: Change, table: Item) -> Change:
        """Return a change that binds the readers of an altered table to the new table in its place."""
        if table.alters is None:
            return change
        known = {item.id for item in (*change.added, *change.altered)}
        readers = (
            item
            for item in self._ddl.objects.items.values()
            if item.id not in known and table.id in item.bindings.values()
        )
        return replace(change, altered=(*change.altered, *readers))

    def _identify(self, change: Change) -> Change:
        """Return the change with final identifiers."""
        begun = _in_order(change.added)
        provisional = [id_ for item in begun for id_ in (item.id, item.position) if id_ is not None]
        if provisional:
            self._ids.update(zip(provisional, self._coordinator.store.tables.new_ids(len(provisional)), strict=True))
        if not self._ids:
            return change
        altered = tuple(item.rebound(self._ids) for item in change.altered)
        return replace(change, added=tuple(item.rebound(self._ids) for item in begun), altered=altered)

    def _definitions(self, change: Change) -> Definitions:
        """Return a change of the catalog with the tables of its items."""
        items = self._coordinator.objects.items
        dropped = tuple(id_ for removed in change.removed for id_, _ in _tables(items[removed]))
        renamed = {
            id_: name
            for item_id, new_name in change.renamed.items()
            for id_, name in _tables(replace(items[item_id], name=new_name))
        }
        tables = (item for item in change.altered if item.kind is ObjectKind.TABLE)
        altered = {item.id: tuple(map(stored_column, item.columns)) for item in tables}
        created, redefined = tuple(self._created(change)), self._redefined(change)
        return Definitions(items_change(change), created, dropped, renamed, altered, redefined)

    def _redefined(self, change: Change) -> dict[GlobalId, frozenset[GlobalId]]:
        """Return the inputs of materialized views with other definitions, or with inputs whose columns have changed."""
        coordinator, before = self._coordinator, self._coordinator.objects
        altered = {item.id for item in change.altered if _meaning(item) != _meaning(before.items[item.id])}
        changed = altered.union(user.id for user in before.users(altered)).difference(change.removed)
        views = {id_ for id_ in changed if before.items[id_].kind is ObjectKind.MATERIALIZED_VIEW}
        if not views:
            return {}
        after = {**before.items, **{item.id: item for item in (*change.added, *change.altered)}}
        objects = before.with_items([item for item in after.values() if item.id not in change.removed])
        meanings = {id_: objects.meaning(objects.items[id_]) for id_ in views}
        return {id_: coordinator.maintained.sources(ids_of(meaning), objects) for id_, meaning in meanings.items()}

    def _created(self, change: Change) -> Iterator[NewTable]:
        """Yield the tables of new items; tables that a view reads come before the view."""
        coordinator = self._coordinator
        objects = coordinator.objects.with_items([*coordinator.objects.items.values(), *change.added])
        for item in change.added:
            inputs = None
            if item.kind is ObjectKind.MATERIALIZED_VIEW:
                inputs = coordinator.maintained.sources(ids_of(objects.meaning(item)), objects)
            if item.position is not None:
                columns = tuple(TableColumn(name, kind.value) for name, kind in position_columns(item))
                yield NewTable(item.position, position_name(item.schema, item.name), columns)
            if item.is_stored:
                name = stored_name(item.schema, item.name)
                yield NewTable(item.id, name, tuple(map(stored_column, item.columns)), inputs, item.primary_key)


def _meaning(item: Item) -> tuple[object, ...]:
    """Return the properties of an item from which the rows of its readers follow."""
    columns = [(column.name, column.type, column.modifier) for column in item.columns]
    return columns, item.definition, item.bindings, item.read


def _in_order(items: Sequence[Item]) -> list[Item]:
    """Return items by their identifiers, each after the items that it uses: a view may be older than its table."""
    known = {item.id: item for item in items}
    ordered: dict[GlobalId, Item] = {}

    def visit(identifier: GlobalId) -> None:
        for used in sorted(known[identifier].uses & known.keys() - {identifier}):
            visit(used)
        ordered.setdefault(identifier, known[identifier])

    for identifier in sorted(known):
        visit(identifier)
    return list(ordered.values())


def _tables(item: Item) -> Iterator[tuple[GlobalId, str]]:
    """Yield identifier and name of each table that an item has in Storage."""
    if item.is_stored:
        yield item.id, stored_name(item.schema, item.name)
    if item.position is not None:
        yield item.position, position_name(item.schema, item.name)
