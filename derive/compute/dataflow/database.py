"""The database of an instance: rows of operators, and what there is of cohorts, operators and dataflows.

It can be built anew from collections at any time, so nothing of it is synced; one that another version of this code has
written is thrown away.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from derive.compute.sqlite.connection import connect, translated

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
    """The connection that writes to an instance's database, which is new where there was none that is ours.

    Raises:
        FlowError: another process keeps it to itself, or the disk is full or broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with translated():
        try:
            connection = _connected(folder)
            if connection.execute("SELECT digest FROM version").get == code_digest():
                return connection
            connection.close()
        except (apsw.SQLError, apsw.NotADBError, apsw.CorruptError):
            pass  # it is another one, or damaged
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
    """The connection that fills a new database, which another process takes over once this one has closed it."""
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
    """Where an instance keeps its database."""
    return Path(connection.filename).parent


def open_reader(folder: Path) -> apsw.Connection:
    """A connection that reads an instance's database."""
    with translated():
        connection = connect(str(folder / NAME))
        connection.execute("PRAGMA cache_size=-16384; PRAGMA query_only=ON").fetchall()
    return connection


@cache
def code_digest() -> str:
    """Return a digest of the code on which the contents of a database depend: other code, another database."""
    digest = hashlib.sha256()
    for room in ("algebra", "functions", "relations", "compute"):
        for path in sorted((Path(__file__).parents[2] / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def packed(value: Any) -> bytes:
    """A value that is read only by the code that wrote it."""
    return pickle.dumps(value)


def unpacked(data: Any) -> Any:
    """What was packed."""
    return pickle.loads(data)


def record_errors(
    connection: apsw.Connection, time: int, errors: Iterable[tuple[tuple[int, str, str, str], int]]
) -> None:
    """Take in errors that came or went at a time: operator, cause, SQLSTATE and message, and how often."""
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
