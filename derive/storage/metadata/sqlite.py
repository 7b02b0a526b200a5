"""SQLite as the metadata database.

The database is in WAL mode with `synchronous=FULL`. Its connections are transactions of `transaction.py`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import apsw
from typing_extensions import override

from derive.durable import sync
from derive.errors import BusyError, StorageError
from derive.failpoint import reach
from derive.storage.blobs import translated
from derive.storage.metadata.commit_signal import FileSignal
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.identity import CommitCount, count_commit, require_known, require_new
from derive.storage.metadata.materializations import adopt_every_file, remove_adopted
from derive.storage.metadata.process import is_stopped, kill, local_pid, lock_holder
from derive.storage.metadata.sql_database import absorb, remove_absorbed
from derive.storage.metadata.sqlite_tables import (
    FORMAT,
    HOME,
    LATEST,
    MOVED_TEXT,
    SIZES,
    SQL_CATALOG,
    SQLITE,
    SUBSTITUTES,
    TABLES,
    UPGRADES,
)
from derive.storage.metadata.table_copy import MOVED
from derive.storage.metadata.transaction import Transaction

Access: TypeAlias = Literal["write", "read", "none"]
"""Permitted operations on the database."""

_MOST_WAKES = 1 << 31
"""Modulus of the count of wake-ups, which SQLite stores as an integer of 32 bits."""

_PATIENCE = 60_000
"""Time limit for locks of other processes, milliseconds."""

_MOST_PAUSE_SECONDS = 0.005
"""Longest pause between two looks at a lock of another connection, in seconds.

SQLite's own pauses grow to 0.1 s. Beside a process that commits one transaction after another, and leaves the lock free
for a fraction of a millisecond between them, such a connection may miss the lock for minutes.
"""

_AT_ONCE_SECONDS = 0.001
"""Duration of recent synced commits up to which a caller who must not wait commits itself, in seconds."""
_SHARE = 0.2
"""Share of the latest commit in the duration of recent ones."""

_LOG_BYTES = 8 << 20
"""Size in bytes to which SQLite truncates the write-ahead log after a checkpoint."""


class SqliteConnection(apsw.Connection):
    """A connection to a metadata database of SQLite, in which a transaction may be open."""

    dialect = SQLITE

    def be_patient(self, milliseconds: int) -> None:
        """Wait for locks of other connections, at most for a time."""
        end = 0.0

        def wait(looks: int) -> bool:
            nonlocal end
            now = time.monotonic()
            if not looks:
                end = now + milliseconds / 1000
            if now >= end:
                return False
            time.sleep(min(_MOST_PAUSE_SECONDS, 0.0005 * (looks + 1), end - now))
            return True

        self.set_busy_handler(wait if milliseconds else None)

    def now(self) -> int:
        """Return the wall-clock time in microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def expect(self, statement: str, values: Sequence[Any] = (), /) -> bool:
        """Return true if a query has a row."""
        return self.execute(statement, values).get is not None

    recall = stream = apsw.Connection.execute

    def defer_references(self) -> None:
        """Check references to names of collections at the commit, so that a collection can be renamed."""
        self.execute("PRAGMA defer_foreign_keys = ON").fetchall()


@contextmanager
def _of_flowctl(path: Path) -> Iterator[None]:
    """Translate errors like `translated`; add hints if the database is foreign or damaged."""
    try:
        with translated(path):
            yield
    except StorageError as exc:
        if isinstance(exc.__cause__, apsw.NotADBError | apsw.CorruptError):
            exc.hint = "restore it from a backup, or restore a backup of the whole folder: flowctl restore"
        raise
    except apsw.ConstraintError as exc:
        if not str(exc).startswith(MOVED_TEXT):
            raise
        raise _moved(str(exc)) from exc
    except apsw.SQLError as exc:
        if not str(exc).startswith(("no such table", "no such column")):
            raise
        version = _stored_format(path)
        if version not in (None, FORMAT):
            raise _upgraded(path, version) from exc
        raise StorageError(
            f"{path} is not a complete metadata database of flowctl: {exc}", hint="restore it from a backup"
        ) from exc


def _moved(what: str) -> StorageError:
    """Return the error of a use of a database after its metadata were moved."""
    hint = "run the command again; if it fails again, repeat 'flowctl metadata copy', which was interrupted"
    return StorageError(what, hint=hint)


def _stored_format(path: Path) -> int | None:
    """Return the format of a database; None if it cannot be read."""
    try:
        with closing(SqliteConnection(str(path), apsw.SQLITE_OPEN_READONLY)) as db:
            version: int | None = db.execute("SELECT version FROM format").get
    except apsw.Error:
        return None
    return version


def _upgraded(path: Path, version: int | None) -> StorageError:
    """Return the error of a use of a database that another release has upgraded meanwhile."""
    return StorageError(
        f"{path} was upgraded to format {version} while this process used it, and this flowctl reads format {FORMAT}",
        hint="this process writes nothing more; use the release of flowctl that has upgraded the data folder",
    )


