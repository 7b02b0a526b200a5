"""Names of SQL in formats before 11, which are in a separate database, `sql.db`.

The upgrade to format 11 moves the names into the metadata database, in the transaction that raises the format, and then
removes `sql.db`. Before format 11, a change of names and rows had four steps: a prepared change in `sql.db`, rows with
a commit marker in Storage, the change of names, and the change of the tables' names. A killed process may have left
any of these states, so the upgrade completes or discards the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson

from derive.errors import StorageError
from derive.failpoint import reach
from derive.plural import counted
from derive.protocol.collection import POSITION_PREFIX, SQL_PREFIX, aside_name, intended_name
from derive.storage.blobs import translated
from derive.time import END_OF_TIME

FILE = "sql.db"

_MARKER = "sql-catalog"
"""Table with the version of the last committed change of names."""

_FORMATS = (1, 2, 3)
_PATIENCE = 60_000
_REFERENCES = ("segment", "replaced", "capability", "abandoned", "writer", "discarded")


def absorb(db: apsw.Connection, root: Path) -> None:
    """Move the names of `sql.db`, if there is one, into the metadata database; complete or discard a prepared change.

    Args:
        db: the write transaction that raises the format to 11.
        root: the data folder.

    Raises:
        StorageError: `sql.db` is damaged or of an unknown format, or tables of SQL exist without it.
    """
    path = root / FILE
    if not path.exists():
        _require_no_tables(db, path, "is missing")
        return
    with translated(path), closing(apsw.Connection(str(path))) as names:
        names.set_busy_timeout(_PATIENCE)
        with _still(names):
            if not names.execute("SELECT 1 FROM sqlite_schema WHERE name = 'format'").get:
                _require_no_tables(db, path, "has no tables")
                return  # the process was killed before it created the tables
            version = names.execute("SELECT version FROM format").get
            if version not in _FORMATS:
                raise StorageError(f"{path} has format {version}, and this flowctl reads {_FORMATS[-1]}")
            _fence(db, names)
            items = _items(db, names, root)
            replicas = _rows(names, "replica", "name, address")
            changes: int = names.execute("SELECT coalesce(max(sequence), 0) FROM change").get
    reach("upgrade.fenced")
    db.executemany("INSERT INTO item VALUES (?, ?, ?, ?, ?)", items)
    db.executemany("INSERT INTO replica VALUES (?, ?)", replicas)
    db.execute("UPDATE sql_catalog SET version = ?", (changes + 1,))
    _arrange(db, items)


def remove_absorbed(root: Path) -> None:
    """Remove a moved `sql.db`; the main file is removed last, so that after a crash another call removes the rest."""
    if (root / FILE).exists():
        for suffix in ("-wal", "-shm"):
            (root / f"{FILE}{suffix}").unlink(missing_ok=True)
        reach("upgrade.removing")
        (root / FILE).unlink(missing_ok=True)


@contextmanager
def _still(names: apsw.Connection) -> Iterator[None]:
    """Open a write transaction during which no server of an older version can change the names."""
    names.execute("BEGIN IMMEDIATE")
    try:
        yield
        names.execute("COMMIT")
    finally:
        if names.in_transaction:
            names.execute("ROLLBACK")


def _require_no_tables(db: apsw.Connection, path: Path, what: str) -> None:
    tables: int = db.execute(
        "SELECT count(*) FROM collection WHERE columns IS NOT NULL AND upper < ? AND name GLOB 'sql/public/*'",
        (END_OF_TIME,),
    ).get
    if tables:
        raise StorageError(
            f"{path} {what}, and the folder has {counted(tables, 'table')} of SQL: the names would be lost, so nothing"
            " was done",
            hint="restore it from a backup, together with its -wal file; or restore a backup of the whole folder",
        )


def _fence(db: apsw.Connection, names: apsw.Connection) -> None:
    """Fence all servers of older versions, in both databases."""
    epoch: int = db.execute(
        "INSERT INTO task (name, shards, positions, epoch) VALUES ('sql:', 0, '{}', ?) ON CONFLICT DO UPDATE SET"
        " epoch = max(epoch + 1, excluded.epoch) RETURNING epoch",
        (names.pragma("user_version") + 1,),
    ).get
    names.pragma("user_version", epoch)


def _rows(names: apsw.Connection, table: str, columns: str) -> list[Any]:
    """Return the rows of a table; empty if the format of the names does not have the table."""
    if not names.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).get:
        return []
    return names.execute(f"SELECT {columns} FROM {table}").fetchall()


# Items


def _items(db: apsw.Connection, names: apsw.Connection, root: Path) -> list[tuple[int, str, str, str, str]]:
    """Return the items: identifier, kind, schema, name and description; a prepared change that happened is applied."""
    items = {row[0]: list(row) for row in _rows(names, "item", "id, kind, schema, name, description")}
    for version, text in _rows(names, "prepared", "version, change"):
        if _marked(db, root) >= version:
            change = orjson.loads(text)
            for identifier in change["removed"]:
                items.pop(identifier, None)
            for identifier, name in change["renamed"]:
                items[identifier][3] = name
            for row in change.get("altered", ()):
                items[row[0]][4] = row[4]
            items |= {row[0]: row for row in change["added"]}
    return [(row[0], row[1], row[2], row[3], row[4]) for row in items.values()]


def _marked(db: apsw.Connection, root: Path) -> int:
    """Return the version of the last change that has a commit marker."""
    identifier: int | None = db.execute("SELECT id FROM collection WHERE name = ?", (_MARKER,)).get
    rows: list[Any] = db.execute("SELECT doc FROM appended WHERE collection = ?", (identifier,)).fetchall()
    texts = [text for (text,) in rows]
    for (path,) in db.execute("SELECT path FROM segment WHERE collection = ?", (_MARKER,)).fetchall():
        from pyarrow.parquet import read_table  # pyarrow is large, and only this upgrade needs it

        texts += read_table(root / str(path), columns=["doc"], partitioning=None)["doc"].to_pylist()
    return max((orjson.loads(text)["version"] for text in texts), default=0)


# Tables


def _arrange(db: apsw.Connection, items: list[tuple[int, str, str, str, str]]) -> None:
    """Drop, rename and alter the tables of the metadata until they equal the tables of the items."""
    names = dict(_tables_of(items))
    columns = {row[0]: _columns(row[4]) for row in items if row[1] == "table"}
    stored: list[Any] = db.execute(
        "SELECT id, name, columns FROM collection WHERE columns IS NOT NULL AND upper < ?", (END_OF_TIME,)
    ).fetchall()
    moved: dict[int, str] = {}
    db.execute("PRAGMA defer_foreign_keys = ON").fetchall()
    for identifier, name, described in stored:
        if identifier in names:
            if name != names[identifier]:
                moved[identifier] = names[identifier]
                _rename(db, name, aside_name(name, identifier))
            if identifier in columns and described != columns[identifier]:
                db.execute("UPDATE collection SET columns = ? WHERE id = ?", (columns[identifier], identifier))
        elif intended_name(name) == _MARKER or intended_name(name).startswith((SQL_PREFIX, POSITION_PREFIX)):
            _drop(db, identifier, name)
    for identifier, name in moved.items():
        if _make_way(db, name):
            _rename(db, str(db.execute("SELECT name FROM collection WHERE id = ?", (identifier,)).get), name)


def _tables_of(items: list[tuple[int, str, str, str, str]]) -> Iterator[tuple[int, str]]:
    """Yield identifier and name of each table that the items have in Storage."""
    for identifier, kind, schema, name, description in items:
        origin: Mapping[str, Any] = orjson.loads(description)["origin"]
        if kind in {"table", "materialized view"} or (kind == "source" and "collection" not in origin):
            yield identifier, f"sql/{schema}/{name}"
        if isinstance(position := origin.get("position"), int):
            yield position, f"sql@position/{schema}/{name}"


def _columns(description: str) -> str:
    return orjson.dumps([column[:3] for column in orjson.loads(description)["columns"]]).decode()


def _rename(db: apsw.Connection, name: str, new_name: str) -> None:
    db.execute("UPDATE collection SET name = ? WHERE name = ?", (new_name, name))
    for table in _REFERENCES:
        db.execute(f"UPDATE {table} SET collection = ? WHERE collection = ?", (new_name, name))


def _drop(db: apsw.Connection, identifier: int, name: str) -> None:
    """Drop a table, and release its name; maintenance deletes its contents later."""
    db.execute("DELETE FROM capability WHERE task = ? AND kind = 'read'", (f"view:{identifier}",))
    db.execute("UPDATE collection SET upper = ?, maintained = 0 WHERE id = ?", (END_OF_TIME, identifier))
    db.execute(
        "INSERT OR IGNORE INTO abandoned SELECT id, collection FROM capability"
        " WHERE collection = ? AND kind = 'write' AND task IS NULL",
        (name,),
    )
    db.execute("DELETE FROM capability WHERE collection = ? AND kind = 'write'", (name,))
    _rename(db, name, aside_name(name, identifier))


def _make_way(db: apsw.Connection, name: str) -> bool:
    """Release a name of a dropped table or of a declared collection without documents; return False if it is in use."""
    row: Any = db.execute(
        "SELECT id, columns IS NOT NULL, upper, EXISTS (SELECT 1 FROM segment WHERE collection = name) OR EXISTS"
        " (SELECT 1 FROM capability WHERE collection = name AND kind = 'write') OR EXISTS"
        " (SELECT 1 FROM task WHERE task.name = collection.name) FROM collection WHERE name = ?",
        (name,),
    ).fetchone()
    if row is None:
        return True
    identifier, is_table, upper, is_in_use = row
    if is_table and upper >= END_OF_TIME:
        _rename(db, name, aside_name(name, identifier))
        return True
    if is_table or is_in_use:
        return False
    db.execute("DELETE FROM collection WHERE name = ?", (name,))
    return True
