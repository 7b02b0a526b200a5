"""CREATE, DROP and ALTER … RENAME: what names stand for changes at once, outside of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from derive.adapter import sources
from derive.adapter.catalog import Bindings, Item, position_name, stored_name
from derive.adapter.coordinator import Coordinator
from derive.adapter.objects import PUBLIC, Objects, RecordedNames
from derive.adapter.outcome import Notice, Result
from derive.adapter.parser.definition import (
    CreateIndex,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    ObjectKind,
    Rename,
)
from derive.adapter.parser.query_syntax import Query
from derive.adapter.parser.syntax import QualifiedName
from derive.adapter.planner.definition import columns_of_definitions, indexes_of, relation_named
from derive.adapter.planner.names import NamedColumn, RelationKind
from derive.adapter.planner.plan import PlannedView, plan_view
from derive.adapter.planner.reading import ids_of, require_maintainable
from derive.adapter.preparing import rows_of_view
from derive.adapter.reading import read
from derive.adapter.state import State
from derive.compute.algebra.relation import Relation
from derive.errors import SqlError, UsageError
from derive.storage.table import Table, TableColumn

Definition = CreateTable | CreateView | CreateIndex | CreateSource | Drop | Rename


async def define(state: State, statement: Definition, text: str) -> Result:
    """Carry out a statement that changes what names stand for.

    Args:
        state: of the session.
        statement: as it was written.
        text: of the statement.
    """
    if state.is_explicit:
        raise SqlError(
            "25001",
            "what names stand for cannot be changed inside a transaction block",
            hint="COMMIT first, or have the client commit by itself (autocommit)",
        )
    if state.transaction.has_written:
        await state.commit()
    state.transaction.check_writable()
    coordinator = state.coordinator
    coordinator.own()
    with state.interruptible():
        async with coordinator.definitions:
            coordinator.refresh()
            return await _Definer(state, text).define(statement)


class _Definer:
    def __init__(self, state: State, text: str) -> None:
        self._state, self._text = state, text

    @property
    def _coordinator(self) -> Coordinator:
        return self._state.coordinator

    @property
    def _objects(self) -> Objects:
        return self._coordinator.objects

    async def define(self, statement: Definition) -> Result:  # noqa: PLR0911 (one for each kind)
        match statement:
            case CreateTable():
                return await self._create_table(statement)
            case CreateView(is_materialized=True):
                return await self._create_materialized_view(statement)
            case CreateView():
                return await self._create_view(statement)
            case CreateIndex():
                return await self._create_index(statement)
            case CreateSource():
                return await self._create_source(statement)
            case Drop():
                return await self._drop(statement)
            case Rename():
                return await self._rename(statement)

    # Tables and views

    async def _create_table(self, statement: CreateTable) -> Result:
        skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
        if skipped:
            return Result(lambda _: "CREATE TABLE", notices=skipped)
        if statement.query is not None:
            return await self._create_table_as(statement, statement.query)
        columns = columns_of_definitions(statement.columns)
        await self._store(ObjectKind.TABLE, statement.name.name, columns)
        return Result(lambda _: "CREATE TABLE")

    async def _create_table_as(self, statement: CreateTable, query: Query) -> Result:
        view = plan_view(query, self._objects, statement.column_names)
        rows = [row async for batch in await read(self._state, rows_of_view(view)) for row in batch]
        columns = tuple(NamedColumn(column.name, column.type) for column in view.columns)
        item = await self._store(ObjectKind.TABLE, statement.name.name, columns)
        if rows:
            await self._coordinator.commits.commit([(item.id, row, 1) for row in rows])
        return Result(lambda _: f"SELECT {len(rows)}")

    async def _create_view(self, statement: CreateView) -> Result:
        view, bindings = self._planned(statement)
        replaced: tuple[int, ...] = ()
        former = self._objects.find(None, statement.name.name)
        if statement.or_replace and former is not None and former.kind is ObjectKind.VIEW:
            if self._objects.users([former.id]):
                raise SqlError("2BP01", f"cannot replace view {former.name}: others depend on it")
            replaced = (former.id,)
        else:
            skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
            if skipped:
                return Result(lambda _: "CREATE VIEW", notices=skipped)
        item = Item(
            await asyncio.to_thread(self._coordinator.store.tables.new_id),
            ObjectKind.VIEW,
            PUBLIC,
            statement.name.name,
            tuple(NamedColumn(column.name, column.type) for column in view.columns),
            statement.definition,
            bindings,
        )
        self._coordinator.change(self._text, added=(item,), removed=replaced)
        return Result(lambda _: "CREATE VIEW")

    async def _create_materialized_view(self, statement: CreateView) -> Result:
        view, bindings = self._planned(statement)
        skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
        if skipped:
            return Result(lambda _: "CREATE MATERIALIZED VIEW", notices=skipped)
        self._require_maintainable(view.relation, "materialized view")
        columns = tuple(NamedColumn(column.name, column.type) for column in view.columns)
        kind, name = ObjectKind.MATERIALIZED_VIEW, statement.name.name
        begun = Item(0, kind, PUBLIC, name, columns, statement.definition, bindings)
        ids = ids_of(view.relation)
        time = await asyncio.to_thread(self._coordinator.maintenance.first_time, ids)
        await self._store(kind, name, columns, begun, at=time)
        return Result(lambda _: "CREATE MATERIALIZED VIEW")

    def _planned(self, statement: CreateView) -> tuple[PlannedView, Bindings]:
        names = RecordedNames(self._objects)
        view = plan_view(statement.query, names, statement.columns)
        return view, names.bindings

    async def _create_index(self, statement: CreateIndex) -> Result:
        named = relation_named(statement.relation, self._objects)
        indexed = [named.columns[index].name for index in indexes_of(named, statement.columns)]
        name = statement.name.name if statement.name else self._free_name(f"{named.name}_{'_'.join(indexed)}_idx")
        if statement.name:
            skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
            if skipped:
                return Result(lambda _: "CREATE INDEX", notices=skipped)
        self._require_maintainable(named.relation, "index")
        identifier = await asyncio.to_thread(self._coordinator.store.tables.new_id)
        item = Item(identifier, ObjectKind.INDEX, PUBLIC, name, on=named.id, indexed=tuple(indexed))
        self._coordinator.change(self._text, added=(item,))
        return Result(lambda _: "CREATE INDEX")

    async def _create_source(self, statement: CreateSource) -> Result:
        skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
        if skipped:
            return Result(lambda _: "CREATE SOURCE", notices=skipped)
        source = sources.described(statement, self._objects, self._coordinator.store.timeline.time())
        name = statement.name.name
        begun = Item(0, ObjectKind.SOURCE, PUBLIC, name, source.columns, on=source.on, origin=source.origin)
        if source.on is None:
            place = await self._create_position(name, source)
            begun = replace(begun, origin={**source.origin, "position": place})
            await self._store(ObjectKind.SOURCE, name, source.columns, begun)
        else:
            identifier = await asyncio.to_thread(self._coordinator.store.tables.new_id)
            self._coordinator.change(self._text, added=(replace(begun, id=identifier),))
        return Result(lambda _: "CREATE SOURCE")

    async def _create_position(self, name: str, source: sources.Described) -> int:
        """The table that tells how far a source is."""
        columns = tuple(TableColumn(column, kind.value) for column, kind in source.position)
        tables = self._coordinator.store.tables
        place = await asyncio.to_thread(tables.create, position_name(PUBLIC, name), columns)
        await self._coordinator.commits.commit([(place.id, tuple(source.begin), 1)])
        return place.id

    def _require_maintainable(self, relation: Relation, what: str) -> None:
        require_maintainable(relation, what)
        for identifier in ids_of(relation):
            item = self._objects.items.get(identifier)
            if item is not None and item.kind is ObjectKind.VIEW:
                require_maintainable(self._objects.meaning(item), what)

    async def _store(
        self,
        kind: ObjectKind,
        name: str,
        columns: Sequence[NamedColumn],
        begun: Item | None = None,
        *,
        at: int | None = None,
    ) -> Item:
        """A new item whose rows are in Storage."""
        stored = tuple(TableColumn(column.name, column.type.value, column.is_nullable) for column in columns)

        def create() -> Table:
            return self._coordinator.store.tables.create(stored_name(PUBLIC, name), stored, at=at)

        try:
            table = await asyncio.to_thread(create)
        except UsageError as error:
            raise SqlError("42P07", error.message, hint=error.hint) from error
        item = replace(begun, id=table.id) if begun else Item(table.id, kind, PUBLIC, name, tuple(columns))
        self._coordinator.change(self._text, added=(item,))
        return item

    # Names

    def _skipped(self, name: QualifiedName, *, is_welcome: bool) -> tuple[Notice, ...]:
        """Check that a name is free; notices if it is not, and that is welcome."""
        if name.schema not in {None, PUBLIC}:
            hint = f"There is one schema, {PUBLIC}."
            raise SqlError("3F000", f'schema "{name.schema}" does not exist', offset=name.offset, hint=hint)
        if not self._objects.is_taken(name.name):
            return ()
        message = f'relation "{name.name}" already exists'
        if is_welcome:
            return (Notice("NOTICE", "42P07", f"{message}, skipping"),)
        raise SqlError("42P07", message, offset=name.offset)

    def _free_name(self, name: str) -> str:
        number, free = 0, name
        while self._objects.is_taken(free):
            number += 1
            free = f"{name}{number}"
        return free

    async def _drop(self, statement: Drop) -> Result:
        notices: list[Notice] = []
        dropped: list[Item] = []
        for name in statement.names:
            item = self._item(name, statement.kind, is_missing_welcome=statement.if_exists)
            if item is None:
                message = f'{statement.kind.value} "{name.name}" does not exist, skipping'
                notices.append(Notice("NOTICE", "00000", message))
            else:
                dropped.append(item)
        users = self._objects.users([item.id for item in dropped])
        others = [user for user in users if user.kind is not ObjectKind.INDEX and user not in dropped]
        if others and not statement.is_cascading:
            depending = ", ".join(f"{user.kind.value} {user.name}" for user in others)
            raise SqlError(
                "2BP01",
                f"cannot drop {statement.kind.value} {dropped[0].name} because others depend on it",
                detail=f"These depend on it: {depending}.",
                hint="Use DROP … CASCADE to drop them too.",
            )
        await self._remove({item.id: item for item in (*dropped, *users)})
        return Result(lambda _: f"DROP {statement.kind.value.upper()}", notices=tuple(notices))

    async def _remove(self, items: dict[int, Item]) -> None:
        if not items:
            return
        self._coordinator.change(self._text, removed=tuple(items))
        stored = [item.id for item in items.values() if item.is_stored]
        stored += [item.position for item in items.values() if item.position is not None]
        if stored:
            async with self._coordinator.commits.exclusive():  # what waits to be written is told
                await asyncio.to_thread(self._coordinator.store.tables.drop, *stored)

    async def _rename(self, statement: Rename) -> Result:
        item = self._item(statement.name, statement.kind, is_missing_welcome=statement.if_exists)
        tag = f"ALTER {statement.kind.value.upper()}"
        if item is None:
            message = f'{statement.kind.value} "{statement.name.name}" does not exist, skipping'
            return Result(lambda _: tag, notices=(Notice("NOTICE", "00000", message),))
        if self._objects.is_taken(statement.new_name):
            message = f'relation "{statement.new_name}" already exists'
            raise SqlError("42P07", message, offset=statement.new_offset)
        self._coordinator.change(self._text, renamed={item.id: statement.new_name})
        if item.is_stored:
            name = stored_name(PUBLIC, statement.new_name)
            tables = self._coordinator.store.tables
            await asyncio.to_thread(tables.rename, item.id, name)
            if item.position is not None:
                await asyncio.to_thread(tables.rename, item.position, position_name(PUBLIC, statement.new_name))
        return Result(lambda _: tag)

    def _item(self, name: QualifiedName, kind: ObjectKind, *, is_missing_welcome: bool) -> Item | None:
        """The item of a name and kind; None if there is none, and that is welcome."""
        item = self._objects.find(name.schema, name.name)
        if item is None:
            named = self._objects.lookup(name.schema, name.name)
            if named is not None and named.kind is RelationKind.COLLECTION:
                hint = "It is defined in the catalog, flow.yaml."
                raise SqlError("42809", f'"{name.name}" is a collection', offset=name.offset, hint=hint)
            if is_missing_welcome:
                return None
            what = kind.value if kind is not ObjectKind.TABLE else "table"
            raise SqlError("42P01", f'{what} "{name.name}" does not exist', offset=name.offset)
        if item.kind is not kind:
            hint = f"Use DROP {item.kind.value.upper()} to remove a {item.kind.value}."
            raise SqlError("42809", f'"{name.name}" is not a {kind.value}', offset=name.offset, hint=hint)
        return item
