"""A shard's state: one SQLite database whose write-ahead log is the prepared transaction (law L2).

A shard's part of a transaction ends as one SQLite commit, with the attempt's token recorded in the same database. It
lives only in the `-wal` file until the shard is opened the next time. By then the metadata database has committed that
token, and the log is folded into the main file; or it has not, and the log is deleted, which restores the state before
exactly. Nothing is copied, and a transaction costs one fsync.

A process that belongs to a superseded run must not touch the log, however late it starts. So the folder is locked
while a shard is open, and the epoch in the task's `epoch` file is read under that lock (law L5).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import apsw

from derive.errors import FencedError, StorageError
from derive.failpoint import reach
from derive.storage.durable import sync
from derive.storage.layout import own_path
from derive.storage.metadata import translated

_DATABASE = "state.db"
_SHARD = re.compile("[0-9a-f]{8}-[0-9a-f]{8}")
_LOCK_SECONDS = 60.0
_CACHE_KIB = 128 * 1024


def task_folder(root: Path, task: str) -> Path:
    """Folder of a task's shards."""
    return root / own_path("state", task)


def shard_folder(root: Path, task: str, number: int, shards: int) -> Path:
    """Folder of a shard, named by the inclusive range of key hashes it owns."""
    begin = -(-(number << 32) // shards)
    end = -(-((number + 1) << 32) // shards) - 1
    return task_folder(root, task) / f"{begin:08x}-{end:08x}"


def epochs_lock(root: Path) -> AbstractContextManager[None]:
    """Held while epochs are published, and while what belongs to older ones is removed."""
    return _locked(root / "epochs.lock")


@contextmanager
def publish_epoch(root: Path, task: str, epoch: int) -> Iterator[None]:
    """Publish the current epoch of a task to its workers, durably; it never goes back.

    While the block lasts no newer run publishes its own, so none has files yet that could be taken for garbage.

    Raises:
        FencedError: a newer run has published its epoch already.
    """
    folder = task_folder(root, task)
    with translated(folder), epochs_lock(root):
        folder.mkdir(parents=True, exist_ok=True)
        if (_epoch(folder) or 0) > epoch:
            raise _superseded(folder)
        temporary = folder / "epoch.new"
        temporary.write_text(str(epoch))
        sync(temporary)
        reach("epoch.written")
        temporary.replace(folder / "epoch")
        reach("epoch.renamed")
        yield


def remove_shards(root: Path, task: str, shards: int) -> None:
    """Remove folders of shards that the task does not have: a crash in the middle of a split leaves them."""
    known = {shard_folder(root, task, number, shards).name for number in range(shards)}
    for folder in task_folder(root, task).iterdir():
        if _SHARD.fullmatch(folder.name) and folder.name not in known:
            shutil.rmtree(folder, ignore_errors=True)


def _epoch(folder: Path) -> int | None:
    """The current epoch of a task; None if it was reset."""
    try:
        return int((folder / "epoch").read_text())
    except FileNotFoundError:
        return None


@contextmanager
def open_state(folder: Path, *, epoch: int, committed: str | None, token: str) -> Iterator[apsw.Connection]:
    """A shard's database inside an open transaction, which commits as prepared when the block ends.

    Args:
        folder: the shard's.
        epoch: of the run this process works for.
        committed: token of the last committed transaction this shard took part in; None if there was none.
        token: of this attempt.

    Raises:
        FencedError: a newer run has taken over.
        StorageError: the database is not at the committed token.
    """
    with translated(folder), _owned(folder, epoch):
        db = _at_committed(folder / _DATABASE, committed)
        try:
            db.execute("BEGIN IMMEDIATE")
            _prepare_table(db)
            yield db
            db.execute("UPDATE flow_shard SET token = ?", (token,))
            reach("state.committing")
            db.execute("COMMIT")
            reach("state.committed")
        finally:
            # An error leaves the transaction open; closing rolls it back, and the log stays as it was.
            db.close(True)


def fold(folder: Path, *, epoch: int, committed: str) -> Path:
    """Bring a shard's database file to the committed token, with no log beside it; returns its path.

    Raises:
        FencedError: a newer run has taken over.
        StorageError: the database is not at the committed token.
    """
    with translated(folder), _owned(folder, epoch):
        path = folder / _DATABASE
        _at_committed(path, committed).close(True)
        Path(f"{path}-wal").unlink(missing_ok=True)
    return path


@contextmanager
def _owned(folder: Path, epoch: int) -> Iterator[None]:
    """Hold the lock of a shard's folder, for the current run of its task."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if _epoch(folder.parent) != epoch:
            raise _superseded(folder.parent)
        yield


def _superseded(folder: Path) -> FencedError:
    return FencedError(f"another flowctl has taken over '{folder.name.removesuffix('@')}', or has reset it")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock that ends with this process at the latest.

    Raises:
        StorageError: another process has held it for a minute.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageError(f"{file} is held by another process") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _at_committed(path: Path, committed: str | None) -> apsw.Connection:
    """The database at exactly the committed token: its log is folded in or deleted."""
    if committed is None:
        # Nothing was ever committed, so whatever is here was left behind by attempts that failed.
        for suffix in ("", "-wal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
            reach("state.forgotten")
        return _open(path)
    db = _open(path)
    if _token(db) == committed:
        reach("state.folding")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        reach("state.folded")
        return db
    db.close(True)
    reach("state.discarding")
    Path(f"{path}-wal").unlink(missing_ok=True)
    reach("state.discarded")
    db = _open(path)
    if _token(db) != committed:
        db.close(True)
        raise StorageError(f"the state database {path} is not at the committed transaction {committed}")
    return db


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), statementcachesize=200)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # All rows are fetched, because only then is the last of several statements run.
    db.execute(
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0;"
        f"PRAGMA synchronous=FULL; PRAGMA cache_size=-{_CACHE_KIB}; PRAGMA temp_store=MEMORY"
    ).fetchall()
    return db


def _token(db: apsw.Connection) -> str | None:
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'flow_shard'").get:
        return None
    token: str = db.execute("SELECT token FROM flow_shard").get
    return token


def _prepare_table(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS flow_shard (token TEXT)")
    if db.execute("SELECT count(*) FROM flow_shard").get == 0:
        db.execute("INSERT INTO flow_shard VALUES (NULL)")


def open_scratch() -> apsw.Connection:
    """A database in memory, inside an open transaction, for lambdas that keep no state."""
    db = apsw.Connection(":memory:")
    db.execute("BEGIN")
    return db
