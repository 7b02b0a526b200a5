"""What drivers and their pools do to sessions of SQL between one user and the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import asyncpg
import psycopg
import pytest
import sqlalchemy
from byte_client import STARTUP, ByteClient, message, startup, state_of
from cancelling import cancelling
from sql_server import served

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("data")) as number:
        with psycopg.connect(f"host=127.0.0.1 port={number} user=flow", autocommit=True) as connection:
            connection.execute("CREATE TABLE numbers (n int)")
            connection.execute("INSERT INTO numbers SELECT * FROM generate_series(1, 500)")
        yield number


@pytest.fixture
def connection(port: int) -> Iterator[Connection]:
    with psycopg.connect(f"host=127.0.0.1 port={port} user=flow", autocommit=True) as connected:
        yield connected


@pytest.fixture
def another(port: int) -> Iterator[Connection]:
    with psycopg.connect(f"host=127.0.0.1 port={port} user=flow", autocommit=True) as connected:
        yield connected


def one(connection: Connection, text: str) -> object:
    row = connection.execute(text).fetchone()
    assert row is not None
    return row[0] if len(row) == 1 else row


async def test_asyncpg_pool_resets_returned_connections(port: int) -> None:
    settings = {"application_name": "pooled", "jit": "off"}
    async with asyncpg.create_pool(
        host="127.0.0.1", port=port, user="flow", database="flow", min_size=1, max_size=1, server_settings=settings
    ) as pool:
        async with pool.acquire() as connection:
            await connection.execute("SET application_name = 'changed'")
            assert await connection.fetchval("SELECT pg_try_advisory_lock(1)")
            assert await connection.fetchval("SELECT current_setting('application_name')") == "changed"
        async with pool.acquire() as connection:
            assert await connection.fetchval("SHOW application_name") == "pooled"
            assert not await connection.fetchval("SELECT pg_advisory_unlock(1)")
            async with connection.transaction(isolation="serializable", readonly=True):
                assert [row["n"] async for row in connection.cursor("SELECT n FROM numbers ORDER BY n")][-1] == 500


@pytest.mark.parametrize("driver", ["psycopg", "pg8000"])
def test_sqlalchemy_sets_and_resets_an_isolation_level(port: int, driver: str) -> None:
    engine = sqlalchemy.create_engine(
        f"postgresql+{driver}://flow@127.0.0.1:{port}/flow", pool_pre_ping=True, pool_size=1
    )
    count = sqlalchemy.text("SELECT count(*) FROM numbers WHERE n > :least")
    for level in ("AUTOCOMMIT", "SERIALIZABLE", "READ COMMITTED"):
        with engine.connect().execution_options(isolation_level=level) as connection:
            assert connection.execute(count, {"least": 100}).scalar() == 400
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SHOW transaction_isolation")).scalar() == "strict serializable"
    streaming = {"stream_results": True, "max_row_buffer": 50}
    with engine.connect() as connection:
        rows = connection.execution_options(**streaming).execute(sqlalchemy.text("SELECT n FROM numbers"))
        assert sum(row.n for row in rows) == 125_250
    engine.dispose()


def test_discard_all_resets_the_session(connection: Connection, another: Connection) -> None:
    connection.execute("SET application_name = 'before'")
    connection.execute("PREPARE p AS SELECT 1")
    connection.execute("DECLARE c CURSOR WITH HOLD FOR SELECT n FROM numbers")
    connection.execute("SELECT pg_advisory_lock(7)")
    assert not one(another, "SELECT pg_try_advisory_lock(7)")
    connection.execute("DISCARD ALL")

    assert one(connection, "SHOW application_name") == ""
    assert one(another, "SELECT pg_try_advisory_lock(7)")
    for statement in ("EXECUTE p", "FETCH 1 FROM c"):
        with pytest.raises(psycopg.Error, match="does not exist"):
            connection.execute(statement)


def test_set_config_changes_a_setting(connection: Connection) -> None:
    assert one(connection, "SELECT set_config('application_name', 'mine', false)") == "mine"
    assert connection.info.parameter_status("application_name") == "mine"
    with connection.transaction():
        assert one(connection, "SELECT set_config('application_name', 'local', true)") == "local"
        assert one(connection, "SELECT current_setting('application_name')") == "local"
        assert one(connection, "SELECT set_config('my.tenant', '5', true), current_setting('my.none', true)") == (
            "5",
            None,
        )
    assert one(connection, "SHOW application_name") == "mine"
    assert one(connection, "SELECT set_config('application_name', NULL, false)") == ""
    assert one(connection, "SELECT set_config(name, 'x', false) FROM pg_settings WHERE name = 'work_mem'") == "x"
    row = connection.execute("SELECT set_config(%s, %s, false)", ("search_path", "public")).fetchone()
    assert row == ("public",)
    for statement, state in {
        "SELECT set_config('nothing', '1', false)": "42704",
        "SELECT set_config('TimeZone', 'Europe/Nowhere', false)": "22023",
        "SELECT current_setting('nothing')": "42704",
        "SELECT pg_notify('a', 'b')": "0A000",
        "LISTEN a": "0A000",
    }.items():
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(statement)
        assert raised.value.sqlstate == state


def test_functions_with_effects_have_types(connection: Connection) -> None:
    text = "SELECT pg_try_advisory_lock(3), pg_advisory_unlock(3), set_config('my.a', 'b', false), pg_advisory_unlock_all()"
    cursor = connection.execute(text)

    assert cursor.fetchone() == (True, True, "b", "")
    assert [(column.name, column.type_code) for column in cursor.description or ()] == [
        ("pg_try_advisory_lock", 16),
        ("pg_advisory_unlock", 16),
        ("set_config", 25),
        ("pg_advisory_unlock_all", 2278),
    ]


def test_sleep_is_cancelled(connection: Connection) -> None:
    begin = time.monotonic()
    with cancelling(connection.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
        connection.execute("SELECT pg_sleep(60)")
    connection.execute("SET statement_timeout = '100ms'")
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        connection.execute("SELECT pg_sleep(60)")

    assert time.monotonic() - begin < 60
    connection.execute("SET statement_timeout = 0")
    assert one(connection, "SELECT pg_sleep(0.01)") == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("setting", "text", "sqlstate"),
    [
        ("idle_in_transaction_session_timeout", "BEGIN", "25P03"),
        ("idle_in_transaction_session_timeout", "BEGIN; SELECT 1/0", "25P03"),
        ("idle_session_timeout", "SELECT 1", "57P05"),
    ],
)
def test_idle_sessions_end(port: int, another: Connection, setting: str, text: str, sqlstate: str) -> None:
    """The server releases the locks of ended sessions; their statements may take longer."""
    with ByteClient(port, is_let_in=False) as client:
        client.send(startup(STARTUP[:-1] + f"options\0-c {setting}=300ms\0\0".encode()))
        client.until(b"Z")
        client.send(message(b"Q", f"SELECT pg_sleep(0.6), pg_advisory_lock(7); {text}\0".encode()))
        client.until(b"Z")
        assert [state_of(body) for kind, body in client.rest() if kind == b"E"] == [sqlstate]
    assert one(another, "SELECT pg_advisory_lock(7)") == ""


def test_max_connections_is_shown(connection: Connection) -> None:
    assert one(connection, "SHOW max_connections") == "400"
    assert one(connection, "SELECT current_setting('max_connections')") == "400"
    with pytest.raises(psycopg.errors.CantChangeRuntimeParam):
        connection.execute("SET max_connections = 5")


def test_lock_timeout_limits_waits_for_locks(connection: Connection, another: Connection) -> None:
    another.execute("SELECT pg_advisory_lock(8)")
    connection.execute("SET lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable, match="canceling statement due to lock timeout"):
        connection.execute("SELECT pg_advisory_lock(8)")
    assert one(connection, "SELECT pg_sleep(0.1)") == ""
    another.execute("SELECT pg_advisory_unlock(8)")
    assert one(connection, "SELECT pg_advisory_lock(8)") == ""


def test_locks_of_transactions_end_with_them(connection: Connection, another: Connection) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(1, 2)")
        assert not one(another, "SELECT pg_try_advisory_xact_lock_shared(1, 2)")
        assert one(another, "SELECT pg_try_advisory_xact_lock(1)")
    assert one(another, "SELECT pg_try_advisory_lock(1, 2)")
    waiting = threading.Timer(0.2, another.execute, ["SELECT pg_advisory_unlock(1, 2)"])
    waiting.start()
    connection.execute("SELECT pg_advisory_lock(1, 2)")
    waiting.join()
    connection.close()
    assert one(another, "SELECT pg_advisory_lock(1, 2)") == ""


def test_cursors_of_sql_are_portals_to_clients(connection: Connection) -> None:
    with connection.transaction(), connection.cursor("within") as cursor:
        cursor.itersize = 100
        assert len(cursor.execute("SELECT n FROM numbers").fetchall()) == 500
    with connection.cursor("beyond", withhold=True) as cursor:
        cursor.execute("SELECT n, n * 2 AS twice FROM numbers ORDER BY n")
        assert cursor.fetchmany(2) == [(1, 2), (2, 4)]
        assert [column.name for column in cursor.description or ()] == ["n", "twice"]
    with pytest.raises(psycopg.errors.InvalidCursorName):
        connection.execute("FETCH 1 FROM beyond")


def test_sessions_see_and_end_each_other(connection: Connection, another: Connection) -> None:
    process = connection.info.backend_pid
    connection.execute("SET application_name = 'sleeper'")
    assert one(connection, "SELECT pg_backend_pid()") == process
    text = "SELECT pid, application_name, state, query FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND pid = {}"
    seen = another.execute(text.format(process)).fetchall()
    assert seen == [(process, "sleeper", "idle", "SELECT pg_backend_pid()")]
    connection.execute("BEGIN")
    assert one(another, text.format(process)) == (process, "sleeper", "idle in transaction", "BEGIN")
    connection.execute("ROLLBACK")

    def cancel() -> None:
        another.execute("SELECT pg_cancel_backend(%s)", (process,))

    with cancelling(cancel), pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(60)")
    assert one(another, f"SELECT pg_terminate_backend({process})")
    with pytest.raises(psycopg.OperationalError, match="administrator command"):
        connection.execute("SELECT 1")
    assert not one(another, "SELECT pg_terminate_backend(1000000)")


def test_times_of_a_session_are_in_its_zone(connection: Connection) -> None:
    noon = datetime(2024, 7, 1, 3, tzinfo=UTC)
    connection.execute("SET TimeZone = 'asia/tokyo'")
    assert connection.info.parameter_status("TimeZone") == "Asia/Tokyo"
    for options in ({}, {"prepare": True}, {"binary": True}):
        text = "SELECT %s::timestamptz, %s::timestamptz = %s"
        for _ in range(2):
            row = connection.execute(text, ("2024-07-01 12:00", noon, "2024-07-01 12:00"), **options).fetchone()
            assert row == (noon, True)
    connection.execute("CREATE TABLE zoned (z timestamptz, a timestamptz[])")
    with connection.cursor() as cursor:
        with cursor.copy("COPY zoned (z) FROM STDIN") as copy:
            copy.write(b"2024-07-01 12:00\n2024-07-01 03:00+00\n")
        connection.execute("UPDATE zoned SET a = ARRAY[z]")
        with cursor.copy("COPY zoned TO STDOUT") as copy:
            lines = {bytes(line) for line in copy}
    assert lines == {b'2024-07-01 12:00:00+09\t{"2024-07-01 12:00:00+09"}\n'}
