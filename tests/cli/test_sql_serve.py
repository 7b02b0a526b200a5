"""`flowctl sql serve`, from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

CATALOG = """
collections:
  acme/people:
    key: [/name]
    schema: {type: object, required: [name], properties: {name: {type: string}, age: {type: integer}}}
"""


@dataclass
class Served:
    process: subprocess.Popen[str]
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
    return [sys.executable, "-m", "derive.cli.main", "sql", "serve", "--source", str(source), *options]


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Served]:
    """A server at any port, once clients can connect."""
    process = subprocess.Popen(command(folder, *options, "--listen", "127.0.0.1:0"), stdout=subprocess.PIPE, text=True)
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
    ended = subprocess.run(command(folder, *options), capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


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


def test_passwords(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:secret\n")
    passwords.chmod(0o600)
    with serve(tmp_path, "--password-file", str(passwords)) as server:
        address = f"host={server.host} port={server.port} dbname=flow user=ann"
        with psycopg.connect(f"{address} password=secret") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"{address} password=wrong")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "6875"), "--listen takes HOST:PORT, and not 6875"),
        (("--listen", "0.0.0.0:0"), "0.0.0.0 can be reached from other machines, and there is no password"),
        (("--password-file", "none"), "the password file none cannot be read"),
        (("--tls-certificate", "none.pem"), "the certificate none.pem cannot be used"),
        (("--tls-key", "key.pem"), "--tls-key is the key of a certificate"),
    ],
)
def test_command_lines_that_make_no_sense(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    status, said = refused(tmp_path, *options)

    assert status == 2
    assert message in said
