"""The guard: restricts the actions of SQL of a catalog, and records the tables that the SQL reads and writes.

The runtime owns the transaction: the changes of a lambda are committed together with its published documents, or not at
all. SQLite's authorizer checks each action of a statement, including triggers, when the statement is prepared. So a
refusal precedes every change, and the check costs no time per document. While a guard is active, a commit hook also
refuses every commit.
"""

from __future__ import annotations

import apsw

from derive.lambda_sql.determinism import INNER_TABLES, MODULES, refusal_of_function
from derive.protocol.derive import STATE_TABLES

MIGRATIONS = "flow_migrations"
"""The table that records the applied migrations."""

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
"""Actions on a table, with the index of the table's name in the authorizer's two arguments."""

_MADE = frozenset({apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_CREATE_VIEW})
"""Actions that create an object in the database that the authorizer names, even if the statement lacks the word TEMP.
"""

_TEMPORARY = "may not create temporary objects: they end with the transaction"
_TRANSACTION = "the runtime owns the transaction and the database"
_REFUSED = {
    apsw.SQLITE_TRANSACTION: f"may not begin or end a transaction: {_TRANSACTION}",
    apsw.SQLITE_SAVEPOINT: f"may not use savepoints: {_TRANSACTION}",
    apsw.SQLITE_ATTACH: f"may not use ATTACH: {_TRANSACTION}",
    apsw.SQLITE_DETACH: f"may not use DETACH: {_TRANSACTION}",
    apsw.SQLITE_PRAGMA: f"may not use PRAGMA: {_TRANSACTION}",
    apsw.SQLITE_ANALYZE: "may not use ANALYZE: plans, and the order of rows, would differ from shard to shard",
    **dict.fromkeys(
        (
            apsw.SQLITE_CREATE_TEMP_TABLE,
            apsw.SQLITE_CREATE_TEMP_INDEX,
            apsw.SQLITE_CREATE_TEMP_TRIGGER,
            apsw.SQLITE_CREATE_TEMP_VIEW,
        ),
        _TEMPORARY,
    ),
}
_INNER_PRAGMAS = frozenset({"data_version", "page_size", "quick_check"})
"""Pragmas that full-text search uses internally, and ALTER TABLE uses to add a CHECK."""


class Guard:
    """Guards a database while SQL of a catalog is prepared or run on it (`with guard:`).

    Attributes:
        db: the database.
        has_clock: whether the functions of time and randomness follow the document.
        refusal: the last refusal, as a text that follows the name of the refused statement.
        refused: name of the refused table or function, if any.
        reads: tables read by statements prepared since `forget`.
        writes: tables written or changed.
        columns: tables and columns read.
        calls: functions called, in lower case.
    """

    def __init__(self, db: apsw.Connection, *, has_clock: bool = False) -> None:
        self.db, self.has_clock = db, has_clock
        self.forget()

    def forget(self) -> None:
        """Clear the recorded refusal, tables, columns and calls."""
        self.refusal: str | None = None
        self.refused: str | None = None
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.columns: set[tuple[str, str]] = set()
        self.calls: set[str] = set()

    def __enter__(self) -> None:
        self.db.authorizer = self._authorize
        self.db.set_commit_hook(lambda: True)

    def __exit__(self, *_: object) -> None:
        self.db.authorizer = None
        self.db.set_commit_hook(None)

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, by: str | None
    ) -> int:
        table = (first, second)[_TABLE_ARGUMENT[action]] if action in _TABLE_ARGUMENT else None
        refusal, about = _refusal_of(action, first, second, table, database), table
        if action == apsw.SQLITE_FUNCTION and second:
            name = second.lower()
            refusal, about = refusal_of_function(name, has_clock=self.has_clock), second
            self.calls.add(name)
        if refusal:
            self.refusal, self.refused = f"{refusal} (through '{by}')" if by else refusal, about
            return apsw.SQLITE_DENY
        if table:
            (self.reads if action == apsw.SQLITE_READ else self.writes).add(table)
            if action == apsw.SQLITE_READ and second:
                self.columns.add((table, second))
        return apsw.SQLITE_OK


def _refusal_of(
    action: int, first: str | None, second: str | None, table: str | None, database: str | None
) -> str | None:
    name = (table or "").lower()
    if name in _OWN_TABLES:
        return f"may not use the table '{name}': it has the runtime's own state"
    if action == apsw.SQLITE_READ and (_is_pragma(name) or name in INNER_TABLES):
        return f"may not read '{name}': it shows internals that differ between machines"
    if action == apsw.SQLITE_PRAGMA and first in _INNER_PRAGMAS:
        return None
    is_in_temp = action == apsw.SQLITE_INSERT and name == "sqlite_temp_master"  # a trigger of a main table, for example
    if is_in_temp or (action in _MADE and (database or "").lower() == "temp"):
        return _TEMPORARY
    if action == apsw.SQLITE_CREATE_VTABLE and (second or "").lower() not in MODULES:
        return f"may not create a table of the module '{second}': its rows differ between machines"
    return _REFUSED.get(action)


def _is_pragma(table: str) -> bool:
    return table.startswith("pragma_") and table.removeprefix("pragma_") not in _INNER_PRAGMAS
