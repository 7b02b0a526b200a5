"""PostgreSQL as the metadata database, which processes of several machines share.

Each write transaction begins with an update of the single row of the table `folder`. The lock on this row lets write
transactions follow one another, and the later transaction sees all commits of the earlier ones. So the functions of the
metadata need no other locks, and behave as on SQLite. The same statement checks the version of the tables, counts the
commit, and returns the clock of the server.

The server ends a transaction whose process is stopped, and then the process has committed nothing. If the connection
breaks during a commit, the outcome is unknown. So each process that writes has a session: a row with the number of its
last commit, which the first statement of each transaction counts. Another connection ends the session, and reads the
number. The end waits for a transaction in progress, and prevents a transaction that arrives later.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import errors
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from typing_extensions import override

from derive.errors import BusyError, DiskFullError, StorageError, UnansweredError, UsageError
from derive.failpoint import reach
from derive.storage.metadata.database import Listener, Metadata
from derive.storage.metadata.identity import CommitCount, identity_of, read_commits
from derive.storage.metadata.place import FILE as PLACE
from derive.storage.metadata.place import Place
from derive.storage.metadata.pooler import direct_guard, require_sessions
from derive.storage.metadata.postgres_pipeline import LOOP_SECONDS, Connection
from derive.storage.metadata.postgres_signal import PostgresListener, PostgresSignal
from derive.storage.metadata.postgres_stall import Stall
from derive.storage.metadata.postgres_tables import CREATE, NOT_IN_USE, PROTOCOL, UPGRADES
from derive.storage.metadata.postgres_transaction import (
    AssumptionError,
    LostRowsError,
    Memory,
    PostgresTransaction,
    ServerClock,
)
from derive.storage.metadata.process import show_process, this_process
from derive.storage.metadata.transaction import Transaction

T = TypeVar("T")


_IDLE_SECONDS = 30
"""Time after which the server ends a transaction of a process that does nothing, for example because it is stopped."""

_MOST_SESSIONS = 3
"""Number of sessions that one transaction begins, one after the other, because another process has ended them."""

_RETRY_SECONDS = 0.05
"""Interval of the questions about the outcome of a commit."""

_WAY_OUT = "find out whether the work was done, such as by 'flowctl ingestions list', before you repeat the command"
"""The hint of an error after a commit whose outcome is unknown."""

_CONNECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Parameters of libpq, unless the address has others."""

_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_MOST_SKEW = 1_000_000
"""Greatest error of the estimated time of the server in a transaction with assumptions, microseconds."""

_BEGIN = f"""
WITH counted AS (
    UPDATE folder SET changes = changes + 1, commits = commits + ?, wakes = wakes + ?
    WHERE protocol = {PROTOCOL} RETURNING commits, {_CLOCK} AS clock
), numbered AS (
    UPDATE session SET number = ? WHERE id = ? AND number = ? AND NOT is_ended RETURNING 1
)
SELECT (SELECT commits FROM counted), (SELECT clock FROM counted), set_config('synchronous_commit', ?, true),
    1 / (SELECT count(*) FROM counted), 1 / (SELECT count(*) FROM numbered)
"""
"""The first statement of a write transaction; it divides by zero if the version or the session is another one."""

_CHECK_CLOCK = f"SELECT 1 / (abs((extract(epoch FROM now()) * 1000000)::bigint - ?) < {_MOST_SKEW})::int"
"""Divide by zero if the time of the server at the begin of the transaction is not near an estimate."""

_BEGIN_SESSION = f"""
WITH old AS (DELETE FROM session WHERE begun < {_CLOCK} - 604800000000)
INSERT INTO session (id, number, begun) VALUES ('{{}}', 0, {_CLOCK})
ON CONFLICT (id) DO UPDATE SET begun = excluded.begun RETURNING id
"""
"""Begin a session, and delete sessions that began a week ago; a process that lives that long begins another one."""


@dataclass(slots=True)
class _Session:
    """The session of a process that writes.

    Attributes:
        id: identifier.
        number: number of the last commit.
    """

    id: str
    number: int = 0


