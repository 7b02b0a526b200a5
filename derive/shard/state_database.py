"""The SQLite database of an attempt at a shard's part of a transaction.

The folder of an attempt has a hard link to the database at the last commit, and the write-ahead log of the attempt. The
attempt ends with one SQLite commit, which also stores the name of the attempt, and which exists only in the log. So the
database without the log is the state before the attempt, and with the log the state after it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from derive.errors import StorageError
from derive.failpoint import reach
from derive.shard.plan import Attempt

DATABASE = "state.db"
"""Name of the database in the folder of a shard, and in the folder of an attempt."""

_CACHE_KIB = 128 * 1024
_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOMUTEX
_STATEMENTS = 64
"""Number of cached prepared statements, all of which each execution searches."""


def open_database(path: Path, *, is_durable: bool = True) -> apsw.Connection:
    """Open a state database; its log is folded only by `fold_log`.

    Args:
        path: path of the database.
        is_durable: whether SQLite waits for the disk.
    """
    # Attempts share the database file but do not write it, so SQLite needs no lock on it. One thread at a time uses
    # the connection, so SQLite needs no mutex, which each call would lock several times.
    db = apsw.Connection(str(path), _FLAGS, "unix-none", statementcachesize=_STATEMENTS)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # Fetch all rows: the last of several statements runs only then.
    db.execute(
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0;"
        f"PRAGMA synchronous={'FULL' if is_durable else 'OFF'}; PRAGMA cache_size=-{_CACHE_KIB};"
        "PRAGMA temp_store=FILE"
    ).fetchall()
    return db


def open_scratch() -> apsw.Connection:
    """Return a database in memory, in an open transaction, for lambdas without state."""
    db = apsw.Connection(":memory:", _FLAGS, statementcachesize=_STATEMENTS)
    db.execute("BEGIN")
    return db


def begin(
    own: Path, base: Path | None, committed: str | None, log: Path | None = None, *, is_durable: bool = True
) -> apsw.Connection:
    """Create the folder of an attempt, and begin the transaction of its database.

    Args:
        own: folder of the attempt.
        base: the database at the last commit; None for a new database.
        committed: name of the last committed attempt; None for none.
        log: a log of `base`, which is copied; None for none.
        is_durable: whether SQLite waits for the disk.

    Raises:
        StorageError: the database is not at the committed attempt.
    """
    own.mkdir()
    if base is not None:
        if not base.exists():
            raise not_at(base, committed)
        os.link(base, own / DATABASE)
        reach("state.linked")
    if log is not None:  # synced later, together with the later part of the log
        shutil.copyfile(log, Path(f"{own / DATABASE}-wal"))
    db = open_database(own / DATABASE, is_durable=is_durable)
    try:
        db.execute("BEGIN IMMEDIATE")
        if committed is not None and token_of(db) != committed:
            raise not_at(own.parent / DATABASE, committed)
        db.execute("CREATE TABLE IF NOT EXISTS flow_shard (token TEXT)")
        if db.execute("SELECT count(*) FROM flow_shard").get == 0:
            db.execute("INSERT INTO flow_shard VALUES (NULL)")
    except BaseException:
        db.close(True)
        raise
    return db


@contextmanager
def preparing(db: apsw.Connection, own: Path, attempt: Attempt) -> Iterator[None]:
    """Commit the open transaction of an attempt when the block ends; after an error, remove the attempt's folder.

    Raises:
        StorageError: the block has ended its transaction.
    """
    try:
        yield
        if not db.in_transaction:
            raise StorageError(
                f"a lambda or its connector ended the transaction of the state database in {own.parent}; nothing"
                " was committed"
            )
        db.execute("UPDATE flow_shard SET token = ?", (str(attempt),))
        reach("state.committing")
        db.execute("COMMIT")
        reach("state.committed")
    except BaseException:
        db.close(True)
        shutil.rmtree(own, ignore_errors=True)
        raise
    db.close(True)


def fold_log(path: Path, *, is_durable: bool = True) -> None:
    """Checkpoint the log of a database into it; repeated calls change nothing."""
    db = open_database(path, is_durable=is_durable)
    try:
        reach("state.folding")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        reach("state.folded")
    finally:
        db.close(True)


def token_of(db: apsw.Connection) -> str | None:
    """Return the name of the attempt that has committed last; None for none."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'flow_shard'").get:
        return None
    token: str = db.execute("SELECT token FROM flow_shard").get
    return token


def fault_of(path: Path, committed: str) -> str | None:
    """Return the fault of a state database that should be at a committed attempt; None for none."""
    try:
        db = open_database(path)
        try:
            results = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
            at = token_of(db)
        finally:
            db.close(True)
    except apsw.Error as exc:
        return str(exc)
    if results != ["ok"]:
        return "; ".join(results)
    return None if at == committed else f"the database is at the transaction {at}, but {committed} was committed"


def not_at(path: Path, committed: str | None) -> StorageError:
    """Return the error of a database that is not at a committed attempt."""
    return StorageError(
        f"the state database {path} is not at the committed transaction {committed}",
        hint="restore a backup: flowctl restore; or start the task over: flowctl reset --cascade --task NAME",
    )
