"""Constraints: the fields of a collection that a table can, should and must have."""

from __future__ import annotations

from collections.abc import Iterator

from connectors.kit.requests import Field, ProposedBinding
from connectors.materialize_sql.binding import collisions, column_of, document_column
from connectors.materialize_sql.column import Column, ExistingTable, Table
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.kind import Kind
from connectors.materialize_sql.migration import fault_of, find_column, migrate
from derive.errors import EndpointError
from derive.protocol.materialization import Constraint, ConstraintType


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
    constraints.update(_collided(columns, collection.fields, existing, dialect))
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
    """Return one column per location of the key, of its first field, in the order of the key."""
    fields = binding.collection.fields
    chosen = {fields[column.field].pointer: column for column in reversed(keys)}
    return tuple(chosen[pointer] for pointer in binding.collection.key if pointer in chosen)


def _null(field: Field, existing: ExistingTable | None, dialect: Dialect) -> Constraint:
    """Return the constraint of a field whose values can only be null; an existing column would keep its values."""
    if find_column(existing, dialect.naming.column(field.name), dialect) is None:
        return Constraint(ConstraintType.FIELD_FORBIDDEN, "its values can only be null")
    return Constraint(ConstraintType.UNSATISFIABLE, "its values can only be null now, and it has a column")


def _constraint(field: Field, column: Column, *, delta_updates: bool, is_there: bool) -> Constraint:
    if field.is_key:
        return Constraint(ConstraintType.LOCATION_REQUIRED, "rows are known by the key")
    if field.pointer == "":
        if delta_updates:
            return Constraint(ConstraintType.LOCATION_RECOMMENDED, "documents may be kept as they come")
        return Constraint(ConstraintType.LOCATION_REQUIRED, "the document of a row is reduced with those that follow")
    if column.kind is Kind.JSON and is_there:  # the column would keep outdated values
        return Constraint(ConstraintType.LOCATION_RECOMMENDED, "it has a column")
    if column.kind is Kind.JSON:
        return Constraint(ConstraintType.FIELD_OPTIONAL, "its values are JSON, which the document has as well")
    return Constraint(ConstraintType.LOCATION_RECOMMENDED, "its values fit a column of one type")


def _collided(
    columns: dict[str, Column], fields: object, existing: ExistingTable | None, dialect: Dialect
) -> Iterator[tuple[str, Constraint]]:
    """Yield constraints that forbid all but one of the fields with the same column.

    The allowed field is one of the key, or one whose column exists.
    """
    for names in collisions(columns, dialect).values():
        there = existing.columns if existing else {}
        first = min(names, key=lambda name: (not columns[name].is_key, columns[name].name not in there, name))
        for name in names:
            if name != first:
                reason = f"in {dialect.title} its column would be that of '{first}'"
                yield name, Constraint(ConstraintType.FIELD_FORBIDDEN, reason)
