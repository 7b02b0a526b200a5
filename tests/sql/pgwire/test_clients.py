"""The server as clients that people use see it: psycopg, asyncpg, pg8000, SQLAlchemy and psql."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pg8000.native
import psycopg
import pytest
import sqlalchemy
from cancelling import cancelling
from patience import PATIENCE_SECONDS
from psycopg.pq import TransactionStatus
from toy_server import ToyServer

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def connection(toy: ToyServer) -> Iterator[Connection]:
    with psycopg.connect(toy.address, autocommit=True) as opened:
        yield opened


def test_psycopg_uses_simple_and_extended_queries(connection: Connection) -> None:
    assert connection.execute("SELECT id, name FROM t WHERE id <= 2 ORDER BY id").fetchall() == [(1, "Ann"), (2, None)]
    assert connection.execute("SELECT name FROM t WHERE id = %s", (1,)).fetchone() == ("Ann",)
    assert connection.execute("SELECT id, x FROM t WHERE id = %s", (2,), binary=True).fetchone() == (2, 0.1)
    assert connection.execute("").statusmessage is None


def test_psycopg_receives_tags_and_counts(connection: Connection) -> None:
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", [(10, "k", 1.0), (11, None, 2.0)])

    assert cursor.rowcount == 2
    assert connection.execute("DELETE FROM t WHERE id >= 10").statusmessage == "DELETE 2"


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("SELECT nope FROM t", "42703"),
        ("SELECT * FROM missing", "42P01"),
        ("SELEC 1", "42601"),
        ("INSERT INTO t VALUES (1, 'a', 1)", "23505"),
        ("SELECT $1", "42P02"),
    ],
)
def test_errors_have_a_state_and_the_connection_continues(connection: Connection, text: str, sqlstate: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        connection.execute(text)

    assert raised.value.sqlstate == sqlstate
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_positions_are_in_the_text_that_was_sent(connection: Connection) -> None:
    with pytest.raises(psycopg.Error) as raised:
        connection.execute("SELECT 1; SELECT 2; SELECT nope FROM t")

    assert raised.value.diag.statement_position == str("SELECT 1; SELECT 2; SELECT nope FROM t".index("nope") + 1)
    assert raised.value.diag.message_hint == "look again"


def test_internal_errors_end_a_statement_and_are_reported(toy: ToyServer, connection: Connection) -> None:
    with pytest.raises(psycopg.errors.InternalError_, match="ZeroDivisionError: a defect"):
        connection.execute("SELECT 'defect'")

    assert isinstance(toy.defects.pop(), ZeroDivisionError)
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_clients_see_the_transaction_status(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("SELECT 1")
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM missing")
        assert connection.info.transaction_status.value == TransactionStatus.INERROR
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        raise psycopg.Rollback

    assert connection.info.transaction_status.value == TransactionStatus.IDLE


def test_notices_are_reported(connection: Connection) -> None:
    notices: list[str | None] = []
    connection.add_notice_handler(lambda diagnostic: notices.append(diagnostic.message_primary))
    connection.execute("BEGIN")
    connection.execute("BEGIN")
    connection.execute("ROLLBACK")

    assert notices == ["there is already a transaction in progress"]


def test_settings_are_reported_when_they_change(connection: Connection) -> None:
    connection.execute("SET application_name = 'mine'")

    assert connection.info.parameter_status("application_name") == "mine"


def test_copy_out_escapes_delimiters(connection: Connection) -> None:
    with connection.cursor().copy("COPY (SELECT id, name FROM t) TO STDOUT") as copy:
        data = b"".join(bytes(piece) for piece in copy)

    assert data == b"1\tAnn\n2\t\\N\n3\tit's \\t a \\\\ tab\n"


def test_copy_in_stores_valid_rows_and_refuses_invalid_rows(connection: Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS taken(id int, name text)")
    with connection.cursor() as cursor:
        with cursor.copy("COPY taken FROM STDIN") as copy:
            for number in range(5_000):
                copy.write_row((number, f"name {number}"))
        assert cursor.statusmessage == "COPY 5000"
    with pytest.raises(psycopg.Error, match="missing data"), connection.cursor().copy("COPY taken FROM STDIN") as copy:
        copy.write(b"1\n")
    with pytest.raises(ValueError, match="gives up"), connection.cursor().copy("COPY taken FROM STDIN") as copy:
        raise ValueError("the client gives up")

    assert connection.execute("SELECT count(*) FROM taken").fetchone() == (5_000,)


def test_a_subscription_streams_and_is_cancelled(connection: Connection) -> None:
    with connection.cursor().copy("COPY (SUBSCRIBE t) TO STDOUT") as copy:
        rows = [next(copy.rows()) for _ in range(6)]
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            for _ in copy.rows():
                pass

    assert [row[1] for row in rows] == ["1", "2"] * 3
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_subscription_is_reported_before_its_first_row(connection: Connection) -> None:
    with connection.cursor().copy("COPY (SUBSCRIBE nothing) TO STDOUT") as copy:
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            copy.read()


def test_long_query_can_be_cancelled(connection: Connection) -> None:
    begin = time.monotonic()
    with cancelling(connection.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(60)")

    assert time.monotonic() - begin < 60


def test_psycopg_pipelines_are_answered(toy: ToyServer) -> None:
    with psycopg.connect(toy.address, autocommit=True) as connection, connection.pipeline() as pipeline:
        first = connection.execute("SELECT name FROM t WHERE id = %s", (1,))
        second = connection.execute("SELECT count(*) FROM big")
        pipeline.sync()
        assert (first.fetchone(), second.fetchone()) == (("Ann",), (20_000,))
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM missing")
            pipeline.sync()
        pipeline.sync()
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("binary", [False, True])
def test_many_rows_are_fetched(connection: Connection, binary: bool) -> None:
    rows = connection.execute("SELECT i, s FROM big", binary=binary).fetchall()

    assert rows == [(number, f"row {number}") for number in range(1, 20_001)]


def test_deallocate_removes_statements_of_messages(connection: Connection) -> None:
    connection.prepare_threshold = 0
    connection.prepared_max = 1
    for _ in range(2):
        assert connection.execute("SELECT name FROM t WHERE id = %s", (1,)).fetchone() == ("Ann",)
        assert connection.execute("SELECT x FROM t WHERE id = %s", (1,)).fetchone() == (1.5,)
    made = connection.pgconn.prepare(b"kept", b"SELECT 1")
    connection.execute('DEALLOCATE "kept"')

    assert made.status == psycopg.pq.ExecStatus.COMMAND_OK
    assert connection.pgconn.exec_prepared(b"kept", []).error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"26000"


async def test_asyncpg_writes_and_reads(toy: ToyServer) -> None:
    connection = await asyncpg.connect(host="127.0.0.1", port=toy.port, user="flow", database="flow")
    try:
        assert (await connection.fetchrow("SELECT id, name FROM t WHERE id = $1", 1))["name"] == "Ann"
        assert await connection.execute("INSERT INTO t VALUES ($1, $2, $3)", 77, "z", 2.5) == "INSERT 0 1"
        assert await connection.execute("DELETE FROM t WHERE id = 77") == "DELETE 1"
        statement = await connection.prepare("SELECT i, s FROM big WHERE i <= $1")
        assert [parameter.name for parameter in statement.get_parameters()] == ["int8"]
        assert [attribute.name for attribute in statement.get_attributes()] == ["i", "s"]
        async with connection.transaction():
            rows = [row["i"] async for row in statement.cursor(1000, prefetch=50)]
        assert rows == list(range(1, 1001))
        async with connection.transaction():
            cursor = await connection.cursor("SELECT i FROM big ORDER BY i")
            assert await cursor.forward(3) == 3
            assert [row["i"] for row in await cursor.fetch(2)] == [4, 5]
            assert await cursor.forward(30_000) == 19_995
            assert await cursor.fetch(1) == []
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.fetch("SELECT * FROM missing")
        with pytest.raises(asyncio.TimeoutError):
            await connection.fetch("SELECT pg_sleep(30)", timeout=0.1)
        assert await connection.fetchval("SELECT 1") == 1
        async with connection.transaction():
            rows = await (await connection.cursor("SUBSCRIBE t")).fetch(4)
        assert [row["n"] for row in rows] == [1, 2, 1, 2]
    finally:
        await connection.close()


def test_pg8000_writes_and_reads(toy: ToyServer) -> None:
    connection = pg8000.native.Connection("flow", host="127.0.0.1", port=toy.port, database="flow")
    try:
        assert connection.run("SELECT name FROM t WHERE id = :id", id=1) == [["Ann"]]
        with pytest.raises(pg8000.native.DatabaseError, match="42P01"):
            connection.run("SELECT * FROM missing")
        assert connection.run("SELECT count(*) FROM big") == [[20_000]]
    finally:
        connection.close()


def test_psql_writes_and_reads(toy: ToyServer) -> None:
    assert psql(toy, "SELECT id, name FROM t WHERE id = 1").stdout == "1|Ann\n"
    assert psql(toy, "\\copy (SELECT id FROM t) TO STDOUT").stdout == "1\n2\n3\n"
    failed = psql(toy, "SELECT 1 FROM nowhere")
    assert (failed.returncode, failed.stderr.splitlines()[1:3]) == (
        1,
        ["LINE 1: SELECT 1 FROM nowhere", " " * 22 + "^"],
    )


def psql(toy: ToyServer, text: str) -> subprocess.CompletedProcess[str]:
    from postgres_server import _installation

    _, programs = _installation()
    command = [
        str(programs / "psql"),
        "-X",
        "-A",
        "-t",
        "-h",
        "127.0.0.1",
        "-p",
        str(toy.port),
        "-U",
        "flow",
        "-c",
        text,
    ]
    environment = {"PGCONNECT_TIMEOUT": "10", "HOME": str(Path.home()), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, env=environment
    )


def test_sqlalchemy_writes_and_reads(toy: ToyServer) -> None:
    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://flow@127.0.0.1:{toy.port}/flow", poolclass=sqlalchemy.NullPool, use_native_hstore=False
    )
    engine.dialect._get_server_version_info = lambda connection: (16, 0)
    engine.dialect._get_default_schema_name = lambda connection: "public"
    with engine.connect() as connection:
        row = connection.execute(sqlalchemy.text("SELECT name FROM t WHERE id = :id"), {"id": 1}).one()

    assert row == ("Ann",)
