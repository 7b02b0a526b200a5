"""The database of an instance: rows of operators, and the tables of groups, operators and dataflows.

The database can be recomputed from collections, so it is not synced; a database of another code version is deleted.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from derive.compute.sqlite import connect, translated

NAME = "compute.db"

_SCHEMA = """
CREATE TABLE version(digest TEXT NOT NULL);
CREATE TABLE cohorts(id INTEGER PRIMARY KEY, sources BLOB NOT NULL, upper INTEGER NOT NULL);
CREATE TABLE operators(
    number INTEGER PRIMARY KEY, cohort INTEGER NOT NULL, plan BLOB NOT NULL, inputs BLOB NOT NULL,
    is_arranged INTEGER NOT NULL, keeps_history INTEGER NOT NULL, consolidates INTEGER NOT NULL);
CREATE TABLE dataflows(
    id INTEGER PRIMARY KEY, cohort INTEGER NOT NULL, operator INTEGER NOT NULL, relation BLOB NOT NULL,
    since INTEGER NOT NULL);
CREATE TABLE definitions(id INTEGER PRIMARY KEY, definition BLOB NOT NULL);
CREATE TABLE errors(
    operator INTEGER NOT NULL, cause TEXT NOT NULL, sqlstate TEXT NOT NULL, message TEXT NOT NULL, w INTEGER NOT NULL,
    PRIMARY KEY (operator, cause, sqlstate, message));
CREATE TABLE errors_history(
    t INTEGER NOT NULL, operator INTEGER NOT NULL, sqlstate TEXT NOT NULL, message TEXT NOT NULL, w INTEGER NOT NULL);
CREATE INDEX errors_history_t ON errors_history(t);
"""


def open_database(folder: Path) -> apsw.Connection:
    """Open the writing connection of an instance's database; create the database if it is missing or outdated.

    Raises:
        FlowError: another process locks the database, or the disk is full or broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with translated():
        try:
            connection = _connected(folder)
            if connection.execute("SELECT digest FROM version").get == code_digest():
                return connection
            connection.close()
        except (apsw.SQLError, apsw.NotADBError, apsw.CorruptError):
            pass  # the database has another version, or is damaged
        for path in folder.glob(f"{NAME}*"):
            path.unlink()
        connection = _connected(folder)
        with connection:
            connection.execute(_SCHEMA)
            connection.execute("INSERT INTO version VALUES (?)", (code_digest(),))
    return connection


def _connected(folder: Path) -> apsw.Connection:
    connection = connect(str(folder / NAME))
    connection.pragma("temp_store", "file")
    connection.execute(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint=4000; PRAGMA cache_size=-131072;"
        "PRAGMA temp.cache_size=-65536; PRAGMA temp.journal_mode=MEMORY"
    ).fetchall()
    return connection


def open_staging(folder: Path) -> apsw.Connection:
    """Open a connection that fills a new database, which another process adopts after the connection is closed."""
    connection = connect(str(folder / NAME))
    connection.pragma("temp_store", "file")
    connection.execute(
        "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-131072;"
        "PRAGMA temp.cache_size=-65536; PRAGMA temp.journal_mode=MEMORY"
    ).fetchall()
    with connection:
        connection.execute(_SCHEMA)
    return connection


def folder_of(connection: apsw.Connection) -> Path:
    """Return the folder of an instance's database."""
    return Path(connection.filename).parent


def open_reader(folder: Path) -> apsw.Connection:
    """Open a connection that reads an instance's database."""
    with translated():
        connection = connect(str(folder / NAME))
        connection.execute("PRAGMA cache_size=-16384; PRAGMA query_only=ON").fetchall()
    return connection


@cache
def code_digest() -> str:
    """Return a digest of the code on which the contents of a database depend; other code needs another database."""
    digest = hashlib.sha256()
    for room in ("algebra", "functions", "relations", "compute"):
        for path in sorted((Path(__file__).parents[2] / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def packed(value: Any) -> bytes:
    """Serialize a value that only the same code version reads."""
    return pickle.dumps(value)


def unpacked(data: Any) -> Any:
    """Return the value of serialized bytes."""
    return pickle.loads(data)


def record_errors(
    connection: apsw.Connection, time: int, errors: Iterable[tuple[tuple[int, str, str, str], int]]
) -> None:
    """Record insertions and retractions of errors at a time: operator, cause, SQLSTATE, message and count."""
    for (operator, cause, sqlstate, message), weight in errors:
        if not weight:
            continue
        connection.execute(
            "INSERT INTO errors VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET w = w + excluded.w",
            (operator, cause, sqlstate, message, weight),
        )
        connection.execute(
            "INSERT INTO errors_history VALUES (?, ?, ?, ?, ?)", (time, operator, sqlstate, message, weight)
        )
    connection.execute("DELETE FROM errors WHERE w = 0")
