"""Refills: a binding that starts over is stored in a table beside its own, and then replaces its rows at once.

Readers of a table see the old rows until the transaction that replaces them commits. That transaction deletes the
rows whose keys are gone, and writes new and changed rows. Equal rows are not written if the table has documents, whose
texts show every difference of other columns. The table keeps its indexes, views, rights and foreign keys.

The table of checkpoints has a row with a range that contains no key. It stores, for each table of a materialization,
the generation of its rows and the running refill. Each refill has an identity, which its rows keep when they have
replaced the old ones. A session returns the identity of its rows to the runtime, whose checkpoints contain it: so a
checkpoint is never valid for other rows, such as those of a refill that was dropped and begun again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

from connectors.materialize_sql.column import Table
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.names import Naming, quote
from connectors.materialize_sql.statements import upsert

Query: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Function that executes a statement with parameters, and returns its rows."""

_NO_KEYS = -1
"""Begin and end of the key range of the row with the notes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table, or of a refill beside it.

    Attributes:
        generation: name of the rows' generation; empty if unknown.
        contents: identity of the rows; empty if they are of the first generation, or older than identities.
    """

    generation: str
    contents: str = ""

    @staticmethod
    def begin(generation: str) -> Rows:
        """Return rows of which none is stored yet, with a new identity."""
        return Rows(generation, uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Note:
    """The rows of a table and of its refill.

    Attributes:
        rows: rows of the table itself.
        refill: rows of the refill that is to replace them; None without a refill.
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
        table: table of the binding, with its columns as they are stored.
        rows: rows of the refill.
        naming: rules of the database's names.
    """
    *schema, name = table.path
    ending = f"__refill_{rows.contents[:12]}"
    begin = name.encode()[: naming.most_bytes - len(ending)].decode(errors="ignore")
    return replace(table, path=(*schema, begin + ending), comment=f"Rows that are to replace those of {name}.")


def replacement(table: Table, beside: Table, dialect: Dialect) -> list[str]:
    """Return the statements that replace a table's rows by those of its refill, and drop the refill.

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
