"""The guard: what SQL of a catalog may do to the database it is run on, and which tables it reads and writes.

The runtime owns the transaction: what a lambda did is committed with the documents it published, or not at all.
SQLite's authorizer is asked about everything a statement would do when it is prepared, triggers included, so a refusal
comes before anything has happened, and costs documents nothing. Besides, nothing can be committed while a guard is on:
whatever might have ended the runtime's transaction, what is run after it leaves nothing.
"""

from __future__ import annotations

from types import TracebackType

import apsw

from derive.protocol.derive import STATE_TABLES

MIGRATIONS = "flow_migrations"
"""The table that remembers which migrations were applied."""

_OWN_TABLES = STATE_TABLES | {MIGRATIONS}

_TABLE_ARGUMENT = {
    apsw.SQLITE_READ: 0,
    apsw.SQLITE_INSERT: 0,
    apsw.SQLITE_UPDATE: 0,
    apsw.SQLITE_DELETE: 0,
    apsw.SQLITE_CREATE_TABLE: 0,
    apsw.SQLITE_DROP_TABLE: 0,
    apsw.SQLITE_CREATE_VTABLE: 0,
    apsw.SQLITE_DROP_VTABLE: 0,
    apsw.SQLITE_CREATE_VIEW: 0,
    apsw.SQLITE_DROP_VIEW: 0,
    apsw.SQLITE_ALTER_TABLE: 1,
    apsw.SQLITE_CREATE_INDEX: 1,
    apsw.SQLITE_DROP_INDEX: 1,
    apsw.SQLITE_CREATE_TRIGGER: 1,
    apsw.SQLITE_DROP_TRIGGER: 1,
}
"""Actions on a table, with the place of its name among the authorizer's two arguments."""

_TRANSACTION = "the runtime owns the transaction and the database"
_REFUSED = {
    apsw.SQLITE_TRANSACTION: f"may not begin or end a transaction: {_TRANSACTION}",
    apsw.SQLITE_SAVEPOINT: f"may not use savepoints: {_TRANSACTION}",
    apsw.SQLITE_ATTACH: f"may not use ATTACH: {_TRANSACTION}",
    apsw.SQLITE_DETACH: f"may not use DETACH: {_TRANSACTION}",
    apsw.SQLITE_PRAGMA: f"may not use PRAGMA: {_TRANSACTION}",
    **dict.fromkeys(
        (
            apsw.SQLITE_CREATE_TEMP_TABLE,
            apsw.SQLITE_CREATE_TEMP_INDEX,
            apsw.SQLITE_CREATE_TEMP_TRIGGER,
            apsw.SQLITE_CREATE_TEMP_VIEW,
        ),
        "may not make anything temporary: it would be gone with the transaction",
    ),
}
_REFUSED_FUNCTIONS = {
    "total_changes": "may not ask for total_changes(): it counts what is done for other documents, too",
    "load_extension": "may not use load_extension(): extensions are not loaded",
}
_INNER_PRAGMAS = frozenset({"data_version", "page_size"})
"""What full-text search asks of its database by itself."""


class Guard:
    """Watches over a database while SQL of a catalog is prepared or run on it (`with guard:`).

    Attributes:
        db: the database.
        refusal: what was refused last, to follow the name of what did it.
        refused: the table or function it was about, if it was about one.
        reads: tables that were read by what was prepared since `forget`.
        writes: tables that were written or changed.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        self.forget()

    def forget(self) -> None:
        """Begin anew with what was seen."""
        self.refusal: str | None = None
        self.refused: str | None = None
        self.reads: set[str] = set()
        self.writes: set[str] = set()

    def __enter__(self) -> None:
        self.db.authorizer = self._authorize
        self.db.set_commit_hook(lambda: True)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.db.authorizer = None
        self.db.set_commit_hook(None)

    def _authorize(self, action: int, first: str | None, second: str | None, _: str | None, by: str | None) -> int:
        table = (first, second)[_TABLE_ARGUMENT[action]] if action in _TABLE_ARGUMENT else None
        refusal, about = _refusal_of(action, first, table), table
        if action == apsw.SQLITE_FUNCTION and second:
            refusal, about = _REFUSED_FUNCTIONS.get(second.lower()), second
        if refusal:
            self.refusal, self.refused = f"{refusal} (by way of '{by}')" if by else refusal, about
            return apsw.SQLITE_DENY
        if table:
            (self.reads if action == apsw.SQLITE_READ else self.writes).add(table)
        return apsw.SQLITE_OK


def _refusal_of(action: int, first: str | None, table: str | None) -> str | None:
    name = (table or "").lower()
    if name in _OWN_TABLES:
        return f"may not touch the table '{name}', in which the runtime keeps its own state"
    if action == apsw.SQLITE_READ and (name.startswith("pragma_") or name == "dbstat"):
        return f"may not read '{name}': how the runtime keeps its state is not the same everywhere"
    if action == apsw.SQLITE_PRAGMA and first in _INNER_PRAGMAS:
        return None
    return _REFUSED.get(action)
