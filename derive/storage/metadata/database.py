"""The metadata database: the single place where a commit happens.

The database is a SQLite database in WAL mode with `synchronous=FULL`. A segment file is part of a collection if and
only if a row of this database says so. Changes that must happen together are one transaction of this database.

The commit signal notifies other processes of one machine of commits. To send the signal, a process touches the metadata
database, and the kernel notifies the watching processes (inotify, on Linux). The kernel queues notifications, and drops
a watch when its process ends. If the kernel cannot watch files, listeners must poll.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

import apsw

from derive.durable import sync
from derive.errors import StorageError
from derive.failpoint import reach
from derive.storage.blobs import translated
from derive.storage.metadata.identity import CommitCount, count_commit, require_known, require_new
from derive.storage.metadata.sql_database import absorb, remove_absorbed
from derive.storage.metadata.sqlite import SQLITE, SqliteConnection
from derive.storage.metadata.transaction import Transaction

TOUCHED = 0x4
"""Event of a touched file: Linux's `IN_ATTRIB`."""

WRITTEN = 0x2 | 0x80 | 0x100
"""Events of a written or created file in a folder: Linux's `IN_MODIFY`, `IN_MOVED_TO` and `IN_CREATE`."""

_MOST_BYTES = 1 << 12


class Listener:
    """A watch of files from its creation on.

    Args:
        paths: paths of the files, or of their folders.
        events: event to watch for, `TOUCHED` or `WRITTEN`.

    Raises:
        OSError: a path is missing, the kernel cannot watch files, or the user's limit of watches is reached.
    """

    def __init__(self, paths: Collection[Path], events: int = TOUCHED) -> None:
        kernel = ctypes.CDLL(None, use_errno=True)
        begin, watch = getattr(kernel, "inotify_init1", None), getattr(kernel, "inotify_add_watch", None)
        if begin is None or watch is None:
            raise OSError("the kernel watches no files")
        self._descriptor: int = begin(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "cannot watch files")
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.close.atexit = False  # a thread may still listen while the interpreter ends
        for path in paths:
            if watch(self._descriptor, os.fsencode(path), events) < 0:
                error = ctypes.get_errno()
                self.close()
                raise OSError(error, f"cannot watch {path}")
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def forget(self) -> None:
        """Discard the events so far."""
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _MOST_BYTES):
                pass

    def listen(self, seconds: float) -> None:
        """Wait for an event after the last `forget`, at most for a number of seconds."""
        self._poll.poll(math.ceil(seconds * 1000))


