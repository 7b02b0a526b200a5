"""Configurations and servers that are not as they should be: a clear error, nothing lost, and on it goes when mended."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import psycopg
import pytest
from postgres_server import PASSWORD, PostgresServer, server
from sql_databases import DATABASES, Database, commit, in_duckdb, load, postgres, source, sqlite, stored

from connectors.kit import ConstraintType
from connectors.materialize_sql.column import literal
from derive.errors import BusyError, DeniedError, DiskFullError, EndpointError, EndpointGoneError, FlowError

BALANCES = source({"account": ["string"]}, {"balance": ["integer", "null"]})
BINDING = BALANCES.binding()
LITERAL = literal(PASSWORD)


@pytest.fixture(params=sorted(DATABASES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return DATABASES[request.param](tmp_path)


def refusal(database: Database, /, **config: Any) -> FlowError:
    """What validation, application and opening say of a configuration, which is the same."""
    wrong = replace(database, config=database.config | config)
    errors = []
    for act in (lambda: wrong.validate(BALANCES.proposed()), lambda: wrong.apply(BINDING), lambda: wrong.open(BINDING)):
        with pytest.raises(FlowError) as caught:
            act()
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    return errors[0]


@pytest.fixture
def in_postgres(tmp_path: Path) -> Database:
    return postgres(tmp_path)


@pytest.mark.parametrize(
    ("config", "kind", "message", "hint"),
    [
        ({"password": "wrong-secret"}, DeniedError, 'password authentication failed for user "postgres"', "password"),
        ({"password": ""}, DeniedError, "no password supplied", "password"),
        ({"user": "nobody"}, DeniedError, 'password authentication failed for user "nobody"', "user"),
        ({"database": "no such"}, EndpointError, 'database "no such" does not exist', "create the database"),
        ({"address": "127.0.0.1:1"}, EndpointGoneError, "Connection refused", "check that the server runs"),
        ({"address": "no-such-host.invalid"}, EndpointGoneError, "resolve host", "check that the server runs"),
        ({"address": "/no/such/folder"}, EndpointGoneError, "No such file", "check that the server runs"),
        ({"address": "host:port"}, EndpointError, "has no port after its colon", "host:port"),
    ],
)
def test_refused_logins_are_reported_with_hints(
    in_postgres: Database, config: dict[str, str], kind: type[FlowError], message: str, hint: str
) -> None:
    error = refusal(in_postgres, **config)

    assert type(error) is kind
    assert message in error.message
    assert hint in (error.hint or "")
    assert "secret" not in str(error)


def test_read_only_role_is_reported(in_postgres: Database) -> None:
    in_postgres.apply(BINDING)
    schema = in_postgres.schema[0]
    with server().connect() as connection:
        connection.execute(f'CREATE ROLE "reader of {schema}" LOGIN PASSWORD {LITERAL}'.encode())
        connection.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "reader of {schema}"'.encode())
        connection.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "reader of {schema}"'.encode())
    reader = replace(in_postgres, config=in_postgres.config | {"user": f"reader of {schema}"})

    assert reader.validate(BALANCES.proposed())[0].constraints["balance"].type is ConstraintType.LOCATION_RECOMMENDED
    assert reader.apply(BINDING) == ""
    with pytest.raises(
        DeniedError, match="permission denied for table flow_checkpoints .*grant the missing right to the role"
    ):
        reader.open(BINDING)
    with pytest.raises(DeniedError, match=f"permission denied for schema {schema}"):
        reader.apply(BALANCES.binding("another"))
    with pytest.raises(DeniedError, match="permission denied for database postgres"):
        elsewhere = replace(reader, config=reader.config | {"schema": "of its own"}, schema=("of its own",))
        elsewhere.apply(BINDING)


def test_read_only_server_is_reported(in_postgres: Database) -> None:
    in_postgres.apply(BINDING)
    schema = in_postgres.schema[0]
    with server().connect() as connection:
        connection.execute(f'CREATE ROLE "{schema}" SUPERUSER LOGIN PASSWORD {LITERAL}'.encode())
        connection.execute(f'ALTER ROLE "{schema}" SET default_transaction_read_only = on'.encode())
    reader = replace(in_postgres, config=in_postgres.config | {"user": schema})

    with pytest.raises(DeniedError, match="read-only transaction .*is read-only; configure one that may write"):
        reader.open(BINDING)


def test_view_in_place_of_a_table_is_refused(in_postgres: Database) -> None:
    in_postgres.apply(BINDING)
    in_postgres.query("CREATE VIEW summary AS SELECT * FROM balances")

    with pytest.raises(EndpointError, match=r"summary' in database .* is not a table"):
        in_postgres.validate(BALANCES.proposed("summary"))


def test_table_of_another_schema_is_unsatisfiable(database: Database) -> None:
    database.apply(BALANCES.binding("other"))
    database.query("CREATE TABLE balances (account INTEGER, balance VARCHAR(5) NOT NULL, extra DATE NOT NULL)")

    (validated,) = database.validate(BALANCES.proposed())
    assert {name: constraint.type for name, constraint in validated.constraints.items()} == {
        "account": ConstraintType.UNSATISFIABLE,
        "balance": ConstraintType.UNSATISFIABLE,
        "flow_document": ConstraintType.LOCATION_REQUIRED,
    }
    assert "no primary key" in validated.constraints["account"].reason
    assert "its column 'balance' has type" in validated.constraints["balance"].reason
    with pytest.raises(EndpointError, match="cannot have the field 'account'"):
        database.apply(BINDING)
    with pytest.raises(EndpointError, match="cannot have the field 'account'"):
        database.open(BINDING)


def test_existing_table_that_fits_is_used(database: Database) -> None:
    database.apply(BALANCES.binding("other"))
    kinds = {"DuckDB": ("VARCHAR", "HUGEINT", "JSON", ""), "PostgreSQL": ("text", "numeric", "json", "")}
    title = database.connector.dialect.title  # type: ignore[attr-defined]
    text, number, document, strict = kinds.get(title, ("TEXT", "ANY", "ANY", "STRICT"))
    database.query(
        f"CREATE TABLE balances (extra {text} NOT NULL, flow_document {document}, balance {number},"
        f" account {text} PRIMARY KEY) {strict}"
    )
    database.query("INSERT INTO balances (account, extra) VALUES ('there', 'before')")
    assert "extra" in database.apply(BINDING)  # which must take NULL from now on
    with database.session(BINDING) as session:
        commit(session, BINDING, [{"account": "ann", "balance": 1}])
        assert load(session, [("ann",), ("there",)]) == ['{"account":"ann","balance":1}']

    rows = database.query("SELECT account, balance, extra FROM balances")
    assert sorted(rows) == [("ann", 1, None), ("there", None, "before")]


@pytest.mark.parametrize("make", [sqlite, in_duckdb])
def test_files_that_are_no_databases_are_reported(make: Any, tmp_path: Path) -> None:
    database: Database = make(tmp_path)
    (tmp_path / "text").write_text("This is a text and no database. " * 1000)
    (tmp_path / "folder").mkdir()

    assert "there is no folder '/no/such'" in refusal(database, path="/no/such/file").message
    assert str(tmp_path / "text") in refusal(database, path=str(tmp_path / "text")).message
    assert str(tmp_path / "folder") in refusal(database, path=str(tmp_path / "folder")).message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=2m,mode=777", "tmpfs", str(folder)]
    if mount is None or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("disks are mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


LARGE: list[dict[str, Any]] = [
    {"account": f"{number}", "balance": number, "text": "x" * 10_000} for number in range(400)
]


@pytest.mark.parametrize("make", [sqlite, in_duckdb])
def test_full_disk_is_reported(make: Any, small_disk: Path) -> None:
    database: Database = make(small_disk)
    database.apply(BINDING)
    with database.session(BINDING) as session:
        commit(session, BINDING, LARGE[:10], b"one")
        with pytest.raises(DiskFullError, match="free some space on the disk"):
            commit(
                session, BINDING, [row | {"text": f"{index}{row['text']}"} for index, row in enumerate(LARGE)], b"two"
            )

    with database.session(BINDING) as session:
        assert session.checkpoint == b"one"
        assert len(load(session, [(row["account"],) for row in LARGE])) == 10
        commit(session, BINDING, LARGE[10:12], b"two")
    assert database.query("SELECT count(*) FROM balances") == [(12,)]


def test_full_disk_of_the_server_is_reported(small_disk: Path, in_postgres: Database) -> None:
    running, schema = server(), in_postgres.schema[0]
    running.let_in(small_disk)
    with running.connect() as connection:
        connection.execute(f"CREATE TABLESPACE \"{schema}\" LOCATION '{small_disk}'".encode())
        connection.execute(f'CREATE ROLE "{schema}" SUPERUSER LOGIN PASSWORD {LITERAL}'.encode())
        connection.execute(f'ALTER ROLE "{schema}" SET default_tablespace = "{schema}"'.encode())
    database = replace(in_postgres, config=in_postgres.config | {"user": schema})
    database.apply(BINDING)
    with database.session(BINDING) as session:
        commit(session, BINDING, LARGE[:10], b"one")
        long = [{"account": f"{number}".rjust(1000, "x"), "balance": number} for number in range(4000)]
        with pytest.raises(DiskFullError, match="No space left on device.*make space on the server's disk"):
            commit(session, BINDING, long, b"two")

    with database.session(BINDING) as session:
        assert session.checkpoint == b"one"
        commit(session, BINDING, LARGE[10:12], b"two")
    assert database.query("SELECT count(*) FROM balances") == [(12,)]
    with running.connect() as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
        connection.execute(f'DROP TABLESPACE "{schema}"'.encode())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can be let into: pytest keeps those of tests to itself whenever it begins."""
    with TemporaryDirectory(prefix="derive-postgres-") as name:
        yield Path(name)


