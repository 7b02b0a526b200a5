"""Deployment: a transaction's definitions and writes are committed together.

Tables are created in Storage first, under hidden names. The change of the catalog publishes them, and afterwards
Storage is reconciled with the catalog: one commit renames its tables like those of SQL, also when names are swapped. A
crash or a full disk in between leaves tables without names, or dropped tables: the next deployment, or the next
process, reconciles Storage.

Rows of existing tables cannot be written under hidden names. They are written together with a commit marker, which says
that the prepared change of the catalog has happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace

from derive.algebra.relation import GlobalId
from derive.errors import FlowError, SqlError, UsageError
from derive.sql.catalog.ddl_transaction import DdlTransaction
from derive.sql.catalog.items import Change, Item, is_provisional, position_name, stored_name
from derive.sql.coordinator import Coordinator
from derive.sql.parser.statement import ObjectKind
from derive.sql.sources.definitions import position_columns
from derive.sql.transactions.altered_table import altered_table, stored_column
from derive.sql.transactions.group_commit import Commit
from derive.sql.transactions.timeline import Write
from derive.sql.transactions.uninterruptible import settled
from derive.storage.table import TableColumn


async def deploy(
    coordinator: Coordinator,
    ddl: DdlTransaction,
    writes: Sequence[Write],
    commit: Commit,
    *,
    is_alone: bool = False,
) -> None:
    """Commit a transaction with definitions; a cancelled caller waits for the end.

    Args:
        coordinator: the coordinator; no other session deploys at the same time.
        ddl: definitions of the transaction.
        writes: writes of the transaction, also to new tables.
        commit: a function that commits writes.
        is_alone: whether other writers are excluded.

    Raises:
        SqlError: another session has defined or written something that conflicts; nothing has happened.
        StorageError: Storage cannot write; nothing has happened.
    """
    await settled(_Deployment(coordinator, ddl, commit, is_alone=is_alone).carry_out(writes))


class _Deployment:
    def __init__(self, coordinator: Coordinator, ddl: DdlTransaction, commit: Commit, *, is_alone: bool) -> None:
        self._coordinator, self._ddl, self._commit, self._is_alone = coordinator, ddl, commit, is_alone
        self._tables = coordinator.store.tables
        self._ids: dict[GlobalId, GlobalId] = {}  # final identifiers by provisional identifier
        self._created: list[GlobalId] = []
        self._rewritten: list[GlobalId] = []
        self._is_aside = False

    async def carry_out(self, writes: Sequence[Write]) -> None:
        coordinator = self._coordinator
        coordinator.settle()
        if coordinator.is_untidy:
            await self._reconcile()
        change = self._ddl.change(coordinator.objects)
        version = coordinator.catalog.version()
        try:
            change, writes = await asyncio.to_thread(self._alter, change, writes)
            change = await self._create(change)
            await asyncio.to_thread(self._require_names, change)
            kept = [(self._ids.get(id_, id_), row, diff) for id_, row, diff in writes if self._is_there(id_)]
            await self._happen(change, kept)
        except Exception as error:
            if isinstance(error, SqlError) and error.sqlstate == "08007":
                raise
            if not self._has_happened(version, error):
                coordinator.is_untidy |= bool(self._created)
                await self._clean_up()
                raise
        coordinator.is_untidy |= bool(self._is_aside or change.removed or change.renamed)
        await self._clean_up()

    def _has_happened(self, version: int, error: Exception) -> bool:
        """Return whether the change of the catalog has happened despite an error.

        Raises:
            SqlError: 08007, the outcome is unknown; the next reader of the catalog settles it.
        """
        coordinator = self._coordinator
        try:
            coordinator.settle()
            has_happened = coordinator.catalog.version() != version
            coordinator.look()
        except FlowError as unknown:
            message = f"it is not known whether the transaction was committed: {unknown}"
            raise SqlError("08007", message, hint="look, and run it again if it was not") from error
        return has_happened

    def _is_there(self, table: GlobalId) -> bool:
        """Return whether a written table exists after the transaction."""
        if is_provisional(table):
            return table in self._ids
        is_altered = table in self._ids.values()
        return is_altered or table not in self._ddl.base.items or table in self._ddl.objects.items

    async def _happen(self, change: Change, writes: list[Write]) -> None:
        coordinator = self._coordinator
        is_change = not change.is_empty
        if not writes:
            if is_change:
                for table in self._rewritten:
                    coordinator.storage_clock.note_altered(table, coordinator.timeline.latest + 1)
                coordinator.change(change)
        elif not is_change:
            await self._commit(writes)
        elif all(table in self._created for table, _, _ in writes):
            await self._commit(writes, then=lambda: coordinator.change(change))
        else:
            marks = await asyncio.to_thread(coordinator.prepare, change)
            await self._commit([*writes, *marks], then=self._carry_out_prepared)

    def _carry_out_prepared(self) -> None:
        for table in self._rewritten:
            self._coordinator.storage_clock.note_altered(table, self._coordinator.timeline.latest)
        self._coordinator.carry_out_prepared()

    def _alter(self, change: Change, writes: Sequence[Write]) -> tuple[Change, Sequence[Write]]:
        """Turn altered tables back into the original tables with updated rows."""
        for item in change.added:
            altered = altered_table(self._coordinator.store, item, writes)
            if altered is None:
                continue
            self._ids[item.id] = altered.id
            if altered.is_rewritten:
                self._rewritten.append(altered.id)
            change = altered.applied(change, self._ddl.base.items[altered.id], self._coordinator.timeline.latest + 1)
            writes = [write for write in writes if write[0] != item.id] + altered.writes
        return change, writes

    async def _create(self, change: Change) -> Change:
        """Create the tables of a change's items; return the change with final identifiers."""
        added: list[Item] = []
        for begun in sorted(change.added, key=lambda item: item.id):
            item = begun.rebound(self._ids)
            if item.position is not None:
                columns = [TableColumn(name, kind.value) for name, kind in position_columns(item)]
                self._ids[item.position] = await self._create_table(position_name(item.schema, item.name), columns)
                item = item.rebound(self._ids)
            if item.is_stored:
                self._ids[begun.id] = await self._create_stored(item, added)
            else:
                self._ids[begun.id] = await asyncio.to_thread(self._tables.new_id)
            added.append(replace(item, id=self._ids[begun.id]))
        return replace(change, added=tuple(added))

    async def _create_stored(self, item: Item, before: Sequence[Item]) -> GlobalId:
        columns = [stored_column(column) for column in item.columns]
        at = view_of = None
        if item.kind is ObjectKind.MATERIALIZED_VIEW:
            items = {known.id: known for known in (*self._coordinator.objects.items.values(), *before, item)}
            objects = self._coordinator.objects.with_items(items.values())
            relation = objects.meaning(item)
            maintained = self._coordinator.maintained
            at = await asyncio.to_thread(maintained.first_time, relation, objects)
            view_of = await asyncio.to_thread(maintained.source_names, relation, objects)
        return await self._create_table(stored_name(item.schema, item.name), columns, at, view_of)

    async def _create_table(
        self,
        name: str,
        columns: Sequence[TableColumn],
        at: int | None = None,
        view_of: Collection[str] | None = None,
    ) -> GlobalId:
        def create() -> GlobalId:
            # The name may belong to a table that is dropped or renamed at the same time.
            table = self._tables.create(name, columns, at=at, view_of=view_of, aside=True)
            self._is_aside |= table.name != name
            return table.id

        try:
            self._created.append(await asyncio.to_thread(create))
        except UsageError as error:
            raise SqlError("42P07", error.message, hint=error.hint) from error
        return self._created[-1]

    def _require_names(self, change: Change) -> None:
        """Check that the new names are free in Storage, or belong to tables that are renamed, too.

        Raises:
            SqlError: 42P07, a collection of documents has the name.
        """
        for identifier, name in change.renamed.items():
            item = self._coordinator.objects.items[identifier]
            stored = stored_name(item.schema, name)
            if item.is_stored and not self._tables.is_open(stored):
                raise SqlError("42P07", f"collection '{stored}' is there already", hint="use another name")

    async def _clean_up(self) -> None:
        """Reconcile Storage with the catalog; after a failure, the next deployment retries."""
        if self._coordinator.is_untidy:
            try:
                await self._reconcile()
            except FlowError as error:  # the commit stands
                self._coordinator.warn(f"names in Storage are not yet those of SQL, which is tried again: {error}")

    async def _reconcile(self) -> None:
        # Fail the writes that wait for a dropped table.
        async with nullcontext() if self._is_alone else self._coordinator.commits.exclusive():
            await asyncio.to_thread(self._coordinator.reconcile)
