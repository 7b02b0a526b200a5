"""Metadata in PostgreSQL: lost connections, other versions, several processes, and places of data folders."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_proxy import Fault, Proxy
from postgres_server import PASSWORD, server
from psycopg.sql import SQL, Identifier

from derive.errors import BusyError, FlowError, StorageError, UsageError
from derive.storage.metadata.place import VARIABLE, Place, place_of, read_place
from derive.storage.metadata.postgres import PostgresMetadata
from derive.storage.metadata.postgres_pipeline import Connection
from derive.storage.metadata.postgres_tables import PROTOCOL
from derive.storage.metadata.postgres_transaction import AssumptionError, PostgresTransaction
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.metadata.transaction import Transaction, nothing
from derive.storage.store import Store
from derive.storage.table_types import TableColumn
from derive.storage.timeline import Timeline


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place of the metadata of the data folder `data`."""
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    place = place_of(os.environ[VARIABLE])
    settle_place(tmp_path / "data", place, creates=True)
    Store(tmp_path / "data").close()
    return place


TRIALS = [8, pytest.param(400, marks=[pytest.mark.torture, pytest.mark.timeout(3600)])]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy(server().port)
    yield proxy
    proxy.close()


def through(proxy: Proxy, place: Place) -> Place:
    return Place(place.url.replace(f":{server().port}/", f":{proxy.port}/"), place.schema, place.shown)


@pytest.mark.parametrize("fault", ["request", "answer", "late"])
@pytest.mark.parametrize("trials", TRIALS)
def test_repeatable_commit_with_a_lost_message_happens_once(
    fault: Fault, trials: int, tmp_path: Path, place: Place, proxy: Proxy
) -> None:
    """A repeatable commit returns its result, and is stored once; timestamps are assigned once."""
    store = Store(tmp_path / "data", durable=False)
    metadata = PostgresMetadata(tmp_path / "data", through(proxy, place), durable=False)
    timeline = Timeline(metadata, wall=lambda: 1)

    def add(db: Transaction) -> Callable[[], int]:
        db.execute("UPDATE identifier SET last = last + 1")
        last = db.execute("SELECT last FROM identifier")
        return lambda: int(last.get)

    begun = metadata.commit(add)
    clocks = []
    for trial in range(1, trials + 1):
        proxy.fault = fault
        assert metadata.commit(add) == begun + trial
        proxy.fault = fault
        clocks.append(timeline.assign(1))
        assert proxy.fault is None
    metadata.close()
    assert sorted(set(clocks)) == clocks
    (last,) = store.tables.new_ids(1)
    assert last == begun + trials + 1
    store.close()


