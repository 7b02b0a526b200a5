"""`flowctl sql serve`, from outside."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import asyncpg
import psycopg
import pytest
import sqlalchemy
from forked_flowctl import Flowctl, flowctl
from psycopg.types import TypeInfo

CATALOG = """
collections:
  acme/people:
    key: [/name]
    schema: {type: object, required: [name], properties: {name: {type: string}, age: {type: integer}}}
"""


@dataclass
class Served:
    process: Flowctl
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"host={self.host} port={self.port} user=flow dbname=flow"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


def command(folder: Path, *options: str) -> list[str]:
    source = folder / "flow.yaml"
    source.write_text(CATALOG)
    return ["sql", "serve", "--source", str(source), *options]


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Served]:
    """A server at any port, once clients can connect."""
    process = Flowctl(command(folder, *options, "--listen", "127.0.0.1:0"), stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        host, _, port = process.stdout.readline().strip().rpartition(":")
        yield Served(process, host, int(port))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def refused(folder: Path, *options: str) -> tuple[int, str]:
    """How a server ends that cannot begin: its exit code, and what it says."""
    status, out, err = flowctl(folder, *command(folder, *options), env=os.environ)
    assert out == ""
    return status, err


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("served")) as server:
        yield server


def test_clients_write_and_read(served: Served) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id bigint NOT NULL, note text)")
        connection.execute("INSERT INTO notes VALUES (%s, %s), (2, NULL)", (1, "one"))
        with connection.transaction():
            connection.execute("INSERT INTO notes VALUES (3, 'three')")
        rows = connection.execute("SELECT id, note FROM notes ORDER BY id", binary=True).fetchall()

    assert rows == [(1, "one"), (2, None), (3, "three")]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("SELECT 1; SELECT nope", 18),
        ("-- SELECT nope\nSELECT nope", 23),
        ("SELECT 1; /* SELECT nope */ PREPARE p AS SELECT nope", 49),
    ],
)
def test_errors_tell_where_they_are_in_what_was_sent(served: Served, text: str, position: int) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UndefinedColumn) as failed:
            connection.execute(text)
        assert failed.value.diag.statement_position == str(position)


def test_clients_are_told_of_collections_and_tables(served: Served) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE told (id bigint NOT NULL, at timestamptz)")
        connection.execute('CREATE VIEW names AS SELECT name FROM "acme/people"')
    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://flow@{served.host}:{served.port}/flow", poolclass=sqlalchemy.NullPool
    )
    inspector = sqlalchemy.inspect(engine)

    assert {"acme/people", "told"} <= set(inspector.get_table_names())
    assert inspector.get_view_names() == ["names"]
    assert [(column["name"], str(column["type"])) for column in inspector.get_columns("told")] == [
        ("id", "BIGINT"),
        ("at", "TIMESTAMP"),
    ]
    assert inspector.get_table_comment("acme/people") == {"text": "a collection of the catalog"}
    assert [column["name"] for column in inspector.get_columns("acme/people")][:2] == ["name", "age"]


def test_a_query_about_the_catalog_fails_in_a_failed_transaction(served: Served) -> None:
    with psycopg.connect(served.address) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable, match="nothing"):
            connection.execute("SELECT * FROM nothing")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT * FROM pg_class")


def test_one_process_serves_a_data_folder(served: Served, tmp_path: Path) -> None:
    source = Path(served.process.args[served.process.args.index("--source") + 1])  # type: ignore[index, union-attr, arg-type]
    status, message = refused(tmp_path, "--data", str(source.parent / ".flow"))

    assert status == 1
    assert f"{served.host}:{served.port}" in message


def test_a_signal_ends_it_and_what_was_written_stays(tmp_path: Path) -> None:
    with serve(tmp_path) as first:
        connection = psycopg.connect(first.address, autocommit=True)
        connection.execute("CREATE TABLE kept (id bigint)")
        connection.execute("INSERT INTO kept VALUES (1)")
        assert first.stop() == 0
        with pytest.raises(psycopg.OperationalError, match="administrator command"):
            connection.execute("SELECT 1")
        connection.close()
    with serve(tmp_path) as second:
        with psycopg.connect(second.address, autocommit=True) as connection:
            assert connection.execute("INSERT INTO kept VALUES (2)").statusmessage == "INSERT 0 1"
        assert second.stop(signal.SIGKILL) == -signal.SIGKILL
    with serve(tmp_path) as third, psycopg.connect(third.address, autocommit=True) as connection:
        assert connection.execute("SELECT id FROM kept ORDER BY id").fetchall() == [(1,), (2,)]


@pytest.mark.skipif(shutil.which("psql") is None, reason="there is no psql")
@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_psql_on_a_terminal(served: Served, locale: str) -> None:
    """On a terminal psql asks for the encoding of its locale: in the locale C, for SQL_ASCII."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["psql", "-X", "-h", served.host, "-p", str(served.port), "-U", "flow", "-At", "-P", "pager=off"],
        env={"PATH": os.environ["PATH"], "LC_ALL": locale, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, "SELECT 'gr' || 'ün', length('ün');\nSHOW client_encoding;\n\\q\n".encode())
    said = b""
    with suppress(OSError):  # that is how a terminal ends
        while more := os.read(ours, 4096):
            said += more
    os.close(ours)
    assert process.wait(30) == 0
    assert "grün|2" in said.decode()
    assert ("UTF8" if locale == "C.UTF-8" else "SQL_ASCII") in said.decode()


