"""The connection to the metadata database, which the threads of a process share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any

import apsw
import pytest
from patience import PATIENCE_SECONDS

from derive.errors import StorageError
from derive.storage.metadata import database, sqlite
from derive.storage.metadata.sqlite import SqliteMetadata
from derive.storage.metadata.sqlite_tables import FORMAT
from derive.storage.metadata.transaction import Transaction, nothing


def test_connection_is_closed_after_its_last_use(tmp_path: Path) -> None:
    metadata = SqliteMetadata(tmp_path / "metadata.db")
    begun, values = Event(), []

    def read() -> None:
        numbers = "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n LIMIT 1000000) SELECT sum(v) FROM n"
        with metadata.snapshot() as db:
            begun.set()
            values.append(db.execute(numbers).get)

    reading = Thread(target=read)
    reading.start()
    begun.wait(PATIENCE_SECONDS)
    metadata.close()
    reading.join()
    assert values == [500000500000]


@pytest.mark.parametrize("use", [SqliteMetadata.transaction, SqliteMetadata.snapshot])
def test_interrupted_begin_leaves_no_transaction(
    tmp_path: Path, use: Callable[[SqliteMetadata], AbstractContextManager[apsw.Connection]]
) -> None:
    metadata = SqliteMetadata(tmp_path / "metadata.db")

    def interrupt(frame: FrameType, event: str, called: Any) -> None:
        connection = getattr(called, "__self__", None)
        if event == "c_return" and isinstance(connection, apsw.Connection) and connection.in_transaction:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    with pytest.raises(KeyboardInterrupt), use(metadata):
        pytest.fail("was not interrupted")

    with metadata.transaction(synced=False) as db:
        db.execute("CREATE TABLE kept (value INT)")
    with metadata.snapshot() as db:
        assert db.execute("SELECT count(*) FROM kept").get == 0
    metadata.close()


def test_process_of_an_older_release_says_that_the_folder_was_upgraded(tmp_path: Path) -> None:
    """It writes nothing more, and does not call the database damaged."""
    older, later = SqliteMetadata(tmp_path / "metadata.db"), SqliteMetadata(tmp_path / "metadata.db")
    with later.transaction() as db:
        db.execute("UPDATE format SET version = version + 1")
        db.execute("ALTER TABLE task RENAME COLUMN name TO title")

    upgraded = f"was upgraded to format {FORMAT + 1} while this process used it, and this flowctl reads format {FORMAT}"
    with pytest.raises(StorageError, match=upgraded), older.transaction():
        pytest.fail("a process of an older release writes")
    with pytest.raises(StorageError, match=upgraded), older.snapshot() as snapshot:
        snapshot.execute("SELECT name FROM task")
    older.close()
    later.close()


def test_commit_at_once_waits_for_no_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_AT_ONCE_SECONDS", 60.0)

    def insert(db: Transaction) -> Callable[[], None]:
        db.execute("INSERT INTO kept VALUES (1)")
        return nothing

    def commit(metadata: SqliteMetadata, times: int) -> None:
        for _ in range(times):
            with metadata.transaction():
                pass

    with closing(SqliteMetadata(tmp_path / "metadata.db")) as metadata:
        with metadata.transaction() as db:
            db.execute("CREATE TABLE kept (value INT)")
        assert not metadata.commit_at_once(insert)  # few commits have shown that the disk is fast
        commit(metadata, 9)
        assert metadata.commit_at_once(insert)
        with closing(SqliteMetadata(tmp_path / "metadata.db")) as other, other.transaction():
            assert not metadata.commit_at_once(insert)
        commit(metadata, 9)
        assert metadata.commit_at_once(insert)
        with metadata.snapshot() as db:
            assert db.execute("SELECT count(*) FROM kept").get == 2


def test_commits_share_a_signal_until_a_caller_hurries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_PAUSE_SECONDS", 5.0)
    sent, is_sent = list[int](), Event()

    def send() -> None:
        sent.append(1)
        is_sent.set()

    with closing(SqliteMetadata(tmp_path / "metadata.db")) as metadata:
        monkeypatch.setattr(metadata.commit_signal, "send", send)
        metadata.is_prompt = False
        metadata.wake()
        assert is_sent.wait(PATIENCE_SECONDS)
        metadata.wake()
        metadata.wake()
        assert len(sent) == 1
        metadata.hurry()
        metadata.hurry()
        assert len(sent) == 2
        metadata.notify(others=True, is_urgent=True)
        assert len(sent) == 3


def schema_of(path: Path) -> list[tuple[str, str]]:
    with closing(apsw.Connection(str(path))) as db:
        rows: list[Any] = db.execute(
            "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
        ).fetchall()
        columns: list[Any] = db.execute("SELECT name, type FROM pragma_table_info('task')").fetchall()
    return [(name, "" if name == "task" else sql) for name, sql in rows] + columns


def test_first_databases_of_the_present_format_get_its_later_tables(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    SqliteMetadata(path).close()
    present = schema_of(path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("ALTER TABLE task DROP COLUMN home")
        for table in ("applied", "ingestion", "version", "shadow", "shadow_binding", "decision"):
            db.execute(f"DROP TABLE {table}")
    SqliteMetadata(path).close()
    assert schema_of(path) == present