class SqliteMetadata(Metadata):
    """A connection to a metadata database of SQLite.

    Args:
        path: path of the database; created if missing.
        durable: whether commits are synced, so that they survive a loss of power.
        patience: time limit for locks of other processes, milliseconds.
        access: `read` for a read-only database; `none` for a missing one, which reads as empty.
        guard: callback before each use; it raises an error if the database must no longer be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        durable: bool = True,
        patience: int = _PATIENCE,
        access: Access = "write",
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(can_write=access == "write", guard=guard, commit_signal=FileSignal(path))
        self.path = path
        self._own_wakes = 0
        self._durable = durable
        self._synced: bool | None = True
        self._turn = threading.RLock()
        self._patience, self._is_patient, self._seconds = patience, True, _AT_ONCE_SECONDS * 2
        self._count: CommitCount | None = None
        self._inode: tuple[int, int] | None = None
        self._has_opened = False
        guard()
        require_known(path)
        with _of_flowctl(path):
            self._db = (
                _connect_to_read(path)
                if access == "read"
                else SqliteConnection(":memory:" if access == "none" else str(path))
            )
            self._db.be_patient(patience)
            if access != "read":
                self._prepare(durable)
            version = self._db.execute("SELECT version FROM format").get
        if version != FORMAT:
            older = "use the release of flowctl that wrote the data folder, or a newer one"
            if version in UPGRADES:
                older = "run flowctl once as a user who may write the data folder"
            elif version < FORMAT:
                older = "ingest the sources into a new data folder, and derive from them again"
            raise StorageError(f"{path} has format {version}, and this flowctl reads format {FORMAT}", hint=older)
        if _has(self._db, MOVED):
            raise _moved(f"{MOVED_TEXT} {self._db.execute(f'SELECT place FROM {MOVED}').get}")
        if access == "read":
            _complete(self._db)
        self._file = path.absolute()
        self._inode = _inode_of(self._file) if access == "write" else None
        if access == "write":
            self._count = CommitCount(path)
        self._has_opened = True

    def _prepare(self, durable: bool) -> None:
        """Create the tables, or upgrade them to the current format."""
        # The log's files persist, because read-only users could not create them.
        stay = ctypes.c_int(1)
        self._db.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(stay))
        synchronous = "FULL" if durable else "OFF"
        # Fetch all rows: the last of several statements runs only then.
        self._db.execute(
            f"PRAGMA journal_mode=WAL; PRAGMA journal_size_limit={_LOG_BYTES}; PRAGMA synchronous={synchronous};"
            " PRAGMA foreign_keys=ON"
        ).fetchall()
        adopted: list[str] = []
        with self.transaction() as db:
            if not _has(db, "format"):
                require_new(self.path, "has no tables")
                db.execute(TABLES + SQL_CATALOG)
                db.execute("INSERT INTO format VALUES (?)", (FORMAT,))
            while (version := db.execute("SELECT version FROM format").get) in UPGRADES:
                db.execute(UPGRADES[version])
                if version == 10:
                    absorb(self._db, self.path.parent)
                if version == 12:
                    adopted = adopt_every_file(db, self.path.parent)
                db.execute("UPDATE format SET version = ?", (version + 1,))
            if version == FORMAT:
                db.execute(LATEST)
                if not db.execute("SELECT 1 FROM pragma_table_info('task') WHERE name = 'home'").get:
                    db.execute(HOME)
                if not _has(db, "size"):
                    db.execute(SIZES)
        remove_absorbed(self.path.parent)
        remove_adopted(self.path.parent, adopted)

    @override
    @contextmanager
    def transaction(self, *, wakes: bool = False, synced: bool = True) -> Iterator[Transaction]:
        with self._turn, _of_flowctl(self.path):
            self.guard()
            self._require_present()
            self._end_interrupted()
            if self._durable and synced != self._synced:
                self._synced = None  # an interrupt leaves the setting unknown
                self._db.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
                self._synced = synced
            self._begin()
            try:
                if self._has_opened and (version := self._db.execute("SELECT version FROM format").get) != FORMAT:
                    raise _upgraded(self.path, version)
                self.admit(self._db)
                yield self._db
                if wakes:
                    earlier: int = self._db.execute("PRAGMA user_version").get
                    self._db.execute(f"PRAGMA user_version={(earlier + 1) % _MOST_WAKES}")
                count = count_commit(self._db) if synced and self._count else None
            except BaseException:
                if self._db.in_transaction:  # some errors of SQLite end the transaction
                    self._db.execute("ROLLBACK")
                raise
            reach("metadata.committing")
            begun = time.perf_counter()
            try:
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            reach("metadata.committed")
            if synced:
                self._seconds += _SHARE * (time.perf_counter() - begun - self._seconds)
            if self._count and count is not None:
                self._count.write(count)
            self._own_wakes += wakes
        self.notify(others=wakes)

    @override
    def commit_at_once(self, body: Callable[[Transaction], Callable[[], object]]) -> bool:
        if self._seconds > _AT_ONCE_SECONDS or not self._turn.acquire(blocking=False):
            return False
        try:
            self._db.be_patient(0)
            self._is_patient = False
            self.commit(body, wakes=True)
        except BusyError:  # the next commits wait for the other writer in threads
            self._seconds += _AT_ONCE_SECONDS
            return False
        finally:
            self._is_patient = True
            self._db.be_patient(self._patience)
            self._turn.release()
        return True

    @override
    def estimated_now(self) -> int:
        return self._db.now()

    def _begin(self) -> None:
        """Begin a write transaction.

        A process with capabilities that was stopped in its own transaction for longer than the time limit is killed,
        which undoes the transaction. A server of PostgreSQL ends the transaction of a stopped process, too.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            if not self._is_patient:
                raise
            pid = lock_holder(Path(f"{self.path}-shm").stat(), "POSIX")
            holders: list[Any] = self._db.execute("SELECT DISTINCT holder FROM capability").fetchall()
            names = [name for (name,) in holders if pid is not None and local_pid(name) == pid]
            if pid is None or not is_stopped(pid) or not any(map(kill, names)):
                raise
            self._db.execute("BEGIN IMMEDIATE")

    def _end_interrupted(self) -> None:
        """Roll back a transaction that Ctrl-C has interrupted between its begin and its block."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _require_present(self) -> None:
        """Raise an error if the file was removed from its path, because no process would read the commit.

        Raises:
            StorageError: the file was removed or replaced, for example by `flowctl restore`.
        """
        if self._inode is None or (inode := _inode_of(self._file)) == self._inode:
            return
        event = "replaced" if inode else "removed"
        raise StorageError(
            f"{self.path} was {event} while this process used it, so nothing more is written",
            hint="if the folder was restored, run the command again",
        )

    @override
    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        with self._turn, _of_flowctl(self.path):
            self.guard()
            self._end_interrupted()
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                if self._db.in_transaction:
                    self._db.execute("COMMIT")

    @property
    @override
    def file(self) -> str:
        return self.path.name

    @override
    def copy(self, path: Path) -> None:
        with (
            _of_flowctl(self.path),
            closing(apsw.Connection(str(self.path), apsw.SQLITE_OPEN_READWRITE)) as source,
            closing(apsw.Connection(str(path))) as target,
        ):
            source.set_busy_timeout(_PATIENCE)
            with target.backup("main", source, "main") as backup:
                backup.step(-1)
            target.execute("PRAGMA journal_mode=DELETE").fetchall()
        sync(path)

    @override
    @contextmanager
    def reader(self) -> Iterator[Transaction]:
        with closing(self._connect_again()) as db:
            yield db

    @override
    def damage(self) -> str | None:
        with closing(self._connect_again()) as db:
            try:
                results = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
            except apsw.Error as exc:
                return str(exc)
        return None if results == ["ok"] else "; ".join(results)

    def _connect_again(self) -> SqliteConnection:
        """Return another connection, to read."""
        db = SqliteConnection(str(self.path), apsw.SQLITE_OPEN_READONLY)
        db.be_patient(_PATIENCE)
        return db

    @override
    def another(self) -> SqliteMetadata:
        return SqliteMetadata(self.path, guard=self.guard)

    @override
    def version(self) -> int:
        """Return SQLite's data version; a call takes microseconds."""
        with self._turn, _of_flowctl(self.path):
            version: int = self._db.execute("PRAGMA data_version").get
        return version

    @override
    def wakes(self) -> int:
        """Return the number of wake-ups by other connections, from an arbitrary start; a call takes microseconds."""
        with self._turn, _of_flowctl(self.path):
            count: int = self._db.execute("PRAGMA user_version").get
            return (count - self._own_wakes) % _MOST_WAKES

    @override
    def settle(self) -> None:
        if self._durable:
            with _of_flowctl(self.path), suppress(FileNotFoundError):
                sync(Path(f"{self.path}-wal"))

    @override
    def close(self) -> None:
        self.commit_signal.close()
        with self._turn:
            self._db.close()
            if self._count:
                self._count.close()
                self._count = None


def _has(db: Transaction, table: str) -> bool:
    """Return true if a database has a table."""
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).get is not None


def _complete(db: SqliteConnection) -> None:
    """Add the substitutes of missing tables to a database that only can be read."""
    for table, substitute in SUBSTITUTES.items():
        if not _has(db, table):
            db.execute(substitute)


def _inode_of(file: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if it does not exist."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _connect_to_read(path: Path) -> SqliteConnection:
    """Return a connection to a read-only database, in a folder where the files of the log cannot be written."""
    log = Path(f"{path}-wal")
    if not log.exists():  # a copy or a read-only folder: no process changes it
        return SqliteConnection(
            f"{path.absolute().as_uri()}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
    return SqliteConnection(str(path), apsw.SQLITE_OPEN_READONLY)