class CommitSignal:
    """The commit signal of one data folder.

    Args:
        file: path of the metadata database.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = threading.Lock()
        self._resting: list[Listener] = []

    def send(self) -> None:
        """Notify all listeners; errors are ignored, because listeners also poll."""
        with suppress(OSError):
            os.utime(self._file)

    @contextmanager
    def listener(self) -> Iterator[Listener | None]:
        """Yield a listener for exclusive use in the block; None if the kernel cannot watch files."""
        with self._turn:
            listener = self._resting.pop() if self._resting else None
        if listener is None:
            with suppress(OSError):
                listener = Listener([self._file])
        try:
            yield listener
        finally:
            if listener is not None:  # kept for later: a listener takes milliseconds to close
                with self._turn:
                    self._resting.append(listener)

    def close(self) -> None:
        """Close all listeners."""
        with self._turn:
            while self._resting:
                self._resting.pop().close()


FORMAT = 12
"""Version of the tables below, and of segment files."""

_TABLES = """
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE folder (
    id TEXT NOT NULL,                   -- identifier of the data folder, as in the file `folder-id`; empty for none
    commits INTEGER NOT NULL            -- number of synced commits, as in the file `commits`
);
INSERT INTO folder VALUES ('', 0);
CREATE TABLE timeline (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    clock INTEGER NOT NULL,             -- last timestamp that was assigned, or below which contents were read
    time INTEGER NOT NULL DEFAULT 0,    -- wall-clock time at the last reading
    watch TEXT NOT NULL DEFAULT '',     -- identifier of the monotonic clock at that reading
    elapsed INTEGER NOT NULL DEFAULT 0  -- value of the monotonic clock at that reading, microseconds
);
INSERT INTO timeline (id, clock) VALUES (0, 0);
CREATE TABLE identifier (last INTEGER NOT NULL);    -- last number of a collection or relation; never reused
INSERT INTO identifier VALUES (0);
CREATE TABLE collection (
    name TEXT PRIMARY KEY,
    key TEXT NOT NULL,                  -- JSON array of pointers
    partitions TEXT NOT NULL,           -- JSON array of [field, pointer]
    since INTEGER NOT NULL,
    upper INTEGER NOT NULL,
    id INTEGER NOT NULL DEFAULT 0,      -- permanent identifier of the collection
    columns TEXT,                       -- JSON array of [name, type, may be null]; NULL unless a table
    maintained INTEGER NOT NULL DEFAULT 0,  -- 1: only its dataflow advances `upper`
    relation INTEGER NOT NULL DEFAULT 0,    -- identifier of the history; a reset begins a new one
    named INTEGER NOT NULL DEFAULT 0    -- time of the binding of name and history; 0 if unknown
) WITHOUT ROWID;
CREATE UNIQUE INDEX collection_by_id ON collection (id);
CREATE UNIQUE INDEX collection_by_relation ON collection (relation);
CREATE TABLE segment (
    id INTEGER PRIMARY KEY,
    collection TEXT NOT NULL REFERENCES collection,
    path TEXT NOT NULL UNIQUE,          -- relative to the data folder
    partition TEXT NOT NULL,            -- JSON array of the logical partition's values, in field order
    clock_min INTEGER NOT NULL,
    clock_max INTEGER NOT NULL,
    documents INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    checksum TEXT NOT NULL DEFAULT ''   -- SHA-256 of the file; empty for a segment of format 9
);
CREATE INDEX segment_by_clock ON segment (collection, clock_max);
CREATE TABLE replaced (
    path TEXT PRIMARY KEY,              -- path of a replaced segment, relative to the data folder
    collection TEXT NOT NULL REFERENCES collection,
    at INTEGER NOT NULL                 -- time of the replacement, microseconds since the Unix epoch
) WITHOUT ROWID;
CREATE TABLE discarded (
    path TEXT PRIMARY KEY,              -- path of a segment from before a reset, relative to the data folder
    collection TEXT NOT NULL REFERENCES collection
) WITHOUT ROWID;
CREATE TABLE writer (                   -- writers of files that no row names yet
    id TEXT PRIMARY KEY,                -- prefix of the names of these files
    collection TEXT NOT NULL REFERENCES collection,
    at INTEGER NOT NULL                 -- time of the record, microseconds since the Unix epoch
) WITHOUT ROWID;
CREATE TABLE abandoned (
    id TEXT PRIMARY KEY,                -- identifier of a write capability whose holder did not drop it
    collection TEXT NOT NULL REFERENCES collection
) WITHOUT ROWID;
CREATE TABLE appended (                 -- updates of tables that are in no segment yet
    collection INTEGER NOT NULL,        -- id of the collection
    clock INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    diff INTEGER NOT NULL,
    key BLOB NOT NULL,
    doc TEXT NOT NULL,
    PRIMARY KEY (collection, clock, seq)
) WITHOUT ROWID;
CREATE TABLE failure (                  -- errors of materialized views
    collection INTEGER NOT NULL,        -- id of the collection
    since INTEGER NOT NULL,             -- first timestamp of the error
    sqlstate TEXT NOT NULL,
    message TEXT NOT NULL,
    until INTEGER NOT NULL,             -- timestamp of the retraction; the end of time while the error exists
    PRIMARY KEY (collection, since, sqlstate, message)
) WITHOUT ROWID;
CREATE TABLE task (
    name TEXT PRIMARY KEY,
    shards INTEGER NOT NULL,            -- fixed when the task first runs; 0 after a reset
    positions TEXT NOT NULL,            -- JSON: position (adjusted timestamp) by transform
    error TEXT,                         -- JSON of the FlowError that stopped the task
    documents_in INTEGER NOT NULL DEFAULT 0,
    documents_out INTEGER NOT NULL DEFAULT 0,
    transactions INTEGER NOT NULL DEFAULT 0,
    places TEXT NOT NULL DEFAULT '{}',  -- JSON: source and offset of the position by transform
    fingerprints TEXT NOT NULL DEFAULT '{}',    -- JSON: fingerprint at the last run by part
    edits TEXT NOT NULL DEFAULT '[]',   -- JSON array of [part, message, hint, at]
    epoch INTEGER NOT NULL DEFAULT 0,   -- number of run capabilities so far
    home TEXT NOT NULL DEFAULT ''       -- task whose folder has the state, after a swap; empty for its own folder
) WITHOUT ROWID;
CREATE TABLE shard (
    task TEXT NOT NULL REFERENCES task,
    number INTEGER NOT NULL,
    token TEXT NOT NULL,                -- name of the last committed attempt of the shard
    PRIMARY KEY (task, number)
) WITHOUT ROWID;
CREATE TABLE capability (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('read', 'write', 'run')),
    collection TEXT REFERENCES collection,  -- NULL for a run capability
    task TEXT,                          -- the task, `view:ID` or `index:ID`; NULL if a process has it
    transform TEXT,                     -- state key of the transform that reads
    frontier INTEGER,                   -- bound of `since` or `upper`; NULL for a run capability
    expires INTEGER,    -- microseconds since the Unix epoch; NULL if it does not expire
    at INTEGER,                         -- files replaced earlier are unused; NULL if no file is being read
    holder TEXT NOT NULL,               -- process name in the format of derive/storage/metadata/process.py
    purpose TEXT                        -- description of the use, for people
) WITHOUT ROWID;
"""

_PAST = """
CREATE TABLE IF NOT EXISTS definition (
    digest TEXT PRIMARY KEY,
    spec TEXT NOT NULL                  -- JSON of derive/protocol/definition_text.py
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (  -- parts of the past of derivations, as in `PastPart`
    task TEXT NOT NULL REFERENCES task,
    number INTEGER NOT NULL,
    definition TEXT NOT NULL REFERENCES definition,
    is_regular INTEGER NOT NULL,
    clamp INTEGER NOT NULL,             -- `upper` of the output before the part
    upper INTEGER,                      -- `upper` after the part; NULL for the last part
    begins TEXT NOT NULL,               -- JSON: position (adjusted timestamp) before the part by transform
    ends TEXT,                          -- JSON: positions after the part; NULL for the last part
    PRIMARY KEY (task, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS applied (  -- definitions of materializations at their last commits
    task TEXT PRIMARY KEY REFERENCES task,
    definition TEXT NOT NULL REFERENCES definition
) WITHOUT ROWID;
"""

_INGESTIONS = """
CREATE TABLE IF NOT EXISTS ingestion (  -- ingestions into collections, as in `Load`
    number INTEGER PRIMARY KEY,
    relation INTEGER NOT NULL,          -- relation of the collection
    load_id TEXT,                       -- NULL without --load-id
    at INTEGER NOT NULL,                -- time of the commit, microseconds since the Unix epoch
    name TEXT NOT NULL,                 -- name of the file
    digest TEXT NOT NULL,               -- SHA-256 of the content; empty if unknown
    documents INTEGER NOT NULL,
    bytes INTEGER NOT NULL,             -- size of the segments
    writer TEXT NOT NULL,               -- write capability, whose identifier is in the names of the segments
    clock_min INTEGER,                  -- first timestamp; NULL without documents
    undone INTEGER                      -- time at which the load was undone; NULL if it was not
);
CREATE UNIQUE INDEX IF NOT EXISTS ingestion_by_load ON ingestion (relation, load_id) WHERE undone IS NULL;
CREATE INDEX IF NOT EXISTS ingestion_by_digest ON ingestion (relation, digest);
"""

_FOLLOWED = """
CREATE TABLE IF NOT EXISTS followed (   -- files that `flowctl ingest --follow` reads, as in `FilePosition`
    relation INTEGER NOT NULL,          -- relation of the collection
    path TEXT NOT NULL,
    device INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    offset INTEGER NOT NULL,            -- first unread byte
    lines INTEGER NOT NULL,             -- lines before the offset
    checksum INTEGER NOT NULL,          -- of the first and last bytes before the offset
    documents INTEGER NOT NULL,
    at INTEGER NOT NULL,                -- time of the last commit, microseconds since the Unix epoch
    PRIMARY KEY (relation, device, inode)
) WITHOUT ROWID;
"""

_VERSIONS = """
CREATE TABLE IF NOT EXISTS version (  -- versions of collections, as in `Version`
    collection TEXT NOT NULL REFERENCES collection,
    number INTEGER NOT NULL,
    begins INTEGER NOT NULL,            -- first timestamp of its contents
    definition TEXT,                    -- JSON of the collection's definition; NULL if the catalog defines it
    PRIMARY KEY (collection, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shadow (  -- members of the group of derivations that a shadow is to replace
    task TEXT PRIMARY KEY,              -- name of the derivation
    number INTEGER NOT NULL,            -- number of the version that the shadow derives
    definition TEXT NOT NULL,           -- digest of the definition that the shadow runs
    is_held INTEGER NOT NULL            -- 1: the swap waits for `flowctl swap`
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shadow_binding (  -- as in `BindingShadow`
    task TEXT PRIMARY KEY,              -- name of the materialization
    keys TEXT NOT NULL,                 -- JSON object: state key of each shadow's live binding, by that of the shadow
    live TEXT NOT NULL,                 -- JSON of the definition that the live bindings have
    definition TEXT NOT NULL,           -- digest of the definition with the shadows
    is_held INTEGER NOT NULL,           -- 1: the swap waits for `flowctl swap`
    error TEXT                          -- JSON of the error that stopped the shadows; NULL without one
) WITHOUT ROWID;
"""

_HOME = """
ALTER TABLE task ADD COLUMN home TEXT NOT NULL DEFAULT '';  -- task whose folder has the state; empty for its own
"""

_QUARANTINE = """
CREATE TABLE IF NOT EXISTS decision (  -- decided entries of quarantines
    relation INTEGER NOT NULL,          -- relation of the quarantine
    id TEXT NOT NULL,                   -- identifier of the entry
    input TEXT NOT NULL,                -- state key of the input
    kind TEXT NOT NULL CHECK (kind IN ('retry', 'drop')),
    at INTEGER NOT NULL,                -- time of the decision, microseconds since the Unix epoch
    PRIMARY KEY (relation, id)
) WITHOUT ROWID;
"""

_COUNTERS = """
CREATE TABLE IF NOT EXISTS counter (    -- counters of identity columns of SQL
    id INTEGER PRIMARY KEY,
    next INTEGER NOT NULL               -- number after the last reserved one
);
"""

_SQL_CATALOG = """
CREATE TABLE item (                     -- items of SQL: tables, sources, views and indexes
    id INTEGER PRIMARY KEY,             -- that of the table, for an item with rows
    kind TEXT NOT NULL,
    schema TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,          -- JSON of derive/sql/catalog/items.py
    UNIQUE (schema, name)
);
CREATE TABLE sql_catalog (version INTEGER NOT NULL);    -- number of changes of the items
INSERT INTO sql_catalog VALUES (0);
CREATE TABLE replica (                  -- replicas that SQL has created
    name TEXT PRIMARY KEY,
    address TEXT NOT NULL               -- host:port; empty for a process that the server starts
) WITHOUT ROWID;
"""

_IDENTITY = """
CREATE TABLE folder (
    id TEXT NOT NULL,                   -- identifier of the data folder, as in the file `folder-id`; empty for none
    commits INTEGER NOT NULL            -- number of synced commits, as in the file `commits`
);
INSERT INTO folder VALUES ('', 0);
CREATE TABLE writer (                   -- writers of files that no row names yet
    id TEXT PRIMARY KEY,                -- prefix of the names of these files
    collection TEXT NOT NULL REFERENCES collection,
    at INTEGER NOT NULL                 -- time of the record, microseconds since the Unix epoch
) WITHOUT ROWID;
CREATE TABLE discarded (
    path TEXT PRIMARY KEY,              -- path of a segment from before a reset, relative to the data folder
    collection TEXT NOT NULL REFERENCES collection
) WITHOUT ROWID;
ALTER TABLE segment ADD COLUMN checksum TEXT NOT NULL DEFAULT '';   -- SHA-256 of the file; empty for older segments
"""

_RELATIONS = """
ALTER TABLE collection ADD COLUMN relation INTEGER NOT NULL DEFAULT 0;  -- identifier of the history
UPDATE collection SET relation = id;
ALTER TABLE collection ADD COLUMN named INTEGER NOT NULL DEFAULT 0; -- time of the binding; 0 if unknown
CREATE UNIQUE INDEX collection_by_relation ON collection (relation);
"""

_SIZES = """
CREATE TABLE size (                     -- sums over the segments of each collection that has segments; kept by triggers
    collection TEXT PRIMARY KEY,
    segments INTEGER NOT NULL,
    documents INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO size SELECT collection, count(*), sum(documents), sum(bytes) FROM segment GROUP BY collection;
CREATE TRIGGER segment_added AFTER INSERT ON segment BEGIN
    INSERT INTO size VALUES (new.collection, 1, new.documents, new.bytes) ON CONFLICT (collection) DO UPDATE
    SET segments = segments + 1, documents = documents + excluded.documents, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER segment_deleted AFTER DELETE ON segment BEGIN
    UPDATE size SET segments = segments - 1, documents = documents - old.documents, bytes = bytes - old.bytes
    WHERE collection = old.collection;
    DELETE FROM size WHERE collection = old.collection AND segments = 0;
END;
CREATE TRIGGER segment_moved AFTER UPDATE OF collection ON segment BEGIN
    UPDATE size SET segments = segments - 1, documents = documents - old.documents, bytes = bytes - old.bytes
    WHERE collection = old.collection;
    DELETE FROM size WHERE collection = old.collection AND segments = 0;
    INSERT INTO size VALUES (new.collection, 1, new.documents, new.bytes) ON CONFLICT (collection) DO UPDATE
    SET segments = segments + 1, documents = documents + excluded.documents, bytes = bytes + excluded.bytes;
END;
"""
"""Sums over segments. Triggers keep them, because older releases of this format also write segments."""

_INDEXES = f"""
CREATE INDEX IF NOT EXISTS segment_by_span ON segment (collection, {SQLITE.span_digits}, clock_min);
CREATE INDEX IF NOT EXISTS segment_by_size ON segment (collection, {SQLITE.is_small}, partition, clock_min);
"""

_TO_READ = {
    "size": """
CREATE TEMP VIEW size AS
    SELECT collection, count(*) AS segments, sum(documents) AS documents, sum(bytes) AS bytes
    FROM segment GROUP BY collection;
""",
    "shadow_binding": "CREATE TEMP TABLE shadow_binding (task, keys, live, definition, is_held, error)",
}
"""Substitutes for tables that a database lacks if an older release of this format wrote it, and it only can be read."""

_LATEST = _PAST + _INGESTIONS + _FOLLOWED + _VERSIONS + _QUARANTINE + _COUNTERS + _INDEXES
"""Tables of format 12 that its first databases lack; they also lack the column of `_HOME`, and `_SIZES`."""

_UPGRADES = {9: _IDENTITY, 10: _RELATIONS + _SQL_CATALOG, 11: _LATEST}
"""Statements that upgrade a database to the next format, by its present format."""

Access: TypeAlias = Literal["write", "read", "none"]
"""Permitted operations on the database."""

_MOST_WAKES = 1 << 31
"""Modulus of the count of wake-ups, which SQLite stores as an integer of 32 bits."""

_LOG_BYTES = 8 << 20
"""Size in bytes to which SQLite truncates the write-ahead log after a checkpoint."""


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
    except apsw.SQLError as exc:
        if not str(exc).startswith(("no such table", "no such column")):
            raise
        raise StorageError(
            f"{path} is not a complete metadata database of flowctl: {exc}", hint="restore it from a backup"
        ) from exc


class Metadata:
    """A connection to the metadata database of one data folder, shared by threads in turn.

    Args:
        path: path of the database; created if missing.
        durable: whether commits are synced, so that they survive a loss of power.
        patience: time limit for locks of other processes, milliseconds.
        access: `read` for a read-only database; `none` for a missing one, which reads as empty.
        guard: callback before each use; it raises an error if the database must no longer be used.

    Attributes:
        can_write: true if the database is writable.
        guard: the argument `guard`.
        admit: called in each write transaction before the first write; it raises an error to refuse the transaction.
        notifications: number of notifications in this process, mostly commits.
        commit_signal: signal that is sent after commits for which other processes wait.
    """

    def __init__(
        self,
        path: Path,
        *,
        durable: bool = True,
        patience: int = 60_000,
        access: Access = "write",
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.can_write = access == "write"
        self.guard = guard
        self.admit: Callable[[Transaction], None] = lambda db: None
        self.notifications = 0
        self.commit_signal = CommitSignal(path)
        self._own_wakes = 0
        self._durable = durable
        self._synced: bool | None = True
        self._turn = threading.RLock()
        self._notified = threading.Condition()
        self._count: CommitCount | None = None
        self._inode: tuple[int, int] | None = None
        guard()
        require_known(path)
        with _of_flowctl(path):
            self._db = (
                _connect_to_read(path)
                if access == "read"
                else SqliteConnection(":memory:" if access == "none" else str(path))
            )
            self._db.set_busy_timeout(patience)
            if access != "read":
                self._prepare(durable)
            version = self._db.execute("SELECT version FROM format").get
        if version != FORMAT:
            older = "use the release of flowctl that wrote the data folder, or a newer one"
            if version in _UPGRADES:
                older = "run flowctl once as a user who may write the data folder"
            elif version < FORMAT:
                older = "ingest the sources into a new data folder, and derive from them again"
            raise StorageError(f"{path} has format {version}, and this flowctl reads format {FORMAT}", hint=older)
        if access == "read":
            _complete(self._db)
        self._file = path.absolute()
        self._inode = _inode_of(self._file) if access == "write" else None
        if access == "write":
            self._count = CommitCount(path)

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
        with self.transaction() as db:
            if not _has(db, "format"):
                require_new(self.path, "has no tables")
                db.execute(_TABLES + _SQL_CATALOG)
                db.execute("INSERT INTO format VALUES (?)", (FORMAT,))
            while (version := db.execute("SELECT version FROM format").get) in _UPGRADES:
                db.execute(_UPGRADES[version])
                if version == 10:
                    absorb(self._db, self.path.parent)
                db.execute("UPDATE format SET version = ?", (version + 1,))
            if version == FORMAT:
                db.execute(_LATEST)
                if not db.execute("SELECT 1 FROM pragma_table_info('task') WHERE name = 'home'").get:
                    db.execute(_HOME)
                if not _has(db, "size"):
                    db.execute(_SIZES)
        remove_absorbed(self.path.parent)

    @contextmanager
    def transaction(self, *, wakes: bool = False, synced: bool = True) -> Iterator[Transaction]:
        """Open a write transaction, which commits when the block ends and rolls back after an error.

        Commits reach the disk in order. So a commit without a sync is durable as soon as a later commit of any process
        is durable, and a loss of power can lose the commit only together with all later commits.

        Args:
            wakes: whether to wake waiting tasks of other processes.
            synced: whether to wait for the disk.
        """
        with self._turn, _of_flowctl(self.path):
            self.guard()
            self._require_present()
            self._end_interrupted()
            if self._durable and synced != self._synced:
                self._synced = None  # an interrupt leaves the setting unknown
                self._db.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
                self._synced = synced
            self._db.execute("BEGIN IMMEDIATE")
            try:
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
            try:
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            reach("metadata.committed")
            if self._count and count is not None:
                self._count.write(count)
            self._own_wakes += wakes
        self.notify(others=wakes)

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

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Open a read transaction, in which all reads see one state of the database."""
        with self._turn, _of_flowctl(self.path):
            self.guard()
            self._end_interrupted()
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                if self._db.in_transaction:
                    self._db.execute("COMMIT")

    def version(self) -> int:
        """Return SQLite's data version, which changes with commits of other connections; a call takes microseconds."""
        with self._turn, _of_flowctl(self.path):
            version: int = self._db.execute("PRAGMA data_version").get
        return version

    def wakes(self) -> int:
        """Return the number of wake-ups by other connections, from an arbitrary start; a call takes microseconds."""
        with self._turn, _of_flowctl(self.path):
            count: int = self._db.execute("PRAGMA user_version").get
            return (count - self._own_wakes) % _MOST_WAKES

    def wake(self) -> None:
        """Wake waiting tasks of other processes."""
        with self.transaction(wakes=True, synced=False):
            pass

    def settle(self) -> None:
        """Wait until all commits so far are on the disk."""
        if self._durable:
            with _of_flowctl(self.path), suppress(FileNotFoundError):
                sync(Path(f"{self.path}-wal"))

    def notify(self, *, others: bool) -> None:
        """Notify waiting threads of this process, and other processes if `others`."""
        with self._notified:
            self.notifications += 1
            self._notified.notify_all()
        if others:
            self.commit_signal.send()

    def wait(self, notifications: int, seconds: float) -> None:
        """Wait until the number of notifications differs from `notifications`, at most for a number of seconds."""
        with self._notified:
            self._notified.wait_for(lambda: self.notifications != notifications, seconds)

    def close(self) -> None:
        """Close the connection, after its present uses by other threads have ended."""
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
    for table, substitute in _TO_READ.items():
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
