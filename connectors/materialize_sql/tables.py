"""The existing tables of bindings, the changes they need, and tables for bindings that start over.

Readers of a table see the old rows until the transaction that replaces them commits. This transaction deletes the rows
whose keys no longer exist, and writes new and changed rows. If the table has documents, equal rows are not written,
because the texts of documents show every difference of other columns. The table keeps its indexes, views, rights and
foreign keys.

In the table of checkpoints, one row has a range that contains no key. It stores, for each table of a materialization,
the generation of its rows and the running refill. Each refill has an identity, which its rows keep after they have
replaced the old rows. A session returns the identity of its rows to the runtime, whose checkpoints contain it. So a
checkpoint is not valid for other rows, such as the rows of a refill that was dropped and begun again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

from connectors.kit.requests import Binding
from connectors.materialize_sql.binding import Migration, migrate, table_of
from connectors.materialize_sql.column import ExistingTable, Naming, Table, quote
from connectors.materialize_sql.dialect import Dialect, upsert
from connectors.materialize_sql.endpoint import CHECKPOINTS, Endpoint
from derive.errors import EndpointError

Query: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Function that executes a statement with parameters, and returns its rows."""

_NO_KEYS = -1
"""Begin and end of an empty key range; the row of this range has the notes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table, or of a refill beside it.

    Attributes:
        generation: name of the rows' generation; empty if unknown.
        contents: identity of the rows; empty if the rows belong to the first generation, or are older than identities.
    """

    generation: str
    contents: str = ""

    @staticmethod
    def begin(generation: str) -> Rows:
        """Return new rows, of which none is stored yet, with a new identity."""
        return Rows(generation, uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Note:
    """The note in the comment of a table: which rows the table and its refill have.

    Attributes:
        rows: rows of the table itself.
        refill: rows of the refill that will replace these rows; None without a refill.
    """

    rows: Rows
    refill: Rows | None = None

    def complete(self) -> Note:
        """Return the note after the refill has replaced the rows."""
        assert self.refill is not None
        return Note(self.refill)


def read_notes(query: Query, dialect: Dialect, path: Sequence[str], materialization: str) -> dict[str, Note]:
    """Return the note of each table of a materialization, by the table's name.

    Args:
        query: function that executes a statement with parameters.
        dialect: dialect of the database.
        path: path of the table of checkpoints, which exists.
        materialization: name of the materialization.
    """
    one, two = dialect.parameter(1), dialect.parameter(2)
    where = f'"materialization" = {one} AND "key_begin" = {two}'
    rows = query(f'SELECT "checkpoint" FROM {dialect.table(path)} WHERE {where}', [materialization, _NO_KEYS])
    return {name: _note_of(value) for (text,) in rows for name, value in orjson.loads(bytes(text)).items()}


def write_notes(
    query: Query, dialect: Dialect, path: Sequence[str], materialization: str, notes: Mapping[str, Note]
) -> None:
    """Replace the notes of a materialization, in the running transaction."""
    table, text = dialect.table(path), orjson.dumps(dict(notes))
    one, two, three = map(dialect.parameter, (1, 2, 3))
    key = [materialization, _NO_KEYS]
    if query(f'SELECT 1 FROM {table} WHERE "materialization" = {one} AND "key_begin" = {two}', key):
        where = f'"materialization" = {two} AND "key_begin" = {three}'
        query(f'UPDATE {table} SET "checkpoint" = {one} WHERE {where}', [text, *key])
    else:
        query(f"INSERT INTO {table} VALUES ({dialect.parameters(5)})", [*key, _NO_KEYS, 0, text])


def table_beside(table: Table, rows: Rows, naming: Naming) -> Table:
    """Return the table of a refill.

    Args:
        table: table of the binding, with its stored columns.
        rows: rows of the refill.
        naming: rules of the database's names.
    """
    *schema, name = table.path
    ending = f"__refill_{rows.contents[:12]}"
    begin = name.encode()[: naming.most_bytes - len(ending)].decode(errors="ignore")
    return replace(table, path=(*schema, begin + ending), comment=f"Rows that are to replace those of {name}.")


def replacement(table: Table, beside: Table, dialect: Dialect) -> list[str]:
    """Return the statements that replace a table's rows by the rows of its refill, and drop the refill.

    Rows without a document do not belong to the runtime, and stay.

    Args:
        table: table of the binding.
        beside: table of the refill, with the same columns.
        dialect: dialect of the database.
    """
    name, other = dialect.table(table.path), dialect.table(beside.path)
    names = ", ".join(f"refilled.{quote(column.name)}" for column in table.columns)
    matches = " AND ".join(f"refilled.{quote(column.name)} = stored.{quote(column.name)}" for column in table.keys)
    equal = [dialect.is_same(column, "refilled", "stored") for column in table.values]
    is_written = "true"
    if table.document is not None:
        is_written = f"NOT EXISTS (SELECT 1 FROM {name} AS stored WHERE {' AND '.join([matches, *equal])})"
    is_ours = "" if table.document is None else f"stored.{quote(table.document)} IS NOT NULL AND "
    return [
        f"DELETE FROM {name} AS stored WHERE {is_ours}NOT EXISTS (SELECT 1 FROM {other} AS refilled WHERE {matches})",
        upsert(dialect, table, f"SELECT {names} FROM {other} AS refilled WHERE {is_written}"),
        drop(beside, dialect),
    ]


def drop(beside: Table, dialect: Dialect) -> str:
    """Return the statement that drops a refill's table."""
    return f"DROP TABLE IF EXISTS {dialect.table(beside.path)}"


def _note_of(value: Mapping[str, Any]) -> Note:
    return Note(Rows(**value["rows"]), Rows(**value["refill"]) if value["refill"] else None)


def table_path(schema: tuple[str, ...], name: str, dialect: Dialect) -> tuple[str, ...]:
    """Return the path of a table in a schema.

    Raises:
        EndpointError: the name is not allowed for a table of a binding.
    """
    reason = (
        "this name is reserved for the table of checkpoints" if name == CHECKPOINTS else dialect.naming.refusal(name)
    )
    if reason is not None:
        raise EndpointError(f"a table cannot have the name '{name}': {reason}", hint="choose another name")
    return (*schema, name)


def not_ready(dialect: Dialect, reason: str) -> EndpointError:
    """Return the error of a session that opens before its materialization is applied."""
    return EndpointError(
        f"{dialect.title}: {reason}",
        hint="the table was changed after the materialization was applied; flowctl applies it again and retries",
    )


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
        """Return the existing table of a binding; None if it is missing."""
        return self.endpoint.describe(self.path(binding))

    def require(self, binding: Binding) -> None:
        """Check that a table exists if a checkpoint says that it has rows.

        Raises:
            EndpointError: the table is missing.
        """
        if self.describe(binding) is None:
            name = ".".join(self.path(binding))
            raise EndpointError(
                f"{self.dialect.title}: the table '{name}' was dropped; recreating it would lose its rows",
                hint="restore it; or, to store all rows again, raise 'backfill' of its binding, or start over: flowctl"
                " reset",
            )

    def migration(self, binding: Binding) -> Migration:
        """Return the migration of a binding's table.

        Raises:
            EndpointError: the table cannot be changed to the needed table.
        """
        path = self.path(binding)
        table = table_of(binding, self.dialect, path)
        migration = migrate(table, self.endpoint.describe(path), self.dialect)
        for field, reason in migration.faults.items():
            what = f"table '{'.'.join(path)}' cannot have the field '{field}': {reason}" if field else reason
            hint = "exclude the field, or name another table; existing rows are never converted"
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
        """Return the table into which a session stores the rows of a binding, and the identity of these rows.

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
            raise not_ready(self.dialect, f"the table '{name}' does not fit this version of the materialization")
        if not binding.generation or note.rows.generation == binding.generation:
            return table, note.rows.contents
        if not self.has_refill(table, note, binding.generation):
            raise not_ready(
                self.dialect, (f"the refill of the table '{name}' does not fit this version of the materialization")
            )
        assert note.refill is not None
        return table_beside(table, note.refill, self.dialect.naming), note.refill.contents
