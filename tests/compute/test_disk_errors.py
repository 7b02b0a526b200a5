"""What an instance's disk may do to it is told as what it is, and never as an error of SQLite's about that error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from derive.compute.dataflow.database import NAME, open_database
from derive.compute.dataflow.staging import as_failure
from derive.compute.sqlite import translated
from derive.errors import BusyError, SqlError, StorageError


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    with closing(open_database(tmp_path)) as connection:
        connection.set_busy_timeout(0)
        yield connection


def fill(connection: apsw.Connection) -> None:
    """A transaction that takes more than 1 MB."""
    with connection:
        connection.execute("CREATE TABLE large (a)")
        for _ in range(128):
            connection.execute("INSERT INTO large VALUES (zeroblob(10000))")


def test_full_disk_is_reported_after_sqlite_ended_the_transaction(connection: apsw.Connection) -> None:
    connection.pragma("max_page_count", 100)
    with pytest.raises(SqlError) as caught, translated():
        fill(connection)
    assert (caught.value.sqlstate, caught.value.message) == (
        "53100",
        "no space left on the device that stores the rows",
    )

    with pytest.raises(apsw.SQLError, match="cannot rollback") as raw:
        fill(connection)
    assert as_failure(raw.value).to_json() == caught.value.to_json()
    connection.pragma("max_page_count", 10_000)
    fill(connection)


def test_database_locked_by_another_process_is_busy(connection: apsw.Connection, tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / NAME))) as backup:
        backup.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError, match="another process holds a lock on the database"), translated():
            fill(connection)
    fill(connection)


def test_damaged_database_is_recreated_and_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"this is no database, " * 1000)
    open_database(tmp_path).close()
    with closing(open_database(tmp_path)) as connection:
        assert connection.execute("SELECT count(*) FROM dataflows").get == 0
    other = tmp_path / "other"
    (other / NAME).mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot be used: unable to open database file"):
        open_database(other)


def test_statement_error_replaces_the_previous_error(connection: apsw.Connection) -> None:
    try:
        connection.execute("INSERT INTO version VALUES (NULL)")
    except apsw.ConstraintError:
        with pytest.raises(SqlError, match="no such table: nowhere"), translated():
            connection.execute("SELECT * FROM nowhere")