class _WriteTransaction(PostgresTransaction):
    """A write transaction.

    Attributes:
        synced: whether the commit waits for the disk.
        wakes: whether the commit wakes waiting tasks.
        count: count of commits; None until the first answer.
    """

    synced = wakes = False
    count: int | None = None

    def begin(self, session: _Session, *, wakes: bool, synced: bool, waits: bool) -> None:
        """Let the first statements wait.

        Args:
            session: the session.
            wakes: whether to wake waiting tasks.
            synced: whether to count the commit as durable.
            waits: whether the commit waits for the disk.
        """
        self.wakes, self.synced = wakes, synced
        number = session.number
        values = (int(synced), int(wakes), number + 1, session.id, number, "on" if waits else "off")
        self.add("BEGIN ISOLATION LEVEL READ COMMITTED")
        self.add(_BEGIN, values, self._take)
        if self.assumes:
            self.add(_CHECK_CLOCK, (self.now(),))

    def _take(self, rows: Iterable[Any]) -> None:
        ((self.count, now, *_),) = rows
        self.clock.set(now)


class _IntegerLoader(Loader):
    """Load sums of integers, which are NUMERIC in PostgreSQL."""

    @override
    def load(self, data: Any) -> int:
        return int(bytes(data))


@contextmanager
def translated(place: Place) -> Iterator[None]:
    """Translate errors of PostgreSQL and of the connection."""
    where = f"the metadata database {place.shown}"
    try:
        yield
    except errors.LockNotAvailable as exc:
        raise BusyError(
            f"another process holds a lock on {where}", hint="nothing was committed; run the command again"
        ) from exc
    except errors.DiskFull as exc:
        raise DiskFullError(
            f"no space left on the server of {where}", hint="nothing was committed; free some space there"
        ) from exc
    except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as exc:
        raise StorageError(f"{where} cannot be written: {_first_line(exc)}") from exc
    except (errors.UndefinedTable, errors.UndefinedColumn) as exc:
        raise StorageError(f"{where} is incomplete: {_first_line(exc)}", hint="restore it from a backup") from exc
    except (psycopg.OperationalError, errors.IdleInTransactionSessionTimeout) as exc:
        raise UnansweredError(
            f"{where} cannot be reached: {_first_line(exc)}", hint="nothing was committed; run the command again"
        ) from exc


def _first_line(exc: BaseException) -> str:
    return str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__


@contextmanager
def opening(place: Place) -> Iterator[None]:
    """Translate errors of the first connection, like `translated`; the address or the password may be wrong."""
    with translated(place):
        try:
            yield
        except psycopg.OperationalError as exc:
            if exc.sqlstate is not None:
                raise
            raise StorageError(
                f"the metadata database {place.shown} cannot be reached: {_first_line(exc)}",
                hint="start the server; or correct the address, or the password in --metadata, PGPASSWORD or ~/.pgpass",
            ) from exc


def connect(place: Place, patience: int, stall: Stall | None = None) -> Connection:
    """Connect to a place; wait while `flowctl metadata copy` uses it alone.

    Args:
        place: the place.
        patience: time limit for locks of other processes, milliseconds.
        stall: stall of the server, of which the caller learns.

    Raises:
        UsageError: the address has an unknown parameter.
        StorageError: the address leads to a connection pooler that shares sessions.
    """
    try:
        given = conninfo_to_dict(place.url)
    except psycopg.ProgrammingError as exc:
        raise UsageError(f"the address {place.shown} cannot be used: {_first_line(exc)}") from exc
    defaults = _CONNECTION | {"application_name": f"flowctl {show_process(this_process())}"}
    others = {name: value for name, value in defaults.items() if name not in given}
    address = make_conninfo(place.url, **others, client_encoding="utf8")
    connection = Connection.connect(address, autocommit=True)
    connection.stall = stall or connection.stall
    seconds = float(given.get("connect_timeout") or _CONNECTION["connect_timeout"])
    connection.patience_seconds = connection.answer_seconds = seconds
    connection.prepare_threshold = None  # a rollback of psycopg would discard the statements that the class prepares
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.adapters.register_loader("numeric", _IntegerLoader)
    settings = (
        f'SET search_path = "{place.schema}"; SET lock_timeout = {patience};'
        f" SET idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'; SET client_min_messages = warning;"
        f" SELECT pg_advisory_lock_shared(hashtextextended('flowctl uses {place.schema}', 0))"
    )
    try:
        connection.execute(f"{direct_guard(connection)}; {settings}")
    except errors.DivisionByZero:
        require_sessions(place, connection, lambda: Connection.connect(address, autocommit=True))
        connection.execute(settings)
    return connection


