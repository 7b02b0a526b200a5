"""Converts a binding to the table that it needs: constraints of fields, and migrations of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from connectors.kit.requests import Binding, Field, ProposedBinding, SourceCollection
from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Kind, Table, key_kind_of, kind_of
from connectors.materialize_sql.dialect import NO_CHANGES, Changes, Dialect
from derive.document.exact import parse_exact
from derive.document.pointer import parse_pointer
from derive.errors import EndpointError
from derive.protocol.materialization import Constraint, ConstraintType
from derive.schema.shape import Shape, infer, locate

TYPE = "type"
"""The option of a field that names the type of its column."""

_TYPES = {"text": Kind.TEXT, "json": Kind.JSON}


def table_of(binding: Binding, dialect: Dialect, path: tuple[str, ...]) -> Table:
    """Return the table that a binding needs.

    Args:
        binding: binding with its fields selected.
        dialect: dialect of the database.
        path: path of the table.

    Raises:
        EndpointError: a field's options are invalid, or two fields have the same column.
    """
    collection = binding.collection
    columns = [column_of(field, collection, dialect, is_key=True) for field in binding.keys]
    for field in binding.values:
        column = column_of(field, collection, dialect, config=binding.field_config.get(field.name))
        if column is None:
            raise EndpointError(
                f"field '{field.name}' of '{collection.name}' can only be null", hint="exclude the field"
            )
        columns.append(column)
    document = None if binding.document is None else document_column(binding.document, collection, dialect)
    present = tuple(column for column in (*columns, document) if column is not None)
    _refuse_collisions(present, dialect)
    return Table(
        path, present, binding.delta_updates, document.name if document else None, f"The collection {collection.name}."
    )


def column_of(
    field: Field, collection: SourceCollection, dialect: Dialect, *, is_key: bool = False, config: Any = None
) -> Column | None:
    """Return the column of a field; None if its values can only be null.

    Args:
        field: field of the collection.
        collection: the collection, whose schema may have bounds of numbers.
        dialect: dialect of the database.
        is_key: whether the field is a component of the key.
        config: the author's options of the field.

    Raises:
        EndpointError: the options are invalid.
    """
    minimum, maximum = _bounds(collection.schema_json, field.pointer)
    kind: Kind | None
    if is_key:
        kind = key_kind_of(field.types, must_exist=field.must_exist, minimum=minimum, maximum=maximum)
    else:
        kind = kind_of(field.types or ("object", "string"), field.format, minimum=minimum, maximum=maximum)
        kind = _chosen(field, kind, config)
    if kind is None:
        return None
    not_null = is_key or (field.must_exist and "null" not in field.types and bool(field.types))
    return Column(
        field=field.name,
        name=dialect.naming.column(field.name),
        kind=kind,
        type=dialect.type_of(kind, is_key=is_key),
        is_key=is_key,
        not_null=not_null,
        comment=_comment(field, collection.name),
    )


def document_column(name: str, collection: SourceCollection, dialect: Dialect) -> Column:
    """Return the column of whole documents."""
    return Column(
        field=name,
        name=dialect.naming.column(name),
        kind=Kind.JSON,
        type=dialect.types[Kind.JSON],
        not_null=True,
        comment=f"Whole documents of {collection.name}.",
    )


def collisions(columns: Mapping[str, Column], dialect: Dialect) -> dict[str, list[str]]:
    """Return the fields whose columns have the same name in the database, by this name."""
    names: dict[str, list[str]] = {}
    for field, column in columns.items():
        names.setdefault(dialect.naming.fold(column.name), []).append(field)
    return {name: fields for name, fields in names.items() if len(fields) > 1}


def _refuse_collisions(columns: tuple[Column, ...], dialect: Dialect) -> None:
    for fields in collisions({column.field: column for column in columns}, dialect).values():
        names = " and ".join(f"'{name}'" for name in fields)
        hint = "exclude one of them, or give it another name by a projection"
        raise EndpointError(f"fields {names} would have the same column in {dialect.title}", hint=hint)


def _chosen(field: Field, kind: Kind | None, config: Any) -> Kind | None:
    if not config:
        return kind
    chosen = _TYPES.get(config.get(TYPE, "")) if isinstance(config, dict) else None
    if chosen is None or set(config) != {TYPE}:
        raise EndpointError(
            f"field '{field.name}' has options {config}", hint="the options are {type: text} and {type: json}"
        )
    if chosen is Kind.TEXT and not set(field.types) <= {"string", "null"}:
        raise EndpointError(
            f"field '{field.name}' cannot be stored as {{type: text}}: some of its values are not strings",
            hint="use {type: json}, which takes values of any type",
        )
    return chosen


def _comment(field: Field, collection: str) -> str:
    texts = [text.strip() for text in (field.title, field.description) if text.strip()]
    return ": ".join([f"{field.pointer or 'The document'} of {collection}", *texts]).replace("\0", "")


def _bounds(schema_json: str, pointer: str) -> tuple[float | None, float | None]:
    located, _ = locate(_shape(schema_json), parse_pointer(pointer))
    return located.minimum, located.maximum


@lru_cache(maxsize=64)
def _shape(schema_json: str) -> Shape:
    return infer(parse_exact(schema_json.encode() or b"{}"))


@dataclass(frozen=True, slots=True)
class Migration:
    """The change of a table.

    Attributes:
        table: table after the change; the kind of each column is the kind of its stored values.
        statements: statements to execute in one transaction, in order.
        faults: reasons against the change, by field (empty for the table); with a fault, no statement may be executed.
        changes: differences of an existing table.
    """

    table: Table
    statements: tuple[str, ...]
    faults: dict[str, str]
    changes: Changes = NO_CHANGES

    @property
    def is_ready(self) -> bool:
        """Return whether rows can be stored without a change; comments do not matter."""
        return not self.faults and replace(self.changes, described=()) == NO_CHANGES and not self._creates

    @property
    def _creates(self) -> bool:
        return bool(self.statements) and self.changes == NO_CHANGES


def migrate(table: Table, existing: ExistingTable | None, dialect: Dialect) -> Migration:
    """Return the migration of a table.

    Args:
        table: needed table.
        existing: existing table; None if it is missing.
        dialect: dialect of the database.
    """
    if existing is None:
        return Migration(table, tuple(dialect.create(table)), {})
    by_name = {dialect.naming.fold(name): column for name, column in existing.columns.items()}
    faults = dict(_key_faults(table, existing, dialect))
    columns, added, widened, described = [], [], [], []
    for column in table.columns:
        there = by_name.pop(dialect.naming.fold(column.name), None)
        if there is None:
            added.append(replace(column, not_null=False))
            columns.append(added[-1])
            continue
        fitted = _fit(column, there, dialect)
        if isinstance(fitted, str):
            faults.setdefault(column.field, fitted)
            continue
        columns.append(fitted)
        if fitted.type != there.type:
            widened.append(fitted)
        if dialect.comments_on_columns(table) and column.comment != there.comment:
            described.append(fitted)
    loosened = [fitted.name for fitted in columns if fitted not in added and _is_looser(fitted, existing)]
    loosened += [there.name for there in by_name.values() if there.not_null and not there.has_default]
    changes = Changes(tuple(added), tuple(loosened), tuple(widened), tuple(described))
    statements = dialect.alter(table, existing, changes) if changes != NO_CHANGES and not faults else []
    return Migration(replace(table, columns=tuple(columns)), tuple(statements), faults, changes)


def fault_of(column: Column, existing: ExistingTable | None, dialect: Dialect) -> str | None:
    """Return the reason against a field's column in an existing table; None if there is none.

    Args:
        column: column of the field.
        existing: the table.
        dialect: dialect of the database.
    """
    there = find_column(existing, column.name, dialect)
    if there is None:
        return None
    fitted = _fit(column, there, dialect)
    return fitted if isinstance(fitted, str) else None


def find_column(existing: ExistingTable | None, name: str, dialect: Dialect) -> ExistingColumn | None:
    """Return the column with a name in a table; None if there is none."""
    if existing is None:
        return None
    fold = dialect.naming.fold
    return next((there for there in existing.columns.values() if fold(there.name) == fold(name)), None)


def _fit(column: Column, there: ExistingColumn, dialect: Dialect) -> Column | str:
    """Return an existing column with the kind under which it stores the needed column, or the reason against it."""
    kind = dialect.kind_in(there, column.kind, is_key=column.is_key)
    if kind is not None:
        return replace(column, name=there.name, kind=kind, type=there.type)
    if (there.type, column.type) in dialect.widenings and (dialect.widens_keys or not column.is_key):
        return replace(column, name=there.name)
    return (
        f"its column '{there.name}' has type {there.type}, but values of '{column.field}' are {column.kind.value} now,"
        f" and need a column of type {column.type}"
    )


def _is_looser(column: Column, existing: ExistingTable) -> bool:
    return existing.columns[column.name].not_null and not column.not_null


def _key_faults(table: Table, existing: ExistingTable, dialect: Dialect) -> Iterator[tuple[str, str]]:
    fold = dialect.naming.fold
    desired = set() if table.delta_updates else {fold(column.name) for column in table.keys}
    there = {fold(name) for name in existing.key}
    if desired == there:
        return
    name = ".".join(table.path)
    is_keyed = f"the table '{name}' has the primary key ({', '.join(sorted(existing.key))})"
    if table.delta_updates:
        yield table.keys[0].field, f"{is_keyed}, and delta updates append rows of any key"
    for column in table.keys:
        if fold(column.name) not in there:
            yield column.field, f"{is_keyed if there else f'the table {name!r} has no primary key'}, without it"
    if there - desired and not table.delta_updates:
        yield "", f"{is_keyed}, and '{sorted(there - desired)[0]}' is not a field of the collection's key"


def constrain(
    binding: ProposedBinding,
    path: tuple[str, ...],
    existing: ExistingTable | None,
    dialect: Dialect,
    *,
    delta_updates: bool,
) -> dict[str, Constraint]:
    """Return the constraints of all fields of a binding.

    Args:
        binding: the proposed binding.
        path: path of the table.
        existing: the existing table, if there is one.
        dialect: dialect of the database.
        delta_updates: whether rows are only appended.
    """
    collection = binding.collection
    constraints: dict[str, Constraint] = {}
    columns: dict[str, Column] = {}
    for field in collection.fields.values():
        column: Column | None
        try:
            if field.pointer == "":
                column = document_column(field.name, collection, dialect)
            else:
                config = binding.field_config.get(field.name)
                column = column_of(field, collection, dialect, is_key=field.is_key, config=config)
        except EndpointError as exc:
            constraints[field.name] = Constraint(ConstraintType.UNSATISFIABLE, str(exc))
            continue
        if column is None:
            constraints[field.name] = _null(field, existing, dialect)
            continue
        columns[field.name] = column
        fault = fault_of(column, existing, dialect)
        if fault is None:
            is_there = find_column(existing, column.name, dialect) is not None
            constraints[field.name] = _constraint(field, column, delta_updates=delta_updates, is_there=is_there)
        else:
            constraints[field.name] = Constraint(ConstraintType.UNSATISFIABLE, fault)
    constraints.update(_collided(columns, existing, dialect))
    if existing is not None:
        keys = tuple(
            columns[field.name] for field in collection.fields.values() if field.is_key and field.name in columns
        )
        key_table = Table(path, _one_per_location(keys, binding), delta_updates)
        for name, reason in migrate(key_table, existing, dialect).faults.items():
            constraints[name or keys[0].field] = Constraint(ConstraintType.UNSATISFIABLE, reason)
    return constraints


def room_for(binding: ProposedBinding, existing: ExistingTable | None, dialect: Dialect) -> int:
    """Return the maximum number of fields of a table, without its existing columns that belong to no field."""
    fold = dialect.naming.fold
    names = {fold(dialect.naming.column(name)) for name in binding.collection.fields}
    others = [name for name in (existing.columns if existing else ()) if fold(name) not in names]
    return max(1, dialect.most_columns - len(others))


def _one_per_location(keys: tuple[Column, ...], binding: ProposedBinding) -> tuple[Column, ...]:
    """Return one column for each location of the key: the column of the location's first field."""
    fields = binding.collection.fields
    chosen = {fields[column.field].pointer: column for column in reversed(keys)}
    return tuple(chosen[pointer] for pointer in binding.collection.key if pointer in chosen)


