"""Migration: the change of an existing table to the needed table with all its rows, or the reasons against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Table
from connectors.materialize_sql.dialect import NO_CHANGES, Changes, Dialect


@dataclass(frozen=True, slots=True)
class Migration:
    """The change of a table.

    Attributes:
        table: table after the change; each column has the kind as which its values are stored.
        statements: statements to execute in one transaction, in order.
        faults: reasons against the change, by field; then no statement may be executed. The empty field is the table.
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
    """Return the column as stored in an existing one, or the reason against it."""
    kind = dialect.kind_in(there, column.kind, is_key=column.is_key)
    if kind is not None:
        return replace(column, name=there.name, kind=kind, type=there.type)
    if (there.type, column.type) in dialect.widenings and (dialect.widens_keys or not column.is_key):
        return replace(column, name=there.name)
    return (
        f"its column '{there.name}' has type {there.type}, and values of '{column.field}' are {column.kind.value} now,"
        f" which is {column.type}"
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
        yield "", f"{is_keyed}, and '{sorted(there - desired)[0]}' is no field of the collection's key"