def other_version(place: Place, protocol: int) -> StorageError:
    """Return the error of metadata whose tables this release does not know, or that are not in use."""
    if protocol == NOT_IN_USE:
        return StorageError(
            f"the metadata at {place.shown} are not in use: 'flowctl metadata copy' has moved them",
            hint="run the command again; if it fails again, repeat 'flowctl metadata copy', which was interrupted",
        )
    age = "newer" if protocol > PROTOCOL else "older"
    hint = f"use the {age} release of flowctl that the other processes of the data folder use"
    if protocol in UPGRADES:
        hint += "; or upgrade the tables: run a command of this release that writes, such as flowctl run"
    return StorageError(
        f"the metadata database {place.shown} has version {protocol}, and this flowctl has {PROTOCOL}", hint=hint
    )


def require_latest(root: Path, place: Place, counted: int | None, commits: int) -> None:
    """Raise an error if a place lacks commits of a data folder.

    Args:
        root: the data folder.
        place: the place.
        counted: result of `read_commits` before the place was read.
        commits: count of commits at the place.

    Raises:
        StorageError: the place lacks commits.
    """
    if counted is not None and counted > commits:
        raise StorageError(
            f"the metadata database {place.shown} is older than {root}: it has {commits:,} of the {counted:,}"
            f" commits of the folder; the files of later commits would be lost, so nothing was done",
            hint="restore the latest state of the database; if this is the latest that you have, list the lost files"
            " with 'flowctl verify', and accept the loss with 'flowctl verify --accept-older'",
        )


class _Statements(PostgresTransaction):
    """Statements outside of a transaction, so there are no streams."""

    stream = PostgresTransaction.execute


