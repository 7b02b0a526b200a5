"""Users of `flowctl sql serve`: their rights, and their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from test_sql_serve import Served, refused, serve


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
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with users(tmp_path_factory.mktemp("users")) as server:
        with client(server, "ann") as ann:
            ann.execute(
                "CREATE TABLE notes (note text, author text DEFAULT current_user, by text DEFAULT session_user)"
            )
            ann.execute("CREATE VIEW own AS SELECT note FROM notes WHERE author = current_user")
        yield server


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
def test_the_user_is_the_one_who_has_logged_in(served: Served, expression: str, place: str) -> None:
    for user in ("ann", "ben", "ann"):  # plans are shared, and users are not
        with client(served, user) as connection:
            connection.execute("INSERT INTO notes (note) VALUES ('x')")
            if "pg_" in expression or "setting" in expression:
                place = "SELECT {}"  # which relations of one's own are not joined with
            text = place.format(expression).encode()
            assert connection.execute(text, prepare=True).fetchone() == (user,)


def test_what_is_written_is_the_users(served: Served) -> None:
    for user in ("ann", "ben"):
        with client(served, user) as connection:
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


def test_nobody_becomes_another_user(served: Served) -> None:
    for options in ({}, {"options": "-c session_authorization=ann"}, {"options": "-c session_authorization=flow"}):
        with client(served, "ben", **options) as connection:
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
def test_no_other_statement_reaches_files(served: Served, text: str) -> None:
    for user in ("ann", "ben"):
        with client(served, user) as connection, pytest.raises(psycopg.Error) as failed:
            connection.execute(text.encode())
        assert failed.value.sqlstate in {"42601", "42883", "0A000", "42P01", "42501"}
    assert not Path("/tmp/flow-never").exists()


def test_only_marked_users_change_replicas(served: Served) -> None:
    for text in ("CREATE REPLICA r (ADDRESS '127.0.0.1:1')", "DROP REPLICA IF EXISTS r"):
        for user in ("ann", "ben"):
            with client(served, user) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(text.encode())
        with client(served, "cas") as connection:
            connection.execute(text.encode())


def test_a_folder_of_files_must_be_one(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--files", str(tmp_path / "none"))
    assert code == 2
    assert "--files" in said
