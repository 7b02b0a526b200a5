"""The existing tables of bindings, the changes they need, and the table that a session stores into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.kit.requests import Binding
from connectors.materialize_sql.binding import table_of
from connectors.materialize_sql.column import ExistingTable, Table
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.endpoint import Endpoint
from connectors.materialize_sql.fence import CHECKPOINTS
from connectors.materialize_sql.migration import Migration, migrate
from connectors.materialize_sql.refill import Note, Rows, table_beside
from derive.errors import EndpointError


def table_path(schema: tuple[str, ...], name: str, dialect: Dialect) -> tuple[str, ...]:
    """Return the path of a table in a schema.

    Raises:
        EndpointError: the name is not allowed for a table of a binding.
    """
    reason = "checkpoints are in it" if name == CHECKPOINTS else dialect.naming.refusal(name)
    if reason is not None:
        raise EndpointError(f"no table can be called '{name}': {reason}", hint="name another one")
    return (*schema, name)


def not_ready(dialect: Dialect, reason: str) -> EndpointError:
    """Return the error of a session that opens before its materialization is applied."""
    return EndpointError(f"{dialect.title}: {reason}", hint="it was changed since; apply the materialization again")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of bindings.

    Attributes:
        dialect: dialect of the database.
        endpoint: connection to the database.
        schema: path of their schema; empty without schemas.
    """

    dialect: Dialect
    endpoint: Endpoint
    schema: tuple[str, ...]

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Return the path of the table of checkpoints."""
        return (*self.schema, CHECKPOINTS)

    def path(self, binding: Binding) -> tuple[str, ...]:
        """Return the path of a binding's table."""
        return table_path(self.schema, binding.resource_path[-1], self.dialect)

    def describe(self, binding: Binding) -> ExistingTable | None:
        """Return a binding's existing table; None if it is missing."""
        return self.endpoint.describe(self.path(binding))

    def require(self, binding: Binding) -> None:
        """Check that a table exists whose contents a checkpoint records.

        Raises:
            EndpointError: the table is missing.
        """
        if self.describe(binding) is None:
            name = ".".join(self.path(binding))
            raise EndpointError(
                f"{self.dialect.title}: the table '{name}' was dropped; made anew, it would lack what it had",
                hint="restore it; or, to have all stored again, raise 'backfill' of its binding, or start over: flowctl"
                " reset",
            )

    def migration(self, binding: Binding) -> Migration:
        """Return the migration of a binding's table.

        Raises:
            EndpointError: the table cannot be changed to the needed one.
        """
        path = self.path(binding)
        table = table_of(binding, self.dialect, path)
        migration = migrate(table, self.endpoint.describe(path), self.dialect)
        for field, reason in migration.faults.items():
            what = f"table '{'.'.join(path)}' cannot have the field '{field}': {reason}" if field else reason
            hint = "exclude the field, or name another table; rows that are there are never changed to fit"
            raise EndpointError(what, hint=hint)
        return migration

    def has_refill(self, table: Table, note: Note, generation: str) -> bool:
        """Return whether a table has a refill of a generation, with the table's current columns.

        Args:
            table: current or future table of a binding.
            note: note of the table.
            generation: needed generation.
        """
        if note.refill is None or note.refill.generation != generation:
            return False
        beside = table_beside(table, note.refill, self.dialect.naming)
        return migrate(beside, self.endpoint.describe(beside.path), self.dialect).is_ready

    def stored(self, binding: Binding, notes: Mapping[str, Note]) -> tuple[Table, str]:
        """Return the table that a session stores a binding into, and the identity of its rows.

        Args:
            binding: binding of the session.
            notes: note of each table, by name.

        Raises:
            EndpointError: the table does not fit this version of the materialization.
        """
        migration = self.migration(binding)
        table = migration.table
        name = ".".join(table.path)
        note = notes.get(table.path[-1], Note(Rows(binding.generation)))
        if not migration.is_ready:
            raise not_ready(self.dialect, f"the table '{name}' is not as this version needs it")
        if not binding.generation or note.rows.generation == binding.generation:
            return table, note.rows.contents
        if not self.has_refill(table, note, binding.generation):
            raise not_ready(self.dialect, f"the table '{name}' is not being refilled as this version needs it")
        assert note.refill is not None
        return table_beside(table, note.refill, self.dialect.naming), note.refill.contents
