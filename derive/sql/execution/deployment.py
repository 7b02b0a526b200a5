"""Deployment: what a transaction has defined, and what it has written, happen at once, at its COMMIT.

Tables are made in Storage first, where nobody knows of them. The change of the catalog is what makes them known, and
Storage is brought in line with it afterwards: names in Storage follow those of SQL in one commit, whatever changes
places with whatever. A crash in between, or a disk that is full then, leaves tables that no name stands for, or dropped
ones that are there still: the next deployment, or the next process, brings Storage in line.

Rows of tables that were there before cannot be written that way: they are written together with a mark, which says that
the change of the catalog, prepared before, has happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace

from derive.algebra.relation import GlobalId
from derive.errors import FlowError, SqlError, UsageError
from derive.sql.catalog.draft import Draft
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
    coordinator: Coordinator, draft: Draft, writes: Sequence[Write], commit: Commit, *, is_alone: bool = False
) -> None:
    """Have a transaction happen that has defined something. Who is cancelled meanwhile waits for the end of it.

    Args:
        coordinator: nobody else deploys at the same time.
        draft: what it has defined.
        writes: what it has written, also of tables that it has begun to define.
        commit: commits writes.
        is_alone: whether nobody else writes meanwhile.

    Raises:
        SqlError: it conflicts with what another session has defined or written; nothing has happened.
        StorageError: storage cannot write; nothing has happened.
    """
    await settled(_Deployment(coordinator, draft, commit, is_alone=is_alone).carry_out(writes))


class _Deployment:
    def __init__(self, coordinator: Coordinator, draft: Draft, commit: Commit, *, is_alone: bool) -> None:
        self._coordinator, self._draft, self._commit, self._is_alone = coordinator, draft, commit, is_alone
        self._tables = coordinator.store.tables
        self._ids: dict[GlobalId, GlobalId] = {}  # by provisional one
        self._created: list[GlobalId] = []
        self._rewritten: list[GlobalId] = []
        self._is_aside = False

    async def carry_out(self, writes: Sequence[Write]) -> None:
        coordinator = self._coordinator
        coordinator.settle()
        if coordinator.is_untidy:
            await self._reconcile()
        change = self._draft.change(coordinator.objects)
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
                await self._tidy()
                raise
        coordinator.is_untidy |= bool(self._is_aside or change.removed or change.renamed)
        await self._tidy()

    def _has_happened(self, version: int, error: Exception) -> bool:
        """Whether the change of the catalog has happened, though something has failed.

        Raises:
            SqlError: 08007, that cannot be told; the next who looks at the catalog has it happen, or not.
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
        """Whether the transaction has not dropped a table that it has written."""
        if is_provisional(table):
            return table in self._ids
        is_altered = table in self._ids.values()
        return is_altered or table not in self._draft.base.items or table in self._draft.objects.items

    async def _happen(self, change: Change, writes: list[Write]) -> None:
        coordinator = self._coordinator
        is_change = not change.is_empty
        if not writes:
            if is_change:
                for table in self._rewritten:
                    coordinator.ledger.note_altered(table, coordinator.timeline.latest + 1)
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
            self._coordinator.ledger.note_altered(table, self._coordinator.timeline.latest)
        self._coordinator.carry_out_prepared()

    def _alter(self, change: Change, writes: Sequence[Write]) -> tuple[Change, Sequence[Write]]:
        """Have tables with other columns be the tables that they were, whose rows are updated."""
        for item in change.added:
            altered = altered_table(self._coordinator.store, item, writes)
            if altered is None:
                continue
            self._ids[item.id] = altered.id
            if altered.is_rewritten:
                self._rewritten.append(altered.id)
            change = altered.applied(change, self._draft.base.items[altered.id], self._coordinator.timeline.latest + 1)
            writes = [write for write in writes if write[0] != item.id] + altered.writes
        return change, writes

    async def _create(self, change: Change) -> Change:
        """The change with what identifies the items that it adds, whose tables are there."""
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
            # A name may be that of something that is dropped or renamed at the same time.
            table = self._tables.create(name, columns, at=at, view_of=view_of, aside=True)
            self._is_aside |= table.name != name
            return table.id

        try:
            self._created.append(await asyncio.to_thread(create))
        except UsageError as error:
            raise SqlError("42P07", error.message, hint=error.hint) from error
        return self._created[-1]

    def _require_names(self, change: Change) -> None:
        """Require that what is renamed finds its name in Storage free, or with a table that leaves it as well.

        Raises:
            SqlError: 42P07, a collection of documents has it.
        """
        for identifier, name in change.renamed.items():
            item = self._coordinator.objects.items[identifier]
            stored = stored_name(item.schema, name)
            if item.is_stored and not self._tables.is_open(stored):
                raise SqlError("42P07", f"collection '{stored}' is there already", hint="use another name")

    async def _tidy(self) -> None:
        """Bring Storage in line with what names stand for now; what fails is done by the next who defines something."""
        if self._coordinator.is_untidy:
            try:
                await self._reconcile()
            except FlowError as error:  # what was committed stays committed
                self._coordinator.warn(f"names in Storage are not yet those of SQL, which is tried again: {error}")

    async def _reconcile(self) -> None:
        # Tell the writes that wait for a dropped table.
        async with nullcontext() if self._is_alone else self._coordinator.commits.exclusive():
            await asyncio.to_thread(self._coordinator.reconcile)