@pytest.fixture
def own_server(folder: Path) -> Iterator[PostgresServer]:
    """A server that may be killed."""
    running = PostgresServer(folder, fsync="on")
    yield running
    running.stop(signal.SIGINT)


SLOW_COMMIT = """
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON balances DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.account = 'slow') EXECUTE FUNCTION slowly();
"""


def test_server_killed_during_a_commit_is_reported(own_server: PostgresServer) -> None:
    def query(sql: str) -> list[tuple[Any, ...]]:
        with own_server.connect() as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    database = replace(postgres(Path()), config=own_server.config, query=query, schema=("public",))
    database.apply(BINDING)
    query(SLOW_COMMIT)
    with database.session(BINDING) as session:
        commit(session, BINDING, [{"account": "ann", "balance": 1}], b"one")
        session.prepare(b"two")
        session.store(0, stored(BINDING, [{"account": "slow"}, {"account": "bob", "balance": 2}]))
        errors: list[BaseException] = []

        def end() -> None:
            try:
                session.commit()
            except FlowError as exc:
                errors.append(exc)

        committing = Thread(target=end)
        committing.start()
        asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        while not query(asleep):
            assert committing.is_alive(), errors
        own_server.stop(signal.SIGQUIT)
        committing.join()
        (error,) = errors
        assert isinstance(error, EndpointGoneError)
    with pytest.raises(EndpointGoneError, match="Connection refused"):
        database.open(BINDING)

    own_server.start()
    query("DROP TRIGGER slowly ON balances")
    with database.session(BINDING) as session:
        assert session.checkpoint == b"one"
        assert load(session, [("slow",), ("bob",)]) == []
        commit(session, BINDING, [{"account": "bob", "balance": 2}], b"two")
    assert sorted(query("SELECT account, balance FROM balances")) == [("ann", 1), ("bob", 2)]