def test_an_encoding_that_is_not_here_ends_a_statement_and_no_connection(served: Served) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="LATIN1"):
            connection.execute("SET client_encoding = 'LATIN1'")
        assert connection.execute("SHOW client_encoding").fetchone() == ("UTF8",)
    with pytest.raises(psycopg.OperationalError, match="PGCLIENTENCODING=UTF8"):
        psycopg.connect(f"{served.address} client_encoding=LATIN1")


def test_passwords(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:secret\nben:other\n")
    passwords.chmod(0o600)
    with serve(tmp_path, "--password-file", str(passwords)) as server:
        address = f"host={server.host} port={server.port} dbname=flow user=ann"
        with psycopg.connect(f"{address} password=secret") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"{address} password=wrong")
        told = "SELECT usename, query FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        others = address.replace("user=ann", "user=ben password=other")
        with psycopg.connect(f"{address} password=secret") as ann, psycopg.connect(others) as ben:
            ann.execute("SELECT 'what ann asks'")
            assert ben.execute(told).fetchall() == [("ann", "<insufficient privilege>")]
            with psycopg.connect(f"{address} password=secret") as another:
                assert ("ann", "SELECT 'what ann asks'") in another.execute(told).fetchall()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "6875"), "--listen takes HOST:PORT, and not 6875"),
        (("--listen", "0.0.0.0:0"), "0.0.0.0 can be reached from other machines, and there is no password"),
        (("--password-file", "none"), "the password file none cannot be read"),
        (("--tls-certificate", "none.pem"), "the certificate none.pem cannot be used"),
        (("--tls-key", "key.pem"), "--tls-key needs a certificate"),
        (("--instance", "127.0.0.1:0"), "nobody can be reached at port 0 of 127.0.0.1"),
    ],
)
def test_command_lines_that_make_no_sense(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    status, said = refused(tmp_path, *options)

    assert status == 2
    assert message in said


@pytest.mark.parametrize("binary", [False, True])
def test_declared_forms(served: Served, binary: bool) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection, connection.cursor(binary=binary) as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS prices (price numeric(10,2), code char(3), name varchar(5))")
        cursor.execute("DELETE FROM prices")
        cursor.execute("INSERT INTO prices VALUES (1.5, 'ab', 'x')")
        cursor.execute("SELECT price, code, name, price * 2 FROM prices")
        assert [str(value) for value in cursor.fetchone() or ()] == ["1.50", "ab ", "x", "3.00"]
        assert cursor.description is not None
        assert [(column.type_code, column.precision, column.scale) for column in cursor.description][:1] == [
            (1700, 10, 2)
        ]
        assert [column.display_size for column in cursor.description][1:3] == [3, 5]
        cursor.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname IN ('price', 'code', 'name') "
            "AND attrelid = 'prices'::regclass ORDER BY attnum"
        )
        assert [text for (text,) in cursor.fetchall()] == ["numeric(10,2)", "character(3)", "character varying(5)"]
        cursor.execute(
            "SELECT data_type, character_maximum_length, numeric_precision, numeric_scale "
            "FROM information_schema.columns WHERE table_name = 'prices' ORDER BY ordinal_position"
        )
        assert cursor.fetchall() == [
            ("numeric", None, 10, 2),
            ("character", 3, None, None),
            ("character varying", 5, None, None),
        ]