class PostgresMetadata(Metadata):
    """A connection to a metadata database of PostgreSQL.

    Args:
        root: the data folder.
        place: place of the database, in which the tables exist.
        durable: whether commits are synced, so that they survive a loss of power of the server.
        patience: time limit for locks of other processes, milliseconds.

    Raises:
        StorageError: the database cannot be used, or has another version of the tables.
    """

    def __init__(self, root: Path, place: Place, *, durable: bool = True, patience: int = 60_000) -> None:
        self._root, self._place, self._durable, self._patience = root, place, durable, patience
        self._turn = threading.RLock()
        self._own_changes = self._own_wakes = 0
        self._lost: str | None = None
        self._count: CommitCount | None = None
        self._clock, self._memory = ServerClock(), Memory()
        self._session: _Session | None = None
        self._stall = Stall()
        with opening(place):
            self._connection = self._connect()
            can_write = self._read_version()
        super().__init__(can_write=can_write, guard=lambda: None, commit_signal=PostgresSignal(self._connect))
        if can_write and os.access(root, os.W_OK):
            self._count = CommitCount(root / PLACE)

    def _connect(self) -> Connection:
        if self._stall.is_on:
            raise psycopg.OperationalError("the server does not answer")
        return connect(self._place, self._patience, self._stall)

    def _read_version(self) -> bool:
        """Check the version of the tables; return true if they can be written."""
        query = (
            "SELECT protocol, current_setting('transaction_read_only') = 'off'"
            f" AND has_table_privilege('folder', 'UPDATE'), {_CLOCK} FROM folder"
        )
        try:
            protocol, can_write, now = _last_row(self._connection, query)
        except errors.UndefinedTable as exc:
            self._require_usage()
            raise StorageError(
                f"{self._place.shown} has no metadata of a data folder", hint="restore the database from a backup"
            ) from exc
        if protocol != PROTOCOL:
            raise other_version(self._place, protocol)
        self._clock.set(now)
        return bool(can_write)

    def _require_usage(self) -> None:
        """Raise an error if the user may not see the tables.

        Raises:
            StorageError: the user lacks a right.
        """
        query = f"""SELECT has_schema_privilege(oid, 'USAGE'), current_user
        FROM pg_namespace WHERE nspname = '{self._place.schema}' UNION ALL SELECT true, '' LIMIT 1"""
        may_use, user = _last_row(self._connection, query)
        if not may_use:
            raise StorageError(
                f"the user {user} may not read the metadata at {self._place.shown}",
                hint=f"GRANT USAGE ON SCHEMA {self._place.schema} and SELECT on its tables to this user",
            )

    @override
    @contextmanager
    def transaction(self, *, wakes: bool = False, synced: bool = True) -> Iterator[Transaction]:
        with self._turn, translated(self._place):
            db = self._begin(wakes=wakes, synced=synced)
            try:
                self.admit(db)
                yield db
            except BaseException:
                self._roll_back()
                raise
            self._commit(db)
        self.notify(others=wakes)

    @override
    def commit(self, body: Callable[[Transaction], Callable[[], T]], *, wakes: bool = False, synced: bool = True) -> T:
        try:
            with self._turn, translated(self._place):
                answer = self._attempt(body, wakes=wakes, synced=synced)()
        except (AssumptionError, LostRowsError):
            pass
        else:
            self.notify(others=wakes)
            return answer
        return super().commit(body, wakes=wakes, synced=synced)

    def _attempt(self, body: Callable[[Transaction], Callable[[], T]], *, wakes: bool, synced: bool) -> Callable[[], T]:
        """Commit a repeatable transaction, if possible in one round trip.

        Raises:
            AssumptionError: nothing was committed; the transaction must be repeated without assumptions.
        """
        db = self._write(wakes=wakes, synced=synced, assumes=True)
        try:
            self.admit(db)
            answer = body(db)
        except BaseException as exc:
            try:
                if isinstance(exc, Exception) and not isinstance(exc, AssumptionError | psycopg.Error):
                    db.send()  # an error counts only if all assumptions before it are right
            finally:
                self._roll_back()
            raise
        self._commit(db)
        return answer

    def _begin(self, *, wakes: bool, synced: bool) -> _WriteTransaction:
        """Begin a write transaction, which waits for the lock.

        Raises:
            StorageError: the tables have another version.
            UnansweredError: the session of this process was ended again and again.
        """
        for _ in range(_MOST_SESSIONS):
            try:
                db = self._write(wakes=wakes, synced=synced)
                db.send()
            except AssumptionError:  # another version, or a session that has ended
                self._roll_back()
                self._read_version()
                self._session = None
            else:
                return db
        raise UnansweredError(
            f"the metadata database {self._place.shown} has ended {_MOST_SESSIONS} sessions of this process in a row",
            hint="nothing was committed; run the command again",
        )

    def _write(self, *, wakes: bool, synced: bool, assumes: bool = False) -> _WriteTransaction:
        """Return a write transaction whose first statements wait."""
        self._make_ready()
        if self._session is None:
            identifier = uuid4().hex
            self._first(_BEGIN_SESSION.format(identifier))
            self._session = _Session(identifier)
        db = _WriteTransaction(self._connection, self._clock, self._memory, self._reconnect, assumes=assumes)
        db.begin(self._session, wakes=wakes, synced=synced, waits=synced and self._durable)
        return db

    def _make_ready(self) -> None:
        """Prepare the connection for a transaction."""
        if self._lost is not None:
            raise StorageError(self._lost, hint=_WAY_OUT)
        if self._connection.is_ending:
            return
        match self._connection.info.transaction_status:
            case TransactionStatus.ACTIVE:  # Ctrl-C has interrupted a statement
                self._connection.close()
            case TransactionStatus.INTRANS | TransactionStatus.INERROR:  # or a transaction before its block
                self._roll_back()
        if self._connection.closed:
            self._reconnect()

    def _reconnect(self) -> Connection:
        """Replace the connection, which broke while it was idle, or before anything was committed."""
        self._connection = self._connect()
        self._require_latest()
        return self._connection

    def _first(self, statement: str) -> tuple[Any, ...]:
        """Execute a statement outside of transactions; return its row."""
        self._make_ready()
        db = PostgresTransaction(self._connection, self._clock, self._memory, self._reconnect)
        row: tuple[Any, ...] = db.execute(statement).fetchone()
        return row

    def _require_latest(self) -> None:
        """Raise an error if the server has lost commits, as after a failover; this process commits nothing more then.

        Raises:
            StorageError: the server has lost commits.
        """
        counted = read_commits(self._root)
        (commits,) = _last_row(self._connection, "SELECT commits FROM folder")
        try:
            require_latest(self._root, self._place, counted, commits)
        except StorageError as exc:
            self._lost = exc.message
            raise

    def _roll_back(self) -> None:
        with suppress(psycopg.OperationalError):  # a server without a connection rolls back, too
            self._connection.settle()
            self._connection.rollback()

    def _commit(self, db: _WriteTransaction) -> None:
        """Send the waiting statements of a transaction, and commit it.

        Raises:
            AssumptionError: an assumption of the transaction is wrong, or it was lost with the connection.
            StorageError: the transaction was not committed, or its outcome cannot be found out.
        """
        session = self._session
        assert session is not None
        reach("metadata.committing")
        try:
            db.send(commits=True)
        except psycopg.OperationalError as exc:
            if not self._connection.closed:
                self._roll_back()
                raise
            if not self._was_committed(session, exc):
                if db.assumes:
                    raise AssumptionError from exc
                raise
            db.end_elsewhere(self._connection)
        except Exception:
            self._roll_back()
            raise
        except BaseException as exc:  # Ctrl-C
            if self._connection.closed:
                with suppress(StorageError):
                    self._was_committed(session, exc)
            raise
        session.number += 1
        reach("metadata.committed")
        if self._count and db.synced and db.count is not None:
            self._count.write(db.count)
        self._own_changes += 1
        self._own_wakes += db.wakes

    @property
    def _unknown_outcome(self) -> str:
        return (
            f"the connection to the metadata database {self._place.shown} broke during a commit, whose outcome is"
            " unknown; this process commits nothing more"
        )

    def _was_committed(self, session: _Session, cause: BaseException) -> bool:
        """Return whether the last transaction of a broken connection was committed; end its session.

        Raises:
            StorageError: the outcome cannot be found out; then this process commits nothing more.
        """
        end = time.monotonic() + self._patience / 1000
        done = threading.Event()
        self._lost = self._unknown_outcome  # also after Ctrl-C
        while time.monotonic() < end:
            with suppress(psycopg.OperationalError):
                if self._connection.closed:
                    self._reconnect()
                query = "UPDATE session SET is_ended = true WHERE id = %s RETURNING number"
                row = self._connection.execute(query, (session.id,)).fetchone()
                if row is not None:
                    self._lost = self._session = None
                    return bool(row[0] > session.number)
            done.wait(_RETRY_SECONDS)
        raise StorageError(self._unknown_outcome, hint=_WAY_OUT) from cause

    @override
    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        with self._reading(), translated(self._place), self._of_this_version():
            self._make_ready()
            db = PostgresTransaction(self._connection, self._clock, self._memory, self._reconnect)
            db.add("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            db.add(f"SELECT {_CLOCK}", (), self._set_clock)
            try:
                yield db
            finally:
                self._end_snapshot()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Take the turn to read. On an event loop, do not wait long for other threads and for the server.

        Raises:
            UnansweredError: the server is silent, or another thread waits for the server.
        """
        if not _is_on_a_loop():
            with self._turn:
                yield
            return
        if self._stall.is_on or not self._turn.acquire(timeout=LOOP_SECONDS):
            self._connection.ask_later()
            raise UnansweredError(
                f"the metadata database {self._place.shown} does not answer",
                hint="nothing was committed; try again when it answers",
            )
        try:
            self._connection.is_hurried = True
            yield
        finally:
            self._connection.is_hurried = False
            self._turn.release()

    @contextmanager
    def _of_this_version(self) -> Iterator[None]:
        """Raise the error of another version if a table or column is missing because the tables were upgraded."""
        try:
            yield
        except (errors.UndefinedTable, errors.UndefinedColumn):
            self._read_version()
            raise

    def _set_clock(self, rows: Iterable[Any]) -> None:
        ((now,),) = rows
        self._clock.set(now)

    def _end_snapshot(self) -> None:
        """End a snapshot, if its first statement was sent; the next transaction awaits the answer."""
        match self._connection.info.transaction_status:
            case TransactionStatus.INTRANS:
                with suppress(psycopg.OperationalError):
                    self._connection.end_soon()
            case TransactionStatus.INERROR:
                self._roll_back()

    @property
    @override
    def lost(self) -> str | None:
        return self._lost

    @property
    @override
    def file(self) -> str:
        return PLACE

    @override
    def copy(self, path: Path) -> None:
        from derive.storage.metadata.postgres_copy import PostgresTables
        from derive.storage.metadata.sqlite_copy import write_copy

        # On another connection, because other threads renew capabilities meanwhile.
        with translated(self._place), closing(self._connect()) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            identity = identity_of(PostgresTransaction(connection))
            write_copy(path, PostgresTables(connection), identity)

    @override
    @contextmanager
    def reader(self) -> Iterator[Transaction]:
        with translated(self._place), closing(self._connect()) as connection:
            (now,) = _last_row(connection, f"SELECT {_CLOCK}")
            db = _Statements(connection)
            db.clock.set(now)
            yield db

    @override
    def damage(self) -> str | None:
        return None  # the server checks its pages

    @override
    def another(self) -> PostgresMetadata:
        return PostgresMetadata(self._root, self._place, durable=self._durable, patience=self._patience)

    @override
    def version(self) -> int:
        with self._turn, translated(self._place):
            changes: int = self._first("SELECT changes FROM folder")[0]
            return changes - self._own_changes

    @override
    def version_seen(self, listener: Listener | None = None) -> int:
        if listener is None:
            with self.commit_signal.listener() as own:
                return self.version() if own is None else self.version_seen(own)
        changes = listener.changes() if isinstance(listener, PostgresListener) else None
        return self.version() if changes is None else changes - self._own_changes

    @override
    def estimated_now(self) -> int:
        return self._clock.now()

    @override
    def wakes(self) -> int:
        with self._turn, translated(self._place):
            wakes: int = self._first("SELECT wakes FROM folder")[0]
            return wakes - self._own_wakes

    @override
    def settle(self) -> None:
        if self._durable:
            with self._turn, translated(self._place):
                self._first("SELECT pg_logical_emit_message(true, 'flowctl', '')")

    @override
    def close(self) -> None:
        self._stall.close()
        self.commit_signal.close()
        with self._turn:
            self._end_session()
            self._connection.close()
            if self._count:
                self._count.close()
                self._count = None

    def _end_session(self) -> None:
        """Delete the session; a session that cannot be deleted is deleted later."""
        if self._session is not None and not self._connection.closed:
            with suppress(psycopg.Error, StorageError):
                self._first(f"DELETE FROM session WHERE id = '{self._session.id}' RETURNING id")


def _is_on_a_loop() -> bool:
    """Return whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _last_row(connection: Connection, statements: str) -> tuple[Any, ...]:
    """Execute statements without parameters in one round trip; return the row of the last one."""
    cursor = connection.execute(statements.encode())
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    return row


def create(place: Place, patience: int, identifier: Callable[[], str]) -> bool:
    """Create the tables at a place, or upgrade them; return true if they were upgraded.

    Args:
        place: the place.
        patience: time limit for locks of other processes, milliseconds.
        identifier: returns the identifier of the data folder; called if there are no tables. It raises an error to
            refuse a place without tables.

    Raises:
        StorageError: the tables cannot be created.
    """
    with opening(place), connect(place, patience) as connection, connection.transaction():
        # Processes that create the tables at once wait for one another.
        _last_row(connection, f"SELECT pg_advisory_xact_lock(hashtext('flowctl {place.schema}'))")
        if not has_tables(connection, place):
            created = identifier()
            create_tables(connection, place)
            connection.execute("UPDATE folder SET id = %s", (created,))
            return False
        return _upgrade(connection)


def has_tables(connection: Connection, place: Place) -> bool:
    """Return true if a place has tables of the metadata."""
    return _last_row(connection, f"""SELECT to_regclass('"{place.schema}".folder')""") != (None,)


def create_tables(connection: Connection, place: Place) -> None:
    """Create the tables at a place without tables, in a transaction.

    Raises:
        StorageError: the database has another encoding.
    """
    encoding, schema = _last_row(
        connection, f"""SELECT current_setting('server_encoding'), to_regnamespace('"{place.schema}"')"""
    )
    if encoding != "UTF8":
        raise StorageError(
            f"the metadata database {place.shown} has the encoding {encoding}", hint="use a database with UTF8"
        )
    if schema is None:  # a user may have a schema without the right to create another
        connection.execute(f'CREATE SCHEMA "{place.schema}"'.encode())
    connection.execute(CREATE.encode())


def _upgrade(connection: Connection) -> bool:
    """Upgrade tables of an earlier version, whose processes commit nothing more; return false if there were none."""
    (protocol,) = _last_row(connection, "SELECT protocol FROM folder")
    is_earlier = protocol in UPGRADES
    while protocol in UPGRADES:
        connection.execute(UPGRADES[protocol].encode())
        protocol += 1
        connection.execute("UPDATE folder SET protocol = %s", (protocol,))
    return is_earlier
