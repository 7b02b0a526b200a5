"""`flowctl sql serve`, from outside."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import psycopg
import pytest
import sqlalchemy
from forked_flowctl import Flowctl, flowctl
from patience import PATIENCE_SECONDS
from psycopg.types import TypeInfo
from sql_world import lapse

from derive.compute.dataflow.database import NAME
from derive.errors import FencedError
from derive.sql.maintenance.controller.remote import PROCESSES
from derive.sql.maintenance.instances import FOLDER
from derive.storage.metadata.definitions import Definitions, ItemChanges
from derive.storage.metadata.process import is_stopped, lock_holder
from derive.storage.store import Store
from derive.storage.task_log import recent_entries

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
        return self.process.wait(PATIENCE_SECONDS)


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
def test_errors_report_their_position_in_the_statement(served: Served, text: str, position: int) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UndefinedColumn) as failed:
            connection.execute(text)
        assert failed.value.diag.statement_position == str(position)


def test_waiting_functions_do_not_stop_the_server(served: Served) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE waits (id bigint PRIMARY KEY)")
        connection.execute("INSERT INTO waits VALUES (1)")
        connection.execute("SELECT pg_sleep(0.01)")
        connection.execute("SELECT pg_sleep(0.01) FROM waits WHERE id = 1")
        assert connection.execute("SELECT id FROM waits").fetchall() == [(1,)]


def test_clients_see_collections_and_tables(served: Served) -> None:
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


def test_catalog_query_fails_in_a_failed_transaction(served: Served) -> None:
    with psycopg.connect(served.address) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable, match="nothing"):
            connection.execute("SELECT * FROM nothing")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT * FROM pg_class")


def test_second_server_of_a_data_folder_is_refused(served: Served, tmp_path: Path) -> None:
    source = Path(served.process.args[served.process.args.index("--source") + 1])  # type: ignore[index, union-attr, arg-type]
    status, message = refused(tmp_path, "--data", str(source.parent / ".flow"))

    assert status == 1
    assert f"{served.host}:{served.port}" in message


def test_signal_ends_the_server_and_written_rows_stay(tmp_path: Path) -> None:
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
def test_psql_works_on_a_terminal(served: Served, locale: str) -> None:
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
    assert process.wait(PATIENCE_SECONDS) == 0
    assert "grün|2" in said.decode()
    assert ("UTF8" if locale == "C.UTF-8" else "SQL_ASCII") in said.decode()


def test_unsupported_encoding_fails_the_statement_and_keeps_the_connection(served: Served) -> None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="EUC_TW"):
            connection.execute("SET client_encoding = 'EUC_TW'")
        assert connection.execute("SHOW client_encoding").fetchone() == ("UTF8",)
    with pytest.raises(psycopg.OperationalError, match="This server knows UTF8"):
        psycopg.connect(f"{served.address} client_encoding=EUC_TW")


def test_password_file_restricts_logins(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:secret\nben:other\n")
    passwords.chmod(0o600)
    with serve(tmp_path, "--password-file", str(passwords)) as server:
        address = f"host={server.host} port={server.port} dbname=flow user=ann"
        with psycopg.connect(f"{address} password=secret") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"{address} password=wrong")
        reported = "SELECT usename, query FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        others = address.replace("user=ann", "user=ben password=other")
        with psycopg.connect(f"{address} password=secret") as ann, psycopg.connect(others) as ben:
            ann.execute("SELECT 'what ann asks'")
            assert ben.execute(reported).fetchall() == [("ann", "<insufficient privilege>")]
            with psycopg.connect(f"{address} password=secret") as another:
                assert ("ann", "SELECT 'what ann asks'") in another.execute(reported).fetchall()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "6875"), "--listen takes HOST:PORT, not 6875"),
        (("--listen", "0.0.0.0:0"), "0.0.0.0 can be reached from other machines, and the server has no password file"),
        (("--password-file", "none"), "the password file none cannot be read"),
        (("--tls-certificate", "none.pem"), "the certificate none.pem cannot be used"),
        (("--tls-key", "key.pem"), "--tls-key needs a certificate"),
        (("--instance", "127.0.0.1:0"), "port 0 of 127.0.0.1 cannot be reached"),
    ],
)
def test_invalid_serve_options_are_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    status, said = refused(tmp_path, *options)

    assert status == 2
    assert message in said


@pytest.mark.parametrize("binary", [False, True])
def test_clients_see_declared_type_modifiers(served: Served, binary: bool) -> None:
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
def test_clients_write_and_read_arrays(served: Served, binary: bool) -> None:
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


def test_clients_use_column_defaults(served: Served) -> None:
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


# Users of `flowctl sql serve`: their rights, and their names.


@contextmanager
def client(server: Served, user: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    address = f"host={server.host} port={server.port} user={user} password={user} dbname=flow"
    with psycopg.connect(address, autocommit=True, **options) as connection:
        yield connection


@contextmanager
def users(folder: Path, *options: str) -> Iterator[Served]:
    """A server with the users ann, who may read files, ben, and cas, who may change replicas."""
    passwords = folder / "passwords"
    passwords.write_text("ann [files]:ann\nben:ben\ncas [replicas]:cas\n")
    passwords.chmod(0o600)
    with serve(folder, "--password-file", str(passwords), *options) as server:
        yield server


@pytest.fixture(scope="module")
def logged_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with users(tmp_path_factory.mktemp("users")) as server:
        with client(server, "ann") as ann:
            ann.execute(
                "CREATE TABLE notes (note text, author text DEFAULT current_user, by text DEFAULT session_user)"
            )
            ann.execute("CREATE VIEW own AS SELECT note FROM notes WHERE author = current_user")
        yield server


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "expression",
    [
        *("current_user", "session_user", "user", "current_role", "lower(current_user)", "'' || user", "user::text"),
        "(SELECT current_user FROM notes LIMIT 1)",
        "(SELECT rolname FROM pg_roles WHERE rolname = current_user)",
        "(SELECT usename FROM pg_stat_activity WHERE pid = pg_backend_pid())",
        "current_setting('session_authorization')",
    ],
)
@pytest.mark.parametrize("place", ["SELECT {}", "SELECT {} FROM notes LIMIT 1", "VALUES ({})"])
def test_current_user_is_the_login(logged_in: Served, expression: str, place: str) -> None:
    for user in ("ann", "ben", "ann"):  # plans are shared, and users are not
        with client(logged_in, user) as connection:
            connection.execute("INSERT INTO notes (note) VALUES ('x')")
            if "pg_" in expression or "setting" in expression:
                place = "SELECT {}"  # which relations of one's own are not joined with
            text = place.format(expression).encode()
            assert connection.execute(text, prepare=True).fetchone() == (user,)


def test_rows_are_written_as_the_user(logged_in: Served) -> None:
    for user in ("ann", "ben"):
        with client(logged_in, user) as connection:
            connection.execute("DELETE FROM notes WHERE author = current_user")
            connection.execute("INSERT INTO notes (note) VALUES ('one')")
            connection.execute("INSERT INTO notes SELECT 'two', current_user, session_user")
            with connection.cursor().copy("COPY notes (note) FROM STDIN") as copy:
                copy.write(b"three\n")
            connection.execute("UPDATE notes SET note = current_user || ' ' || note WHERE author = user")
            rows = connection.execute("SELECT note, by FROM notes WHERE author = current_user ORDER BY 1").fetchall()
            assert rows == [(f"{user} {word}", user) for word in ("one", "three", "two")]
            assert connection.execute("SELECT count(*) FROM own").fetchone() == (3,)
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="current_user"):
                connection.execute("CREATE MATERIALIZED VIEW m AS SELECT current_user AS u FROM notes")


def test_clients_cannot_become_another_user(logged_in: Served) -> None:
    for options in ({}, {"options": "-c session_authorization=ann"}, {"options": "-c session_authorization=flow"}):
        with client(logged_in, "ben", **options) as connection:
            for text in ("SET SESSION AUTHORIZATION ann", "SET session_authorization = 'ann'", "SET ROLE ann"):
                with pytest.raises(psycopg.Error):
                    connection.execute(text.encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT set_config('session_authorization', 'ann', false)")
            for text in ("RESET SESSION AUTHORIZATION", "SET session_authorization = 'ben'", "RESET ROLE", "RESET ALL"):
                connection.execute(text.encode())
            assert connection.execute("SHOW session_authorization").fetchone() == ("ben",)
            assert connection.execute("SELECT current_user").fetchone() == ("ben",)
            assert connection.info.parameter_status("session_authorization") == "ben"


def test_only_marked_users_read_files_and_only_below_folders_that_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "people.csv").write_text("name\nAnn\n")
    (folder / "passwords").symlink_to(tmp_path / "passwords")
    elsewhere = [
        *(folder / "passwords", folder / ".." / "passwords", Path("/etc/passwd"), Path("/proc/self/environ")),
        *(tmp_path / "passwords", tmp_path / ".flow" / "metadata.db", Path("~/.profile"), folder / ".." / "none"),
    ]

    def created(path: Path, columns: str = "(line text)") -> bytes:
        return f"CREATE SOURCE s {columns} FROM FILE '{path}' FORMAT CSV WITH (HEADER)".encode()

    with users(tmp_path, "--files", str(folder)) as server:
        with client(server, "ben") as ben:
            for path in (*elsewhere, folder / "people.csv", folder / "none"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="files of the server"):
                    ben.execute(created(path))
        with client(server, "ann") as ann:
            for path in elsewhere:
                for columns in ("(line text)", ""):  # without columns, the file is read as it is created
                    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied to read"):
                        ann.execute(created(path, columns))
            ann.execute(created(folder / "people.csv"))
        with client(server, "ben") as ben:
            while not ben.execute("SELECT * FROM s").fetchall():
                pass
    with users(tmp_path) as server, client(server, "ann") as ann:  # no folder is named any more
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied to read"):
            while True:
                ann.execute("SELECT * FROM s")
        assert "people.csv" in ann.execute("SHOW MAINTENANCE").fetchall()[0][2]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ann.execute(b"ALTER SOURCE s RENAME TO r; " + created(folder / "people.csv"))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 1) TO '/tmp/flow-never'",
        "COPY notes FROM '/etc/passwd'",
        "COPY notes FROM PROGRAM 'cat /etc/passwd'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_read_binary_file('/etc/passwd')",
        "SELECT * FROM pg_ls_dir('/etc')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd'), pg_class",
        "SELECT * FROM glob('/etc/*'), pg_class",
        "SELECT getenv('HOME')",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "ATTACH '/tmp/flow-never.db' AS x",
        "INSTALL httpfs",
        "LOAD 'httpfs'",
        "VACUUM INTO '/tmp/flow-never'",
        "PRAGMA database_list",
        "CREATE TABLE x AS SELECT * FROM '/etc/passwd'",
        "CREATE EXTENSION file_fdw",
        "CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x'",
    ],
)
def test_no_other_statement_reaches_files(logged_in: Served, text: str) -> None:
    for user in ("ann", "ben"):
        with client(logged_in, user) as connection, pytest.raises(psycopg.Error) as failed:
            connection.execute(text.encode())
        assert failed.value.sqlstate in {"42601", "42883", "0A000", "42P01", "42501"}
    assert not Path("/tmp/flow-never").exists()


def test_only_marked_users_change_replicas(logged_in: Served) -> None:
    for text in ("CREATE REPLICA r (ADDRESS '127.0.0.1:1')", "DROP REPLICA IF EXISTS r"):
        for user in ("ann", "ben"):
            with client(logged_in, user) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(text.encode())
        with client(logged_in, "cas") as connection:
            connection.execute(text.encode())


def test_files_option_needs_a_folder(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--files", str(tmp_path / "none"))
    assert code == 2
    assert "--files" in said


# A server that was taken for dead and comes back, from outside.


def held(data: Path) -> dict[int, int]:
    with closing(Store(data, reading=True)) as store:
        return store.task_capabilities.dataflows("index")


def stop_between_commits(process: subprocess.Popen[str], data: Path) -> None:
    """Stop a process while it has no transaction of the metadata, for which all other processes would wait."""
    while True:
        process.send_signal(signal.SIGSTOP)
        while not is_stopped(process.pid):
            pass
        if lock_holder(os.stat(data / "metadata.db-shm"), "POSIX") != process.pid:
            return
        process.send_signal(signal.SIGCONT)


def test_superseded_server_commits_nothing_and_ends(tmp_path: Path) -> None:
    data = tmp_path / ".flow"
    with serve(tmp_path) as first, psycopg.connect(first.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE INDEX t_a ON t (a)")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not held(data):
            assert time.monotonic() < deadline
            connection.execute("SELECT pg_sleep(0.05)")
        stop_between_commits(first.process, data)
        lapse(data)
        with serve(tmp_path) as second, psycopg.connect(second.address, autocommit=True) as other:
            other.execute("DROP INDEX t_a")
            while held(data):
                assert time.monotonic() < deadline
                other.execute("SELECT pg_sleep(0.05)")
            first.process.send_signal(signal.SIGCONT)

            assert first.process.wait(PATIENCE_SECONDS) == 1
            with pytest.raises(psycopg.OperationalError):
                connection.execute("INSERT INTO t VALUES (1)")
            assert other.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
            assert held(data) == {}


def test_superseded_server_changes_no_names(tmp_path: Path) -> None:
    with closing(Store(tmp_path, durable=False)) as old, closing(Store(tmp_path, durable=False)) as new:
        old.fence.begin()
        new.fence.begin()
        with pytest.raises(FencedError, match="another flowctl has begun to serve SQL"):
            old.sql_catalog.add_replica("blue", "")
        with pytest.raises(FencedError):
            old.tables.append(old.timeline.present(), {}, definitions=Definitions(ItemChanges()))
        new.sql_catalog.add_replica("blue", "")
        assert (new.sql_catalog.replicas(), new.sql_catalog.version()) == ([("blue", "")], 0)


# Restarts of a server with replicas, as a client sees them.


def begun_at(instance: Path) -> dict[int, int]:
    """The views and indexes that an instance has, and from when on it knows them."""
    try:
        with closing(apsw.Connection(str(instance / NAME), flags=apsw.SQLITE_OPEN_READONLY)) as database:
            rows = database.execute("SELECT id, since FROM dataflows").fetchall()
    except apsw.Error:  # it is only just being made
        return {}
    return {int(str(id_)): int(str(since)) for id_, since in rows}


def is_durable(data: Path, count: int) -> bool:
    """Whether all instances have so many indexes, and a server that begins asks for no more than they know."""
    with closing(Store(data, reading=True)) as store:
        held = store.task_capabilities.dataflows("index")
    instances = [begun_at(instance) for instance in (data / PROCESSES).iterdir()]
    return all(len(begun) == count and all(begun[id_] <= held[id_] for id_ in begun) for begun in instances)


def test_killed_server_recomputes_nothing_at_restart(tmp_path: Path) -> None:
    data, count = tmp_path / ".flow", 5
    with serve(tmp_path, "--replicas", "2") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        for number in range(count):
            connection.execute("INSERT INTO t VALUES (%s)", (number,))
            connection.execute(f"CREATE VIEW v{number} AS SELECT a + {number} AS b FROM t")
            connection.execute(f"CREATE INDEX ON v{number} (b)")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_durable(data, count):
            assert time.monotonic() < deadline
            connection.execute("SELECT pg_sleep(0.1)")
        served.stop(signal.SIGKILL)
    before = len(recent_entries(data, FOLDER))

    with serve(tmp_path, "--replicas", "2") as served, psycopg.connect(served.address, autocommit=True) as connection:
        for number in range(count):
            query = f"SELECT count(*) FROM v{number} WHERE b >= {number}"
            assert connection.execute(query).fetchall() == [(count,)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(welcomes := [entry for entry in recent_entries(data, FOLDER)[before:] if "rebuilt" in entry]) < 2:
            assert time.monotonic() < deadline
            connection.execute("SELECT pg_sleep(0.1)")
        assert [(entry["kept"], entry["rebuilt"], entry["dropped"]) for entry in welcomes] == [(count, 0, 0)] * 2
