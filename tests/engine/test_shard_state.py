"""A shard's state: what is prepared is in the log alone, and the metadata's word decides what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from derive.engine.state import fold, open_state, publish_epoch
from derive.errors import FencedError, StorageError
from derive.storage.store import Store


def write_epoch(root: Path, task: str, epoch: int) -> None:
    with publish_epoch(root, task, epoch):
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_epoch(tmp_path, "task", 1)
    return tmp_path / "state" / "task@" / "shard"


def append(folder: Path, committed: str | None, token: str) -> None:
    with open_state(folder, epoch=1, committed=committed, token=token) as db:
        db.execute("CREATE TABLE IF NOT EXISTS added (token TEXT)")
        db.execute("INSERT INTO added VALUES (?)", (token,))


def added(folder: Path, committed: str) -> list[str]:
    found: list[str] = []
    with pytest.raises(LookupError), open_state(folder, epoch=1, committed=committed, token="looked") as db:
        found = [row[0] for row in db.execute("SELECT token FROM added")]
        raise LookupError
    return found


def test_every_setting_is_made(folder: Path) -> None:
    with open_state(folder, epoch=1, committed=None, token="a") as db:
        names = ("journal_mode", "locking_mode", "synchronous", "wal_autocheckpoint", "cache_size", "temp_store")
        found = {name: db.execute(f"PRAGMA {name}").get for name in names}

    assert found == {
        "journal_mode": "wal",
        "locking_mode": "exclusive",
        "synchronous": 2,
        "wal_autocheckpoint": 0,
        "cache_size": -131072,
        "temp_store": 2,
    }


def test_every_setting_of_the_metadata_is_made(tmp_path: Path) -> None:
    for durable in (True, False):
        store = Store(tmp_path, durable=durable)
        with store._metadata.snapshot() as db:
            assert db.execute("PRAGMA journal_mode").get == "wal"
            assert db.execute("PRAGMA synchronous").get == (2 if durable else 0)
            assert db.execute("PRAGMA foreign_keys").get == 1
        store.close()


def test_what_is_prepared_changes_no_byte_of_the_file(folder: Path) -> None:
    append(folder, None, "a")
    before = fold(folder, epoch=1, committed="a").read_bytes()
    append(folder, "a", "b")

    assert (folder / "state.db").read_bytes() == before
    assert (folder / "state.db-wal").stat().st_size > 0


def test_the_metadata_decides_what_becomes_of_it(folder: Path) -> None:
    append(folder, None, "a")
    append(folder, "a", "b")
    assert added(folder, "b") == ["a", "b"]

    append(folder, "b", "c")
    assert added(folder, "b") == ["a", "b"]  # c was not committed
    append(folder, "b", "d")
    assert added(folder, "d") == ["a", "b", "d"]


def test_without_a_commit_nothing_is_left(folder: Path) -> None:
    append(folder, None, "a")
    append(folder, None, "b")

    assert added(folder, "b") == ["b"]


def test_an_error_leaves_what_was_there(folder: Path) -> None:
    append(folder, None, "a")
    with pytest.raises(ZeroDivisionError), open_state(folder, epoch=1, committed="a", token="b") as db:
        db.execute("INSERT INTO added VALUES ('b')")
        raise ZeroDivisionError

    assert added(folder, "a") == ["a"]


def test_a_database_that_is_not_at_the_committed_token_is_refused(folder: Path) -> None:
    append(folder, None, "a")
    append(folder, "a", "b")

    with pytest.raises(StorageError, match="is not at the committed transaction z"):
        append(folder, "z", "c")


def test_a_superseded_run_touches_nothing(folder: Path, tmp_path: Path) -> None:
    append(folder, None, "a")
    write_epoch(tmp_path, "task", 2)

    with pytest.raises(FencedError, match="another flowctl has taken over 'task'"):
        append(folder, "a", "b")
    with open_state(folder, epoch=2, committed="a", token="b") as db:
        assert db.execute("SELECT token FROM added").get == "a"


def test_an_epoch_never_goes_back(folder: Path, tmp_path: Path) -> None:
    write_epoch(tmp_path, "task", 3)

    with pytest.raises(FencedError, match="another flowctl has taken over 'task'"):
        write_epoch(tmp_path, "task", 2)
    with open_state(folder, epoch=3, committed=None, token="a") as db:
        db.execute("CREATE TABLE mine (n INTEGER)")