def test_server_stopped_between_transactions_is_reported(own_server: PostgresServer) -> None:
    database = replace(postgres(Path()), config=own_server.config, schema=("public",))
    database.apply(BINDING)
    with database.session(BINDING) as session:
        commit(session, BINDING, [{"account": "ann", "balance": 1}], b"one")
        own_server.stop(signal.SIGINT)
        own_server.start()
        with pytest.raises(EndpointGoneError):
            load(session, [("ann",)])

    with database.session(BINDING) as session:
        assert session.checkpoint == b"one"
        assert len(load(session, [("ann",)])) == 1


def test_port_of_another_program_is_reported(in_postgres: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    other.accept()[0].close()

        Thread(target=hang_up, daemon=True).start()
        error = refusal(in_postgres, address=f"127.0.0.1:{other.getsockname()[1]}")

    assert isinstance(error, EndpointGoneError)
    assert "closed the connection unexpectedly" in error.message


def test_server_without_free_connections_is_reported(folder: Path) -> None:
    running = PostgresServer(folder, max_connections="5", superuser_reserved_connections="0")
    taken: list[psycopg.Connection[Any]] = []
    try:
        with suppress(psycopg.OperationalError):
            while True:
                taken.append(running.connect())
        database = replace(postgres(Path()), config=running.config, schema=("public",))
        with pytest.raises(EndpointGoneError, match="too many clients already .*no free connections or memory"):
            database.apply(BINDING)
        ending = Path(f"/proc/{taken[-1].info.backend_pid}")
        taken.pop().close()
        while ending.exists():  # the server has room when the process has ended
            time.sleep(0.01)
        assert database.apply(BINDING) != ""
    finally:
        for connection in taken:
            connection.close()
        running.stop(signal.SIGINT)


def test_locked_table_is_awaited(in_postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.materialize_postgres.connector._PATIENCE", "300ms")
    in_postgres.apply(BINDING)
    schema = in_postgres.schema[0]
    with server().connect() as other:
        other.execute("BEGIN")
        other.execute(f'LOCK TABLE "{schema}".flow_checkpoints IN ACCESS EXCLUSIVE MODE'.encode())
        with pytest.raises(BusyError):
            in_postgres.open(BINDING)
        other.execute("ROLLBACK")
    in_postgres.open(BINDING).close()