@pytest.mark.parametrize("binary", [False, True])
def test_arrays(served: Served, binary: bool) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection, connection.cursor(binary=binary) as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS words (id bigint, tags text[])")
        cursor.execute("DELETE FROM words")
        mark = "%b" if binary else "%t"
        cursor.execute(f"INSERT INTO words VALUES (1, {mark}), (2, {mark}), (3, NULL)", (["a", None, 'b "c'], []))
        cursor.execute(f"SELECT id, tags FROM words WHERE id = ANY({mark}) ORDER BY id", ([1, 2, 7],))
        assert cursor.fetchall() == [(1, ["a", None, 'b "c']), (2, [])]
        assert cursor.description is not None
        assert [column.type_code for column in cursor.description] == [20, 1009]
        cursor.execute(f"SELECT id FROM words WHERE id <> ALL({mark}) ORDER BY id", ([1],))
        assert cursor.fetchall() == [(2,), (3,)]
        cursor.execute(f"SELECT id FROM words WHERE tags @> {mark}", (["a"],))
        assert cursor.fetchall() == [(1,)]
        cursor.execute("SELECT data_type, udt_name FROM information_schema.columns WHERE column_name = 'tags'")
        assert cursor.fetchall() == [("ARRAY", "_text")]


def test_definitions_and_rows_are_one_transaction(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        with psycopg.connect(served.address) as connection:  # which begins a transaction by itself
            connection.execute("CREATE TABLE t (a int, b text)")
            assert TypeInfo.fetch(connection, "jsonb") is not None  # behind a savepoint
            connection.cursor().executemany("INSERT INTO t VALUES (%s, %s)", [(1, "x"), (2, "y")])
            with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
                connection.execute("INSERT INTO t VALUES (3, 'z')")
                connection.execute("CREATE TABLE never (a int)")
                connection.execute("SELECT 1 / 0")
            connection.execute("CREATE VIEW v AS SELECT count(*) AS n FROM t")
            with psycopg.connect(served.address) as other:
                assert other.execute("SELECT relname FROM pg_class WHERE relname IN ('t', 'v')").fetchall() == []
            assert connection.execute("SELECT relname FROM pg_class WHERE relname IN ('t', 'v', 'never')").rowcount == 2
        with psycopg.connect(served.address) as other:
            assert other.execute("SELECT n FROM v").fetchone() == (2,)

        engine = sqlalchemy.create_engine(f"postgresql+psycopg://flow@{served.host}:{served.port}/flow")
        metadata = sqlalchemy.MetaData()
        people = sqlalchemy.Table("people", metadata, sqlalchemy.Column("name", sqlalchemy.Text, nullable=False))
        sqlalchemy.Table("places", metadata, sqlalchemy.Column("place", sqlalchemy.Text))
        with engine.begin() as begun:
            metadata.create_all(begun)
            begun.execute(people.insert(), [{"name": "Ann"}, {"name": "Ben"}])
            metadata.create_all(begun)  # they are there
        with engine.connect() as connected:
            assert sorted(connected.execute(sqlalchemy.select(people.c.name)).scalars()) == ["Ann", "Ben"]
            assert set(sqlalchemy.inspect(connected).get_table_names()) >= {"people", "places", "t"}
        metadata.drop_all(engine)
        assert set(sqlalchemy.inspect(engine).get_table_names()).isdisjoint({"people", "places"})
        engine.dispose()


def test_defaults(served: Served) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE visits (name text, at timestamptz DEFAULT now(), n int DEFAULT 1 NOT NULL)")
        with connection.cursor().copy("COPY visits (name) FROM STDIN") as copy:
            copy.write_row(("Ann",))
            copy.write_row(("Ben",))
        rows = connection.execute("SELECT name, at IS NULL, n FROM visits ORDER BY name").fetchall()
        assert rows == [("Ann", False, 1), ("Ben", False, 1)]
        query = (
            "SELECT column_default FROM information_schema.columns WHERE table_name = 'visits' ORDER BY column_default"
        )
        assert connection.execute(query).fetchall() == [("1",), ("now()",), (None,)]
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://flow@{served.host}:{served.port}/flow")
    columns = sqlalchemy.inspect(engine).get_columns("visits")
    assert [(column["name"], column["default"]) for column in columns] == [("name", None), ("at", "now()"), ("n", "1")]
    engine.dispose()


def test_psycopg_copies_in_binary(served: Served) -> None:
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    rows = [(1, "one", at, Decimal("1.50")), (2, None, None, None)]
    with psycopg.connect(served.address, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE binaries (id bigint, name text, at timestamptz, n numeric)")
        with cursor.copy("COPY binaries FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int8", "text", "timestamptz", "numeric"])
            for row in rows:
                copy.write_row(row)
        assert cursor.rowcount == 2
        with cursor.copy("COPY (SELECT * FROM binaries ORDER BY id) TO STDOUT (FORMAT binary)") as copy:
            copy.set_types(["int8", "text", "timestamptz", "numeric"])
            assert list(copy.rows()) == rows
        with cursor.copy("COPY (SELECT 1 WHERE false) TO STDOUT (FORMAT binary)") as copy:
            assert b"".join(copy).startswith(b"PGCOPY")
        with (
            pytest.raises(psycopg.errors.BadCopyFileFormat, match="signature"),
            cursor.copy("COPY binaries FROM STDIN (FORMAT binary)") as copy,
        ):
            copy.write(b"1\tone\n")
        with pytest.raises(psycopg.errors.SyntaxError, match="BINARY mode"):
            cursor.execute("COPY binaries TO STDOUT (FORMAT binary, DELIMITER ',')")


def test_asyncpg_copies_records(served: Served) -> None:
    async def work() -> tuple[str, list[tuple[object, ...]], int]:
        connection = await asyncpg.connect(host=served.host, port=served.port, user="flow", database="flow")
        await connection.execute("CREATE TABLE records (id int, name text, score double precision DEFAULT 0.5)")
        status = await connection.copy_records_to_table(
            "records", records=[(1, "a"), (2, None)], columns=["id", "name"]
        )
        rows = await connection.fetch("SELECT * FROM records ORDER BY id")
        target = io.BytesIO()
        await connection.copy_from_table("records", output=target, format="binary")
        target.seek(0)
        await connection.execute("CREATE TABLE again (id int, name text, score double precision)")
        await connection.copy_to_table("again", source=target, format="binary")
        count = await connection.fetchval("SELECT count(*) FROM again JOIN records USING (id, score)")
        await connection.close()
        return status, [tuple(row) for row in rows], count

    assert asyncio.run(work()) == ("COPY 2", [(1, "a", 0.5), (2, None, 0.5)], 2)
