"""The state that a module returned from `startCommit`, stored in its shard's database for the next session."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

from derive.document.exact import dump_exact, parse_exact
from derive.protocol.specs import JSON

if TYPE_CHECKING:
    import apsw

_TABLE = "CREATE TABLE IF NOT EXISTS flow_typescript (version TEXT NOT NULL, state TEXT NOT NULL)"
_EXISTS = "SELECT 1 FROM sqlite_schema WHERE name = 'flow_typescript'"


class State:
    """One shard's state, inside the transaction of its database.

    Args:
        database: the shard's database, or an in-memory one if documents have no shard.

    Attributes:
        place: name of the state's shard; empty if writes do not persist until the next transaction.
    """

    def __init__(self, database: apsw.Connection) -> None:
        self._database = database
        self.place = os.path.dirname(os.path.dirname(database.filename))  # each attempt has a folder in the shard's

    def version(self) -> str | None:
        """Return the version of the committed state; None if there is none."""
        row = self._row()
        return row[0] if row else None

    def value(self) -> JSON:
        """Return the state; an empty object if there is none."""
        row = self._row()
        return parse_exact(row[1].encode()) if row else {}

    def _row(self) -> tuple[str, str] | None:
        if self._database.execute(_EXISTS).get is None:
            return None
        row: tuple[str, str] | None = self._database.execute("SELECT version, state FROM flow_typescript").fetchone()
        return row

    def commit(self, answer: dict[str, JSON] | None) -> str:
        """Write the result of `startCommit`.

        Args:
            answer: `updated` and `mergePatch`: a replacement of the state, or a merge patch (RFC 7396); None if the
                state is unchanged.

        Returns:
            The version of the state, which always changes, because the module has processed documents.
        """
        value = self.value()
        if answer is not None:
            value = merged(value, answer["updated"]) if answer["mergePatch"] else answer["updated"]
        version = str(uuid.uuid4())
        self._database.execute(_TABLE)
        self._database.execute("DELETE FROM flow_typescript")
        self._database.execute("INSERT INTO flow_typescript VALUES (?, ?)", (version, dump_exact(value).decode()))
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
