"""The state that a module returns for the next transactions, in the database of a shard."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON

if TYPE_CHECKING:
    import apsw


class State:
    """One shard's state, inside the transaction of its database.

    Args:
        database: the database of the shard, or an in-memory database if documents have no shard.
        table: name of the table that keeps the state.

    Attributes:
        place: name of the shard of the state; empty if the writes are not kept for the next transaction.
    """

    def __init__(self, database: apsw.Connection, table: str) -> None:
        self._database, self._table = database, table
        # each attempt has a folder in the folder of the shard
        self.place = os.path.dirname(os.path.dirname(database.filename))

    def version(self) -> str | None:
        """Return the version of the committed state; None if there is none."""
        row = self._row()
        return row[0] if row else None

    def value(self) -> JSON:
        """Return the state; an empty object if there is none."""
        row = self._row()
        return parse_exact(row[1].encode()) if row else {}

    def _row(self) -> tuple[str, str] | None:
        if self._database.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (self._table,)).get is None:
            return None
        select = f"SELECT version, state FROM {self._table}"
        row: tuple[str, str] | None = self._database.execute(select).fetchone()
        return row

    def commit(self, updates: Sequence[Mapping[str, JSON]]) -> str:
        """Write the updates of a transaction.

        Args:
            updates: updates in order, each with `updated` and `mergePatch`: a replacement of the state, or a merge
                patch (RFC 7396).

        Returns:
            The version of the state, which always changes, because the module has processed documents.
        """
        value = self.value()
        for update in updates:
            value = merged(value, update["updated"]) if update["mergePatch"] else update["updated"]
        version = str(uuid.uuid4())
        table = self._table
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} (version TEXT NOT NULL, state TEXT NOT NULL)")
        self._database.execute(f"DELETE FROM {table}")
        self._database.execute(f"INSERT INTO {table} VALUES (?, ?)", (version, dump_exact(value).decode()))
        return version


def merged(target: JSON, patch: JSON) -> JSON:
    """Return the target changed by a merge patch (RFC 7396); the target itself is not modified."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


_JSON_VALUE = """CASE {0}.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'null' THEN 'null'
    WHEN 'text' THEN json_quote({0}.value) ELSE {0}.value END"""


def state_view(table: str) -> str:
    """Return a SELECT of a shard's state: a property, a key within it if its value is an object, and the value as JSON.

    Args:
        table: the table of the state; `{schema}` in the result stands for the shard's database.
    """
    return f"""
SELECT field.key AS field, entry.key AS key,
    CASE WHEN entry.key IS NULL THEN {_JSON_VALUE.format("field")} ELSE {_JSON_VALUE.format("entry")} END AS value
FROM {{schema}}.{table} AS stored, json_each(stored.state) AS field
LEFT JOIN json_each(CASE field.type WHEN 'object' THEN field.value ELSE '{{{{}}}}' END) AS entry
"""