def _null(field: Field, existing: ExistingTable | None, dialect: Dialect) -> Constraint:
    """Return the constraint of a field that can only be null; an existing column would keep old values."""
    if find_column(existing, dialect.naming.column(field.name), dialect) is None:
        return Constraint(ConstraintType.FIELD_FORBIDDEN, "its values can only be null")
    return Constraint(
        ConstraintType.UNSATISFIABLE, "its values can only be null now, but the table has a column of the field"
    )


def _constraint(field: Field, column: Column, *, delta_updates: bool, is_there: bool) -> Constraint:
    if field.is_key:
        return Constraint(ConstraintType.LOCATION_REQUIRED, "the key identifies rows")
    if field.pointer == "":
        if delta_updates:
            return Constraint(ConstraintType.LOCATION_RECOMMENDED, "whole documents can be stored")
        return Constraint(
            ConstraintType.LOCATION_REQUIRED, "the stored document of a row is reduced with later documents"
        )
    if column.kind is Kind.JSON and is_there:  # the column would keep outdated values
        return Constraint(ConstraintType.LOCATION_RECOMMENDED, "the table has a column of the field")
    if column.kind is Kind.JSON:
        return Constraint(ConstraintType.FIELD_OPTIONAL, "its values are JSON, which the document contains as well")
    return Constraint(ConstraintType.LOCATION_RECOMMENDED, "its values fit a column of one type")


def _collided(
    columns: dict[str, Column], existing: ExistingTable | None, dialect: Dialect
) -> Iterator[tuple[str, Constraint]]:
    """Yield constraints that forbid all fields of a column except one.

    The allowed field is a field of the key, or a field whose column exists.
    """
    for names in collisions(columns, dialect).values():
        there = existing.columns if existing else {}
        first = min(names, key=lambda name: (not columns[name].is_key, columns[name].name not in there, name))
        for name in names:
            if name != first:
                reason = f"in {dialect.title}, '{first}' would have the same column"
                yield name, Constraint(ConstraintType.FIELD_FORBIDDEN, reason)
