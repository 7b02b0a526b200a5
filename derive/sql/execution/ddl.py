"""CREATE, DROP and ALTER: the transaction sees changed names at once, and other sessions at COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from derive.algebra.relation import GlobalId, Relation
from derive.algebra.rewrite import mentions
from derive.document.pointer import JSON
from derive.errors import SqlError, suggest
from derive.sql.catalog.items import NAMED, ON_COMMIT, IdentitySequence, Item
from derive.sql.catalog.snapshot import (
    PUBLIC,
    DdlTransaction,
    Objects,
    RecordedNames,
    is_temporary,
    provisional_id,
    with_schemas,
)
from derive.sql.execution.alter_table import add_change, alter_table, check_permanence, numbered
from derive.sql.execution.foreign_keys import referring_elsewhere
from derive.sql.execution.owned_sequences import (
    OWNER,
    alter_numbers,
    alter_sequence,
    drop_numbers,
    follow_actions,
    owner_of,
)
from derive.sql.execution.query import read, read_tables
from derive.sql.execution.replaced_views import CASCADE, depended, replaced_view, with_renamed_column
from derive.sql.execution.routines import dropped_functions, planned_domain, planned_function
from derive.sql.execution.state import State
from derive.sql.parser.ast import QualifiedName, Query
from derive.sql.parser.object_definitions import (
    CreateDomain,
    CreateFunction,
    CreateSchema,
    CreateSequence,
    DropFunction,
)
from derive.sql.parser.parse import parse
from derive.sql.parser.sequences import AlterSequence
from derive.sql.parser.statement import (
    TEMPORARY,
    AddConstraint,
    AlterTable,
    Comment,
    ConstraintDefinition,
    ConstraintKind,
    CreateIndex,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    DropConstraint,
    FileSource,
    ObjectKind,
    Rename,
    RenameColumn,
    SelectStatement,
)
from derive.sql.pg_catalog.objects import sequences_of_default
from derive.sql.planner.ddl import (
    indexes_of,
    plan_table,
    relation_named,
    require_narrow,
    require_stored,
)
from derive.sql.planner.dependencies import ids_of, require_maintainable
from derive.sql.planner.index_keys import plan_index_key
from derive.sql.planner.interfaces import NamedColumn, RelationKind
from derive.sql.planner.plan import PlannedView, plan_view
from derive.sql.planner.planned import is_of_session, of_read
from derive.sql.planner.row_expressions import column_named
from derive.sql.planner.sequences import numbering_of, planned_sequence, with_fixed_name
from derive.sql.preparation import rows_of_view
from derive.sql.results import Notice, Result
from derive.sql.sources import definitions
from derive.sql.sources.followed_file import require_right
from derive.sql.transactions.programs import MAINTAINS, as_commands, programs_of
from derive.sql.transactions.writes import InsertedRows

Definition = (
    CreateTable
    | CreateView
    | CreateIndex
    | CreateSource
    | CreateSchema
    | CreateSequence
    | AlterSequence
    | CreateFunction
    | CreateDomain
    | DropFunction
    | Drop
    | Rename
    | AlterTable
    | Comment
)


async def define(state: State, statement: Definition) -> Result:
    """Execute a DDL statement."""
    state.transaction.check_writable()
    coordinator = state.coordinator
    coordinator.own()
    if isinstance(statement, CreateTable | CreateView) and statement.name.schema == TEMPORARY:
        await _begin_temporary(state)
    if state.is_explicit:
        with state.interruptible():
            return await _Definer(state).define(statement)
    if state.transaction.has_written:
        await state.commit()
    with state.interruptible():
        await _sources_are_begun(state, statement)
        async with coordinator.definitions:
            await _sources_are_begun(state, statement)  # waits also for sources that were defined meanwhile
            if _reads_rows(statement):
                async with coordinator.commits.exclusive() as commit:  # excludes writers of the relations read
                    result = await _Definer(state).define(statement)
                    await state.deploy(commit)
            else:
                result = await _Definer(state).define(statement)
                await state.deploy(coordinator.commits.commit)
            return result


async def _begin_temporary(state: State) -> None:
    """Give a session a schema for its temporary relations, if it has none, and drop those of earlier servers."""
    if state.temporary is not None:
        return
    coordinator = state.coordinator
    (number,) = await asyncio.to_thread(coordinator.store.tables.new_ids, 1)
    state.temporary = f"{TEMPORARY}_{number}"
    coordinator.temporary.add(state.temporary)
    schemas = {item.schema for item in coordinator.objects.items.values() if is_temporary(item.schema)}
    if not state.is_explicit and (left := schemas - coordinator.temporary):
        await _drop_schemas(state, left)


async def drop_temporary(state: State) -> None:
    """Drop the temporary relations of a session, outside of a transaction."""
    if state.temporary is not None:
        await _drop_schemas(state, {state.temporary})
        state.coordinator.temporary.discard(state.temporary)
        state.temporary = None


async def _drop_schemas(state: State, schemas: Collection[str]) -> None:
    objects, coordinator = state.coordinator.objects, state.coordinator
    async with coordinator.definitions:
        dropped = [item.id for item in objects.items.values() if item.schema in schemas]
        if not dropped:
            return
        users = [user.id for user in objects.users(dropped)]
        state.ddl = DdlTransaction(objects, objects).changed(removed={*dropped, *users})
        assert state.transaction
        await state.deploy(coordinator.commits.commit)


def _reads_rows(statement: Definition) -> bool:
    """Return whether the effect of a statement depends on rows."""
    match statement:
        case CreateTable(query=query):
            return query is not None
        case CreateIndex(is_unique=is_unique):
            return is_unique
        case Drop(kind=kind):
            return kind is ObjectKind.INDEX
        case _:
            return isinstance(statement, AlterTable)


async def _sources_are_begun(state: State, statement: Definition) -> None:
    """Wait for the sources that CREATE TABLE … AS reads."""
    if isinstance(statement, CreateTable) and statement.query is not None:
        relation = plan_view(statement.query, state.objects, statement.column_names).relation
        coordinator = state.coordinator
        await coordinator.source_feeder.begun(coordinator.maintained.sources(ids_of(relation)))


class _Definer:
    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def _objects(self) -> Objects:
        return self._state.objects

    async def define(self, statement: Definition) -> Result:  # noqa: PLR0911, PLR0912 (one for each kind)
        self._state.planned = self._objects.version
        match statement:
            case CreateTable():
                return await self._create_table(statement)
            case CreateView():
                return self._create_view(statement)
            case CreateIndex():
                return await self._create_index(statement)
            case CreateSource():
                return self._create_source(statement)
            case CreateSchema():
                return self._create_schema(statement)
            case CreateSequence():
                return await self._create_sequence(statement)
            case AlterSequence():
                return await self._alter_sequence(statement)
            case CreateFunction():
                return self._create_function(statement)
            case CreateDomain():
                return self._create_domain(statement)
            case DropFunction():
                return self._drop_functions(statement)
            case Drop(kind=ObjectKind.SCHEMA):
                return self._drop_schemas(statement)
            case Drop():
                return await self._drop(statement)
            case AlterTable():
                return await self._alter_table(statement)
            case Rename():
                return self._rename(statement)
            case Comment():
                return self._comment(statement)

    # Tables and views

    async def _create_table(self, statement: CreateTable) -> Result:
        skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
        if skipped:
            return Result(lambda _: "CREATE TABLE", notices=skipped)
        if statement.query is not None:
            return await self._create_table_as(statement, statement.query)
        schema = self._schema_of(statement.name)
        table = plan_table(statement, self._objects, self._taken_in(schema))
        check_permanence(self._objects, table, schema, statement.name.offset)
        columns = await numbered(self._state, table.columns)
        identifier, name = provisional_id(), statement.name.name
        origin = _on_commit(statement)
        item = Item(identifier, ObjectKind.TABLE, schema, name, columns, origin=origin, constraints=table.constraints)
        add_change(self._state, item)
        return Result(lambda _: "CREATE TABLE")

    async def _create_table_as(self, statement: CreateTable, defined: Query) -> Result:
        view = plan_view(defined, self._objects, statement.column_names)
        columns = _columns(view, are_stored=True)
        of_session = mentions(view.relation, is_of_session)
        query = self._state.bound(replace(rows_of_view(view), is_of_session=of_session))
        rows = await read_tables(self._state, query, ()) if statement.has_rows else []
        if rows is None:
            rows = [row async for batch in await read(self._state, query) for row in batch]
        schema = self._schema_of(statement.name)
        name, origin = statement.name.name, _on_commit(statement)
        item = Item(provisional_id(), ObjectKind.TABLE, schema, name, columns, origin=origin)
        add_change(self._state, item)
        self._state.transaction.write(InsertedRows(item.id, rows))
        return Result(lambda _: f"SELECT {len(rows)}" if statement.has_rows else "CREATE TABLE AS")

    async def _alter_table(self, statement: AlterTable) -> Result:
        """Alter a table: until COMMIT, a new table of the same name has its rows. Rename a column of a view."""
        named = self._objects.find(statement.name.schema, statement.name.name)
        action, tag = statement.actions[0], f"ALTER {statement.kind.value.upper()}"
        kind = ObjectKind.VIEW if named and named.kind is ObjectKind.VIEW else statement.kind
        kind = kind if isinstance(action, RenameColumn) else ObjectKind.TABLE
        item = self._item(statement.name, kind, is_missing_welcome=statement.if_exists)
        if item is None:
            return Result(lambda _: tag, notices=(_missing(statement.kind, statement.name),))
        if kind is ObjectKind.VIEW and isinstance(action, RenameColumn):
            add_change(self._state, *with_renamed_column(self._objects, item, action), removed=(item.id,))
            return Result(lambda _: tag)
        notices = await alter_table(self._state, item, statement.actions)
        await follow_actions(self._state, item.schema, item.name, statement.actions)
        return Result(lambda _: "ALTER TABLE", notices=notices)

    def _without_foreign_keys(self, dropped: Collection[Item], *, is_cascading: bool) -> list[Item]:
        """Return the tables whose foreign keys refer to dropped tables, without these keys.

        Raises:
            SqlError: there are such tables, without CASCADE (2BP01).
        """
        changed: dict[GlobalId, Item] = {}
        for table, key in referring_elsewhere(self._objects, {item.id for item in dropped}):
            if not is_cascading:
                target = next(item for item in dropped if key.reference and item.id == key.reference.table)
                raise SqlError(
                    "2BP01",
                    f"cannot drop table {target.name} because other objects depend on it",
                    detail=f"constraint {key.name} on table {table.name} depends on table {target.name}",
                    hint=CASCADE,
                )
            item = changed.get(table.id, self._objects.items[table.id])
            changed[table.id] = replace(item, constraints=tuple(one for one in item.constraints if one != key))
        return list(changed.values())

    def _create_view(self, statement: CreateView) -> Result:
        kind = ObjectKind.MATERIALIZED_VIEW if statement.is_materialized else ObjectKind.VIEW
        names = RecordedNames(self._objects)
        view = plan_view(statement.query, names, statement.columns)
        tag = f"CREATE {kind.value.upper()}"
        schema, notices = self._schema_of_view(statement, names)
        former = self._objects.find(schema, statement.name.name)
        is_replaced = statement.or_replace and former is not None and kind is ObjectKind.VIEW
        if is_replaced and former is not None and former.kind is not kind:
            raise SqlError("42809", f'"{former.name}" is not a view', offset=statement.name.offset)
        if not is_replaced:
            skipped = self._skipped(replace(statement.name, schema=schema), is_welcome=statement.if_not_exists)
            if skipped:
                return Result(lambda _: tag, notices=skipped)
        if statement.is_materialized:
            self._require_maintainable(view.relation, "materialized view", statement.query)
        name, columns = statement.name.name, _columns(view, are_stored=statement.is_materialized)
        definition = statement.definition
        if names.schemas:
            definition = with_schemas(definition, names.schemas)
            query, names = parse(definition), RecordedNames(self._objects)
            assert isinstance(query, SelectStatement)
            plan_view(query.query, names, statement.columns)
        item = Item(provisional_id(), kind, schema, name, columns, definition, names.bindings, names.read)
        if statement.columns:
            item = replace(item, origin={NAMED: True})
        if is_replaced and former is not None:
            add_change(self._state, *replaced_view(self._objects, former, item), removed=(former.id,))
        else:
            add_change(self._state, item)
        return Result(lambda _: tag, notices=(*notices, *self._unmaintained(item)))

    def _schema_of_view(self, statement: CreateView, names: RecordedNames) -> tuple[str, Sequence[Notice]]:
        """Return the schema of a new view, and a notice if the view is temporary as it reads temporary relations.

        Raises:
            SqlError: a materialized view reads temporary relations (0A000), or a view of another schema does (42P16).
        """
        schema = self._schema_of(statement.name)
        uses = [item for id_ in names.bindings.values() if (item := self._objects.items.get(id_))]
        if is_temporary(schema) or not any(is_temporary(item.schema) for item in uses):
            return schema, ()
        if statement.is_materialized:
            message = "materialized views must not use temporary tables or views"
            raise SqlError("0A000", message, offset=statement.name.offset, hint="Create a view, or a table.")
        if statement.name.schema is not None:
            message = "cannot create temporary relation in non-temporary schema"
            raise SqlError("42P16", message, offset=statement.name.offset, hint="Omit the schema.")
        notice = Notice("NOTICE", "00000", f'view "{statement.name.name}" will be a temporary view')
        return self._objects.temporary or schema, (notice,)

    def _unmaintained(self, view: Item) -> tuple[Notice, ...]:
        """Return the notice of a materialized view that no server maintains; none for other views."""
        if view.kind is not ObjectKind.MATERIALIZED_VIEW or self._state.coordinator.computing.can_start:
            return ()
        commands = as_commands(dict.fromkeys([*programs_of(self._objects, view.uses), MAINTAINS]))
        message = f'no server stores the rows of "{view.name}" yet, so each query computes them'
        return (Notice("NOTICE", "00000", message, f"Start: {commands}"),)

    async def _create_index(self, statement: CreateIndex) -> Result:
        named = relation_named(statement.relation, self._objects)
        indexes_of(named, statement.included)
        key = plan_index_key(named, statement.parts, statement.condition)
        free = self._free_name(f"{named.name}_{'_'.join(key.names)}_idx", named.schema)
        name = statement.name.name if statement.name else free
        if statement.name:
            own = replace(statement.name, schema=named.schema)
            skipped = self._skipped(own, is_welcome=statement.if_not_exists)
            if skipped:
                return Result(lambda _: "CREATE INDEX", notices=skipped)
        if statement.is_unique:
            item = self._item(statement.relation, ObjectKind.TABLE, is_missing_welcome=False)
            assert item is not None
            offset = statement.relation.offset
            unique = ConstraintDefinition(ConstraintKind.UNIQUE_INDEX, name, offset, check=statement.condition)
            if key.parts:
                unique = replace(unique, parts=statement.parts)
            else:
                unique = replace(unique, columns=tuple((column, offset) for column in key.columns))
            await alter_table(self._state, item, [AddConstraint(unique)])
            return Result(lambda _: "CREATE INDEX")
        self._require_maintainable(named.relation, "index")
        index = Item(provisional_id(), ObjectKind.INDEX, named.schema, name, on=named.id, indexed=key.columns)
        add_change(self._state, replace(index, parts=key.parts, condition=key.condition))
        return Result(lambda _: "CREATE INDEX")

    # Schemas and sequences

    async def _create_sequence(self, statement: CreateSequence) -> Result:
        skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
        if skipped:
            return Result(lambda _: "CREATE SEQUENCE", notices=skipped)
        sequence = planned_sequence(statement, 0)
        (counter,) = await asyncio.to_thread(self._state.coordinator.store.tables.new_ids, 1)
        schema, origin = self._schema_of(statement.name), replace(sequence, counter=counter).origin
        item = Item(provisional_id(), ObjectKind.SEQUENCE, schema, statement.name.name, origin=origin)
        owner = owner_of(self._objects, schema, statement.owner, statement.name.offset)
        if owner is not None:
            item = replace(item, origin={**origin, OWNER: [owner[0].name, owner[1]]})
        add_change(self._state, item)
        return Result(lambda _: "CREATE SEQUENCE")

    async def _alter_sequence(self, statement: AlterSequence) -> Result:
        of_column = self._of_column(statement.name)
        if of_column is not None:
            await alter_numbers(self._state, of_column, statement)
            return Result(lambda _: "ALTER SEQUENCE")
        item = self._item(statement.name, ObjectKind.SEQUENCE, is_missing_welcome=statement.if_exists)
        if item is None:
            return Result(lambda _: "ALTER SEQUENCE", notices=(_missing(ObjectKind.SEQUENCE, statement.name),))
        await alter_sequence(self._state, item, statement)
        return Result(lambda _: "ALTER SEQUENCE")

    def _of_column(self, name: QualifiedName) -> IdentitySequence | None:
        """Return the sequence of a column; None if an item, or nothing, has the name."""
        if self._objects.find(name.schema, name.name) is not None:
            return None
        return self._objects.identity_sequence(name.schema, name.name)

    def _create_function(self, statement: CreateFunction) -> Result:
        item = planned_function(statement, self._objects, self._schema_of(statement.name))
        former = self._objects.find(item.schema, item.name)
        if former is not None and not statement.or_replace:
            message = f'function "{statement.name.name}" already exists with same argument types'
            raise SqlError("42723", message, offset=statement.name.offset, hint="Write CREATE OR REPLACE FUNCTION.")
        if former is not None and former.origin["result"] != item.origin["result"]:
            hint = f"Use DROP FUNCTION {item.name} first."
            raise SqlError("42P13", "cannot change return type of existing function", hint=hint)
        if former is not None and former.id in item.uses:
            hint = "Use WITH RECURSIVE in a query."
            raise SqlError("0A000", "functions that call themselves are not supported", hint=hint)
        if former is not None and (users := self._objects.users([former.id])):
            hint = "Drop them first, and create them again; one transaction can do all of this."
            raise depended("function", former, users, verb="replace", hint=hint)
        add_change(self._state, item, removed=() if former is None else (former.id,))
        return Result(lambda _: "CREATE FUNCTION")

    def _create_domain(self, statement: CreateDomain) -> Result:
        schema, name = self._schema_of(statement.name), statement.name
        if self._objects.is_taken(name.name, schema):
            raise SqlError("42710", f'type "{name.name}" already exists', offset=name.offset)
        add_change(self._state, planned_domain(statement, self._objects, schema))
        return Result(lambda _: "CREATE DOMAIN")

    def _drop_functions(self, statement: DropFunction) -> Result:
        dropped, notices = dropped_functions(statement, self._objects)
        users = [user for user in self._objects.users([item.id for item in dropped]) if user not in dropped]
        if users and not statement.is_cascading:
            raise depended("function", dropped[0], users)
        if dropped:
            add_change(self._state, removed={item.id for item in (*dropped, *users)})
        return Result(lambda _: "DROP FUNCTION", notices=tuple(notices))

    def _create_schema(self, statement: CreateSchema) -> Result:
        name = statement.name
        if name.startswith("pg_") or name == "information_schema":
            detail = 'The prefix "pg_" is reserved for system schemas.'
            raise SqlError("42939", f'unacceptable schema name "{name}"', offset=statement.offset, detail=detail)
        if name in self._objects.schemas:
            message = f'schema "{name}" already exists'
            if not statement.if_not_exists:
                raise SqlError("42P06", message, offset=statement.offset)
            return Result(lambda _: "CREATE SCHEMA", notices=(Notice("NOTICE", "42P06", f"{message}, skipping"),))
        add_change(self._state, Item(provisional_id(), ObjectKind.SCHEMA, "", name))
        return Result(lambda _: "CREATE SCHEMA")

    def _drop_schemas(self, statement: Drop) -> Result:
        notices: list[Notice] = []
        dropped: list[Item] = []
        for name in statement.names:
            if name.name == PUBLIC:
                hint = "Drop its relations."
                raise SqlError("0A000", f"schema {PUBLIC} cannot be dropped", offset=name.offset, hint=hint)
            schema = self._objects.schema(name.name)
            if schema is not None:
                dropped.append(schema)
            elif statement.if_exists:
                notices.append(_missing(ObjectKind.SCHEMA, name))
            else:
                raise SqlError("3F000", f'schema "{name.name}" does not exist', offset=name.offset)
        names = {schema.name for schema in dropped}
        within = [item for item in self._objects.items.values() if item.schema in names]
        if within and not statement.is_cascading:
            raise depended("schema", dropped[0], within)
        users = self._objects.users([item.id for item in within])
        if dropped:
            removed = (*dropped, *within, *users)
            add_change(
                self._state,
                *self._without_foreign_keys(removed, is_cascading=True),
                removed={one.id for one in removed},
            )
        return Result(lambda _: "DROP SCHEMA", notices=tuple(notices))

    def _create_source(self, statement: CreateSource) -> Result:
        skipped = self._skipped(statement.name, is_welcome=statement.if_not_exists)
        if skipped:
            return Result(lambda _: "CREATE SOURCE", notices=skipped)
        coordinator = self._state.coordinator
        if isinstance(statement.origin, FileSource):
            require_right(has_right=self._state.user.reads_files)
        source = definitions.described(statement, self._objects, coordinator.store.timeline.time(), coordinator.files)
        origin = dict(source.origin)
        if source.on is None:
            place = origin["position"] = provisional_id()
            self._state.transaction.write([(place, tuple(source.begin), 1)])
        identifier, name, schema = provisional_id(), statement.name.name, self._schema_of(statement.name)
        add_change(
            self._state, Item(identifier, ObjectKind.SOURCE, schema, name, source.columns, on=source.on, origin=origin)
        )
        return Result(lambda _: "CREATE SOURCE")

    def _require_maintainable(self, relation: Relation, what: str, query: Query | None = None) -> None:
        require_maintainable(self._objects.expanded(of_read(relation)), what, query)

    # Names

    def _skipped(self, name: QualifiedName, *, is_welcome: bool) -> tuple[Notice, ...]:
        """Check that a name is free. If IF NOT EXISTS allows a taken name, return notices instead of an error."""
        if not self._objects.is_taken(name.name, self._schema_of(name)):
            return ()
        taken = self._objects.find(self._schema_of(name), name.name)
        if taken is not None and taken.kind is ObjectKind.DOMAIN:
            raise SqlError("42710", f'type "{name.name}" already exists', offset=name.offset)
        message = f'relation "{name.name}" already exists'
        if is_welcome:
            return (Notice("NOTICE", "42P07", f"{message}, skipping"),)
        raise SqlError("42P07", message, offset=name.offset)

    def _schema_of(self, name: QualifiedName) -> str:
        """Return the schema of a new relation."""
        if name.schema is None:
            schemas = self._objects.path_schemas
            if not schemas:
                hint = "SET search_path to a schema, or write schema.name."
                raise SqlError("3F000", "no schema has been selected to create in", offset=name.offset, hint=hint)
            return schemas[0]
        if is_temporary(name.schema):
            if name.schema in {TEMPORARY, self._objects.temporary} and self._objects.temporary is not None:
                return self._objects.temporary
            message = "cannot create relations in temporary schemas of other sessions"
            raise SqlError("42P16", message, offset=name.offset)
        if name.schema not in self._objects.schemas:
            nearest = suggest(name.schema, self._objects.schemas)
            hint = f'Did you mean "{nearest}"?' if nearest else f'CREATE SCHEMA "{name.schema}" first.'
            raise SqlError("3F000", f'schema "{name.schema}" does not exist', offset=name.offset, hint=hint)
        return name.schema

    def _taken_in(self, schema: str) -> Callable[[str], bool]:
        return lambda name: self._objects.is_taken(name, schema)

    def _free_name(self, name: str, schema: str) -> str:
        number, free = 0, name
        while self._objects.is_taken(free, schema):
            number += 1
            free = f"{name}{number}"
        return free

    async def _drop_key(self, name: QualifiedName) -> bool:
        """Drop a unique index; return whether a table has an index of the name.

        Raises:
            SqlError: a constraint needs the index (2BP01).
        """
        schemas = self._objects.path if name.schema is None else (name.schema,)
        for item in [item for item in self._objects.items.values() if item.schema in schemas]:
            key = next((one for one in item.constraints if one.is_key and one.name == name.name), None)
            if key is not None and key.kind is not ConstraintKind.UNIQUE_INDEX:
                message = f"cannot drop index {key.name} because constraint {key.name} on table {item.name} requires it"
                hint = f"You can drop constraint {key.name} on table {item.name} instead."
                raise SqlError("2BP01", message, offset=name.offset, hint=hint)
            if key is not None:
                await alter_table(self._state, item, [DropConstraint(name.name, name.offset, is_index=True)])
                return True
        return False

    async def _drop(self, statement: Drop) -> Result:
        notices: list[Notice] = []
        dropped: list[Item] = []
        for name in statement.names:
            if statement.kind is ObjectKind.INDEX and await self._drop_key(name):
                continue
            if statement.kind is ObjectKind.SEQUENCE and (of_column := self._of_column(name)) is not None:
                drop_numbers(self._state, of_column, is_cascading=statement.is_cascading)
                continue
            item = self._item(name, statement.kind, is_missing_welcome=statement.if_exists)
            if item is None:
                notices.append(_missing(statement.kind, name))
            else:
                dropped.append(item)
        users = self._objects.users([item.id for item in dropped])
        others = [user for user in users if user.kind is not ObjectKind.INDEX and user not in dropped]
        of_tables = statement.kind is ObjectKind.DOMAIN and any(user.kind is ObjectKind.TABLE for user in others)
        if others and (of_tables or not statement.is_cascading):
            hint = "Drop the columns of the domain first, with ALTER TABLE." if of_tables else CASCADE
            raise depended(statement.kind.value, dropped[0], others, hint=hint)
        has_numbers = statement.kind in {ObjectKind.SEQUENCE, ObjectKind.TABLE}
        numbered = self._without_defaults(dropped) if has_numbers else []
        if numbered and not statement.is_cascading:
            raise depended(statement.kind.value, dropped[0], numbered)
        removed = (*dropped, *users)
        changed = {one.id: one for one in self._without_foreign_keys(removed, is_cascading=statement.is_cascading)}
        for item in numbered:
            changed[item.id] = replace(changed.get(item.id, item), columns=item.columns)
        if dropped:
            add_change(self._state, *changed.values(), removed={item.id for item in removed})
        return Result(lambda _: f"DROP {statement.kind.value.upper()}", notices=tuple(notices))

    def _without_defaults(self, dropped: Sequence[Item]) -> list[Item]:
        """Return the other tables whose defaults use dropped sequences, or those of dropped tables, without these."""
        ids = {item.id for item in dropped}

        def owner(schema: str | None, name: str) -> GlobalId | None:
            item, of_column = self._objects.find(schema, name), self._objects.identity_sequence(schema, name)
            return item.id if item is not None else of_column.table.id if of_column is not None else None

        def uses(column: NamedColumn) -> bool:
            return any(owner(schema or None, name) in ids for schema, name in sequences_of_default(column.default))

        changed = []
        for item in self._objects.items.values():
            columns = tuple(replace(one, default=None) if uses(one) else one for one in item.columns)
            if columns != item.columns and item.id not in ids:
                changed.append(replace(item, columns=columns))
        return changed

    def _require_free(self, statement: Rename, schema: str) -> None:
        """Check that the new name is free in a schema (42P07)."""
        if self._objects.is_taken(statement.new_name, schema):
            message = f'relation "{statement.new_name}" already exists'
            raise SqlError("42P07", message, offset=statement.new_offset)

    def _rename_numbers(self, numbered: IdentitySequence, name: str) -> None:
        """Give the sequence of a column another name."""
        table, own = numbered.table, numbered.column
        renamed = replace(own, numbering=replace(numbering_of(table.name, own), name=name))
        columns = tuple(renamed if column == own else column for column in table.columns)
        add_change(self._state, replace(table, columns=columns))

    def _rename(self, statement: Rename) -> Result:
        kind, named = statement.kind, self._objects.find(statement.name.schema, statement.name.name)
        kind = named.kind if kind is ObjectKind.TABLE and named and named.kind in _RENAMED_AS_TABLES else kind
        tag = f"ALTER {statement.kind.value.upper()}"
        of_column = self._of_column(statement.name) if kind in {ObjectKind.TABLE, ObjectKind.SEQUENCE} else None
        if of_column is not None:
            self._require_free(statement, of_column.table.schema)
            self._rename_numbers(of_column, statement.new_name)
            return Result(lambda _: tag)
        item = self._item(statement.name, kind, is_missing_welcome=statement.if_exists)
        if item is None:
            return Result(lambda _: tag, notices=(_missing(statement.kind, statement.name),))
        self._require_free(statement, item.schema)
        columns = tuple(with_fixed_name(item.name, column) for column in item.columns)
        if columns == item.columns:
            add_change(self._state, renamed={item.id: statement.new_name})
        else:
            add_change(self._state, replace(item, name=statement.new_name, columns=columns))
        return Result(lambda _: tag)

    def _comment(self, statement: Comment) -> Result:
        name, text = statement.name, statement.text or None
        if statement.column is None:
            assert statement.kind is not None
            item = self._item(name, statement.kind, is_missing_welcome=False)
            assert item is not None
            add_change(self._state, replace(item, comment=text))
            return Result(lambda _: "COMMENT")
        named = relation_named(name, self._objects)
        index = column_named(named, statement.column, name.offset)
        item = self._objects.items.get(named.id)
        if item is None:
            hint = "Edit its description in the catalog, flow.yaml."
            raise SqlError("42809", f'"{name.name}" is not defined in SQL', offset=name.offset, hint=hint)
        columns = list(item.columns)
        columns[index] = replace(columns[index], comment=text)
        add_change(self._state, replace(item, columns=tuple(columns)))
        return Result(lambda _: "COMMENT")

    def _item(self, name: QualifiedName, kind: ObjectKind, *, is_missing_welcome: bool) -> Item | None:
        """Return the item of a name and kind; None if the item is missing and IF EXISTS allows this."""
        item = self._objects.find(name.schema, name.name)
        if item is None:
            named = self._objects.lookup(name.schema, name.name)
            if named is not None and named.kind is RelationKind.COLLECTION:
                hint = "Edit its definition in the catalog, flow.yaml."
                raise SqlError("42809", f'"{name.name}" is a collection', offset=name.offset, hint=hint)
            if is_missing_welcome:
                return None
            what = "type" if kind is ObjectKind.DOMAIN else kind.value
            nearest = suggest(name.name, (other.name for other in self._objects.items.values() if other.kind is kind))
            meant = f'Did you mean "{nearest}"?' if nearest else None
            sqlstate = "42704" if kind in {ObjectKind.INDEX, ObjectKind.DOMAIN} else "42P01"
            raise SqlError(sqlstate, f'{what} "{name.name}" does not exist', offset=name.offset, hint=meant)
        if item.kind is not kind:
            hint = f"Use DROP {item.kind.value.upper()} to remove a {item.kind.value}."
            raise SqlError("42809", f'"{name.name}" is not a {kind.value}', offset=name.offset, hint=hint)
        return item


def _on_commit(statement: CreateTable) -> dict[str, JSON]:
    """Return the effect of COMMIT on a new table, as its item keeps it."""
    return {ON_COMMIT: statement.on_commit} if statement.on_commit else {}


_RENAMED_AS_TABLES = frozenset({ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW, ObjectKind.INDEX, ObjectKind.SEQUENCE})
"""Kinds of relations other than tables that ALTER TABLE … RENAME TO renames."""


def _missing(kind: ObjectKind, name: QualifiedName) -> Notice:
    return Notice("NOTICE", "00000", f'{kind.value} "{name.name}" does not exist, skipping')


def _columns(view: PlannedView, *, are_stored: bool) -> tuple[NamedColumn, ...]:
    """Return the columns of a view or table over a query; names of the catalogs become texts."""
    require_narrow(len(view.columns))
    if are_stored:
        require_stored(column.type for column in view.columns)
    modifiers = (None if column.modifier and column.modifier.is_type else column.modifier for column in view.columns)
    pairs = zip(view.columns, modifiers, strict=True)
    return tuple(NamedColumn(column.name, column.type, modifier=modifier) for column, modifier in pairs)