def test_rows_that_are_lost_twice_are_not_a_failed_commit(
    tmp_path: Path, place: Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection breaks again after a commit whose answer was lost, the commit is repeated."""
    metadata = PostgresMetadata(tmp_path / "data", through(proxy, place))

    def add(db: Transaction) -> Callable[[], int]:
        db.execute("UPDATE identifier SET last = last + 1")
        last = db.execute("SELECT last FROM identifier")
        return lambda: int(last.get)

    def end_elsewhere(db: PostgresTransaction, connection: Connection) -> None:
        db._connection = connection
        connection.close()

    begun = metadata.commit(add)
    monkeypatch.setattr(PostgresTransaction, "end_elsewhere", end_elsewhere)
    proxy.fault = "answer"
    assert metadata.commit(add) == begun + 2
    metadata.close()


def test_ended_session_commits_nothing(tmp_path: Path, place: Place) -> None:
    """A transaction that arrives after its outcome was decided is refused; the process begins another session."""
    metadata = PostgresMetadata(tmp_path / "data", place)
    with metadata.transaction() as db:
        db.execute("INSERT INTO replica VALUES ('one', '')")
    with metadata.transaction() as db, server().connect() as other:
        with pytest.raises(psycopg.errors.LockNotAvailable):  # the end waits for the transaction
            query = SQL("SET LOCAL lock_timeout = 1; UPDATE {}.session SET is_ended = true")
            other.execute(query.format(Identifier(place.schema)))
        db.execute("INSERT INTO replica VALUES ('two', '')")
    with server().connect() as other:
        other.execute(SQL("UPDATE {}.session SET is_ended = true").format(Identifier(place.schema)))
    late = metadata._write(wakes=False, synced=True)
    late.execute("INSERT INTO replica VALUES ('late', '')")
    with pytest.raises(AssumptionError):
        late.send(commits=True)
    with metadata.transaction() as db:
        db.execute("INSERT INTO replica VALUES ('three', '')")
    with metadata.snapshot() as db:
        assert [name for (name,) in db.execute("SELECT name FROM replica")] == ["one", "two", "three"]
    metadata.close()


def test_sessions_that_end_at_once_are_an_error_for_users(tmp_path: Path, place: Place) -> None:
    metadata = PostgresMetadata(tmp_path / "data", place)
    with server().connect() as other:
        other.execute(SQL("ALTER TABLE {}.session ALTER is_ended SET DEFAULT true").format(Identifier(place.schema)))
    with pytest.raises(BusyError, match="has ended 3 sessions of this process in a row"), metadata.transaction():
        pytest.fail("the transaction has begun")
    with server().connect() as other:
        other.execute(SQL("ALTER TABLE {}.session ALTER is_ended SET DEFAULT false").format(Identifier(place.schema)))
    with metadata.transaction() as db:
        db.execute("INSERT INTO replica VALUES ('one', '')")
    metadata.close()


@pytest.mark.parametrize("is_wrong", [False, True])
def test_error_of_a_repeatable_commit_counts_if_its_assumptions_are_right(
    is_wrong: bool, tmp_path: Path, place: Place
) -> None:
    """A defect shows in the first attempt, and not only in a repetition without assumptions."""
    metadata = PostgresMetadata(tmp_path / "data", place)
    attempts: list[bool] = []

    def fail(db: Transaction) -> Callable[[], None]:
        db.execute("INSERT INTO replica VALUES ('one', '')")
        attempts.append(db.expect("SELECT 1 FROM replica WHERE name = ?", ("other" if is_wrong else "one",)))
        raise KeyError("a defect")

    with pytest.raises(KeyError, match="a defect"):
        metadata.commit(fail)
    assert attempts == ([True, False] if is_wrong else [True])
    with metadata.snapshot() as db:
        assert db.execute("SELECT count(*) FROM replica").get == 0
    metadata.close()


def test_stream_reads_rows_in_portions(tmp_path: Path, place: Place) -> None:
    """Two streams may be read in turns; rows that nobody reads stay on the server."""
    metadata = PostgresMetadata(tmp_path / "data", place)
    with metadata.snapshot() as db:
        numbers = "SELECT n FROM generate_series(?, 20000) AS n"
        one, other = db.stream(numbers, (1,)), db.stream(numbers, (19_999,))
        assert [row[0] for row in islice(one, 600)] == list(range(1, 601))
        assert db.execute("SELECT count(*) FROM pg_cursors WHERE name LIKE 'stream_%'").get == 2
        assert other.fetchall() == [(19_999,), (20_000,)]
        assert [row[0] for row in one] == list(range(601, 20_001))
        assert db.stream(numbers, (30_000,)).fetchone() is None
    metadata.close()


def test_assumptions_are_checked(tmp_path: Path, place: Place) -> None:
    """A transaction is repeated if an expected row is missing, or if a recalled result has changed."""
    metadata, store = PostgresMetadata(tmp_path / "data", place), Store(tmp_path / "data")
    seen: list[tuple[bool, list[tuple[str, str]]]] = []

    def look(db: Transaction) -> Callable[[], None]:
        recalled = db.recall("SELECT name, address FROM replica WHERE name <> ? ORDER BY name", ("two",)).fetchall()
        seen.append((db.expect("SELECT 1 FROM replica WHERE name = ?", ("two",)), recalled))
        return nothing

    metadata.commit(look)  # the first attempt expects a row
    store.sql_catalog.add_replica("one", "a")
    metadata.commit(look)  # the first attempt recalls no rows
    store.sql_catalog.add_replica("two", "b")
    metadata.commit(look)  # the result has changed lately, so it is read again
    metadata.commit(look)
    one = [("one", "a")]
    assert seen == [(True, []), (False, []), (True, []), (False, one), (True, one), (True, one)]
    metadata.close()
    store.close()


def test_capability_whose_rows_are_lost_twice_is_acquired_once(
    tmp_path: Path, place: Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capability that does not expire would keep files for ever."""
    monkeypatch.setenv(VARIABLE, os.environ[VARIABLE].replace(f":{server().port}/", f":{proxy.port}/"))
    settle_place(tmp_path / "data", place_of(os.environ[VARIABLE]), creates=False)
    store = Store(tmp_path / "data")
    table = store.tables.create("sql/public/t", [TableColumn("n", "bigint")])
    before = store.capabilities.acquire(table.id, lasts=True)

    def end_elsewhere(db: PostgresTransaction, connection: Connection) -> None:
        db._connection = connection
        connection.close()

    monkeypatch.setattr(PostgresTransaction, "end_elsewhere", end_elsewhere)
    for acquire in (store.capabilities.acquire_read, store.capabilities.acquire_write):
        proxy.fault = "answer"
        acquired = acquire(table.id, lasts=True)
        assert proxy.fault is None
        assert store.capabilities.find(acquired.id) == acquired
        store.capabilities.release(acquired)
    with store.metadata.snapshot() as db:
        held = db.execute("SELECT id FROM capability WHERE expires IS NULL").fetchall()
    assert {identifier for (identifier,) in held} == {capability.id for capability in before}
    store.close()


@pytest.mark.parametrize("fault", ["request", "answer", "late"])
@pytest.mark.parametrize("trials", TRIALS)
def test_commit_with_a_lost_message_happens_once_or_fails(
    fault: Fault, trials: int, tmp_path: Path, place: Place, proxy: Proxy
) -> None:
    """A commit that returns is stored, and a commit that fails is not: now and later."""
    metadata = PostgresMetadata(tmp_path / "data", through(proxy, place))
    happened = set()
    for trial in range(trials):
        proxy.fault = fault
        try:
            with metadata.transaction() as db:
                db.execute("INSERT INTO replica VALUES (?, '')", (f"{trial}",))
        except BusyError:
            continue
        happened.add(f"{trial}")
    metadata.close()

    other = PostgresMetadata(tmp_path / "data", place)
    with other.transaction() as db:  # follows every transaction that is still in progress
        stored = {name for (name,) in db.execute("SELECT name FROM replica").fetchall()}
    other.close()
    assert stored == happened
    assert fault != "answer" or len(stored) == trials


def test_unreachable_server_during_a_commit_ends_the_use(tmp_path: Path, place: Place, proxy: Proxy) -> None:
    """Without a server, nobody knows the outcome; so the process commits nothing more, and others find it out."""
    metadata = PostgresMetadata(tmp_path / "data", through(proxy, place), patience=200)
    proxy.fault = "answer"
    with pytest.raises(StorageError, match="outcome is unknown") as caught, metadata.transaction() as db:
        db.execute("INSERT INTO replica VALUES ('one', '')")
        proxy.close()
    assert not caught.value.heals
    with pytest.raises(StorageError, match="commits nothing more"), metadata.transaction():
        pytest.fail("the transaction has begun")
    metadata.close()

    other = PostgresMetadata(tmp_path / "data", place)
    with other.transaction() as db:
        assert db.execute("SELECT name FROM replica").fetchall() == [("one",)]
    other.close()


@pytest.mark.parametrize("where", ["between transactions", "in a transaction"])
def test_broken_connection_is_replaced(where: str, tmp_path: Path, place: Place) -> None:
    metadata, store = PostgresMetadata(tmp_path / "data", place), Store(tmp_path / "data")

    def end_connection() -> None:
        with server().connect() as other:
            ended = "SELECT pg_terminate_backend(%s)"
            other.execute(ended, (metadata._connection.info.backend_pid,))

    if where == "in a transaction":
        with pytest.raises(BusyError, match="cannot be reached") as caught, metadata.transaction() as db:
            db.execute("INSERT INTO replica VALUES ('lost', '')")
            end_connection()
            db.execute("INSERT INTO replica VALUES ('other', '')")
        assert caught.value.heals
    else:
        end_connection()
    with metadata.transaction() as db:
        db.execute("INSERT INTO replica VALUES ('kept', '')")
    assert store.sql_catalog.replicas() == [("kept", "")]
    metadata.close()
    store.close()


def test_transaction_of_an_idle_process_ends(tmp_path: Path, place: Place) -> None:
    """The server ends the transaction of a stopped process, so that others go on."""
    stopped, other = PostgresMetadata(tmp_path / "data", place), PostgresMetadata(tmp_path / "data", place)
    with (
        pytest.raises(BusyError, match="idle-in-transaction timeout|server closed the connection"),
        stopped.transaction() as db,
    ):
        db.execute("INSERT INTO replica VALUES ('lost', '')")
        assert db.execute("SELECT set_config('idle_in_transaction_session_timeout', '1', true)").get == "1ms"
        with other.transaction() as later:
            assert later.execute("SELECT name FROM replica").fetchall() == []
    with stopped.transaction() as db:
        db.execute("INSERT INTO replica VALUES (?, '')", ("no\0zero",))
    with other.snapshot() as db:
        assert db.execute("SELECT name FROM replica").get == "no\ufffdzero"
    stopped.close()
    other.close()


def test_busy_database_is_a_retryable_error(tmp_path: Path, place: Place) -> None:
    one = PostgresMetadata(tmp_path / "data", place)
    other = PostgresMetadata(tmp_path / "data", place, patience=50)
    with one.transaction():
        with pytest.raises(BusyError, match="another process holds a lock"), other.transaction():
            pytest.fail("the transaction has begun")
        with other.snapshot() as db:  # readers never wait
            assert db.execute("SELECT count(*) FROM timeline").get == 1
    with other.transaction():
        pass
    one.close()
    other.close()


def test_earlier_version_is_upgraded(tmp_path: Path, place: Place) -> None:
    """A process that opens the folder to read it refuses the version, and a process that writes upgrades it."""
    with server().connect() as other:
        schema = Identifier(place.schema)
        other.execute(SQL("DROP TABLE {}.session").format(schema))
        other.execute(SQL("UPDATE {}.folder SET protocol = 1").format(schema))

    with pytest.raises(StorageError, match=f"has version 1, and this flowctl has {PROTOCOL}"):
        Store(tmp_path / "data", reading=True)
    store = Store(tmp_path / "data")
    assert store.timeline.read() < store.timeline.assign(1) + 1
    store.close()


def test_another_version_is_refused(tmp_path: Path, place: Place) -> None:
    """A process that has the folder open commits nothing after another release has changed the tables."""
    store = Store(tmp_path / "data")
    with server().connect() as other:
        other.execute(SQL("UPDATE {}.folder SET protocol = protocol + 1").format(Identifier(place.schema)))
        other.execute(SQL("ALTER TABLE {}.task RENAME COLUMN name TO title").format(Identifier(place.schema)))

    refused = f"has version {PROTOCOL + 1}, and this flowctl has {PROTOCOL}"
    with pytest.raises(StorageError, match=refused):
        store.timeline.read()
    with pytest.raises(StorageError, match=refused):
        store.task("a task")
    with pytest.raises(StorageError, match=refused):
        Store(tmp_path / "data")
    store.close()


def test_stores_assign_each_timestamp_once(tmp_path: Path, place: Place) -> None:
    stores = [Store(tmp_path / "data", wall=lambda: 1_000_000, durable=False) for _ in range(3)]
    assigned: list[list[int]] = [[] for _ in stores]

    def assign(store: Store, clocks: list[int]) -> None:
        clocks += [store.timeline.assign(1) for _ in range(40)]

    threads = [threading.Thread(target=assign, args=each) for each in zip(stores, assigned, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert sorted(clock for clocks in assigned for clock in clocks) == list(range(1_000_000, 1_000_120))
    assert all(clocks == sorted(clocks) for clocks in assigned)


def test_address_in_the_folder_has_no_password(tmp_path: Path, place: Place) -> None:
    text = (tmp_path / "data" / "metadata.json").read_text()
    assert place.schema in text
    assert PASSWORD not in text
    assert "secret" not in text


def refused(folder: Path, url: str) -> FlowError:
    with pytest.raises(FlowError) as caught:
        settle_place(folder, place_of(url), creates=True)
        Store(folder).close()
    return caught.value


def test_other_places_are_refused(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "local").close()
    secret = os.environ[VARIABLE]
    elsewhere = server().metadata_url

    error = refused(tmp_path / "local", secret)  # a folder with its own metadata
    assert error.message.startswith(f"the metadata of {tmp_path}/local is in {tmp_path}/local/metadata.db, and not in ")
    error = refused(tmp_path / "new", secret)  # the metadata of another folder
    assert "is the metadata of another data folder" in error.message
    error = refused(tmp_path / "data", elsewhere)  # a place without tables
    assert "has no metadata of a data folder" in error.message
    with server().connect() as other:
        other.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(place.schema)))
    error = refused(tmp_path / "data", secret)  # lost tables
    assert "the data in these files would be lost" in error.message
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(StorageError, match="no password supplied"):
        Store(tmp_path / "data")
    assert read_place(tmp_path / "data") == Place(
        place.url.replace(":it%27s%20a%20secret", ""), place.schema, place.shown
    )


def test_folder_follows_its_server_to_another_address(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = os.environ[VARIABLE].replace("127.0.0.1", "localhost")
    monkeypatch.setenv(VARIABLE, url)
    settle_place(tmp_path / "data", place_of(url), creates=False)
    Store(tmp_path / "data").close()
    stored = read_place(tmp_path / "data")
    assert stored is not None
    assert "@localhost:" in stored.shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://db/flow", "it does not begin with postgresql://"),
        ("postgresql://db:port/flow", "it is not a URL"),
        ("postgresql://flow:secret%@db/flow", "it is not a URL; in a password, write %25 for '%'"),
        ("postgresql://flow:secret%00@db/flow", "it is not a URL"),
        ("postgresql://flow:sec ret@db/flow", "it is not a URL"),
        ("postgresql://flow:1?secret@db/flow", "it is not a URL"),
        ("postgresql://flow:1#secret@db/flow", "it is not a URL"),
        ("postgresql://flow:1@secret@db/flow", "it is not a URL"),
        ("postgresql://flow:sec/ret@db/flow", "it is not a URL"),
        ("postgresql://db/flow?schema=Shop", "the name of its schema is not at most 48 small letters, digits and '_'"),
        ("postgresql://db/flow?color=red", "cannot be used: invalid URI query parameter"),
    ],
)
def test_wrong_addresses_are_refused(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        PostgresMetadata(tmp_path, place_of(url))
    assert "sec" not in f"{caught.value}{caught.value.__cause__}"


def test_address_without_a_host_is_of_a_socket(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r'connection to server on socket "/nowhere/.s.PGSQL.5432" failed'):
        PostgresMetadata(tmp_path, place_of("postgresql:///flow?host=/nowhere"))


def test_mistaken_address_can_be_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_place(tmp_path / "data", place_of("postgresql://127.0.0.1:1/flow"), creates=True)
    with pytest.raises(StorageError, match="cannot be reached"):
        Store(tmp_path / "data")
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    settle_place(tmp_path / "data", place_of(os.environ[VARIABLE]), creates=True)
    Store(tmp_path / "data").close()


def test_process_that_is_interrupted_during_a_commit_commits_nothing_more(
    tmp_path: Path, place: Place, proxy: Proxy
) -> None:
    """Ctrl-C ends the wait for the outcome, which is unknown then; so no file of the transaction may be removed."""
    metadata = PostgresMetadata(tmp_path / "data", through(proxy, place))
    proxy.fault = "interrupted"
    with pytest.raises(KeyboardInterrupt), metadata.transaction() as db:
        db.execute("INSERT INTO replica VALUES ('one', '')")
    with pytest.raises(StorageError, match="commits nothing more"), metadata.snapshot():
        pytest.fail("the transaction has begun")
    metadata.close()


def test_interrupted_commit_has_a_known_outcome(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C during a commit that waits, or between its messages, commits nothing; the process can commit again."""
    metadata, other = PostgresMetadata(tmp_path / "data", place), PostgresMetadata(tmp_path / "data", place)

    def add(db: Transaction) -> Callable[[], None]:
        db.execute("INSERT INTO replica VALUES ('one', '')")
        return nothing

    def interrupt(pid: int) -> None:
        with server().connect() as observer:
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            while observer.execute(waits, (pid,)).fetchone() != (True,):
                pass
        os.kill(os.getpid(), signal.SIGINT)

    def send(self: Connection, statement: str, *values: Any) -> Any:
        if statement == "COMMIT":
            raise KeyboardInterrupt
        return sends(self, statement, *values)

    with other.transaction():
        thread = threading.Thread(target=interrupt, args=(metadata._connection.info.backend_pid,))
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            metadata.commit(add)
        thread.join()
    sends = Connection._send
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Connection, "_send", send)
        metadata.commit(add)
    assert metadata.lost is None
    metadata.commit(add)
    assert caplog.text == ""
    metadata.close()
    other.close()
