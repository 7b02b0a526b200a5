"""Copies of metadata in SQLite: the tables of a database, new databases, and databases that were moved.

A moved database refuses all writes, by triggers on each table. So processes that have the database open, or wait for
its lock, commit nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import apsw

from derive.durable import sync
from derive.storage.metadata.sqlite import SqliteConnection
from derive.storage.metadata.sqlite_tables import FORMAT, LATEST, MOVED_TEXT, SIZES, SQL_CATALOG, TABLES
from derive.storage.metadata.table_copy import MOVED, CopiedTable, Progress, Row, Tables, copy_tables

_FILES = ("-wal", "-shm", "-journal")
_CHANGES = ("INSERT", "UPDATE", "DELETE")


class SqliteTables:
    """The tables of a database; see `Tables`.

    Args:
        db: a connection with an open transaction.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def columns(self) -> Mapping[str, Sequence[str]]:
        """Return the columns of each table."""
        columns: dict[str, list[str]] = {}
        for table, column in self._db.execute(
            "SELECT s.name, t.name FROM sqlite_schema AS s, pragma_table_info(s.name) AS t"
            " WHERE s.type = 'table' AND s.name NOT GLOB 'sqlite_*' ORDER BY s.name, t.cid"
        ):
            columns.setdefault(str(table), []).append(str(column))
        return columns

    def rows(self, table: str, columns: Sequence[str]) -> Iterable[Row]:
        """Yield the rows of a table."""
        return self._db.execute(f'SELECT {_quoted(columns)} FROM "{table}"')

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        count: int = self._db.execute(f'SELECT count(*) FROM "{table}"').get
        return count

    def replace(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Replace all rows of a table."""
        self._db.execute(f'DELETE FROM "{table}"')
        marks = ", ".join("?" * len(columns))
        self._db.executemany(f'INSERT INTO "{table}" ({_quoted(columns)}) VALUES ({marks})', rows)


def _quoted(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def write_copy(
    path: Path, source: Tables, identity: tuple[str, int], progress: Progress = lambda done, total: None
) -> list[CopiedTable]:
    """Write a new database with the tables of another database, durably.

    Args:
        path: path of the new database; a file there is replaced.
        source: the original, which does not change meanwhile.
        identity: identifier of the data folder, and count of commits.
        progress: called with the number of copied rows, and of all rows.

    Raises:
        StorageError: the copy differs from the original.
    """
    remove_database(path)
    with closing(SqliteConnection(str(path))) as db:
        db.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF").fetchall()  # an incomplete file is not used
        db.execute("BEGIN IMMEDIATE")
        db.execute(TABLES + SQL_CATALOG + LATEST + SIZES)
        db.execute("INSERT INTO format VALUES (?)", (FORMAT,))
        copied = copy_tables(source, SqliteTables(db), progress)
        db.execute("UPDATE folder SET id = ?, commits = ?", identity)
        db.execute("COMMIT")
    sync(path)
    return copied


def remove_database(path: Path) -> None:
    """Remove a database; its log is removed first, so that no other database of this path ever has it."""
    for suffix in (*_FILES, ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def mark_moved(db: SqliteConnection, place: str) -> None:
    """Make a database refuse all later writes, in a write transaction.

    Args:
        db: the database.
        place: the place of the copy, for people.
    """
    text = f"{MOVED_TEXT} {place}".replace("'", "''")
    tables = SqliteTables(db).columns()
    db.execute(f"CREATE TABLE {MOVED} (place TEXT NOT NULL)")
    db.execute(f"INSERT INTO {MOVED} VALUES (?)", (place,))
    for table in tables:
        for change in _CHANGES:
            db.execute(
                f'CREATE TRIGGER "{MOVED}_{table}_{change}" BEFORE {change} ON "{table}"'
                f" BEGIN SELECT RAISE(ABORT, '{text}'); END"
            )


def moved_to(path: Path) -> str | None:
    """Return the place to which a database was moved; None if it is in use, or does not exist."""
    if not path.exists():
        return None
    with closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(60_000)
        if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (MOVED,)).get:
            return None
        place: str = db.execute(f"SELECT place FROM {MOVED}").get
    return place
