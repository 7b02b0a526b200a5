"""A shard's state: what is prepared is in the log alone, and the metadata's word decides what becomes of it."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.durable import make_folders
from derive.errors import FencedError, OutdatedError, StorageError
from derive.shard import state
from derive.shard.plan import Attempt
from derive.shard.state import FOLD_BYTES, fold, open_state, publish_epoch, remove_state, shard_folder
from derive.storage.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    publish_epoch(tmp_path, "task", 1)
    return tmp_path / "state" / "task@" / "shard"


def attempt(name: str, number: int = 0, epoch: int = 1) -> Attempt:
    """An attempt at a transaction that is named by a letter; later letters are later transactions."""
    return Attempt(epoch, ord(name), number, name)


def append(folder: Path, committed: str | None, name: str, number: int = 0) -> str:
    """Write as one attempt; returns its name."""
    own = attempt(name, number)
    with open_state(folder, attempt=own, committed=committed) as db:
        db.execute("CREATE TABLE IF NOT EXISTS added (name TEXT)")
        db.execute("INSERT INTO added VALUES (?)", (str(own),))
    return str(own)


def added(folder: Path, committed: str, name: str = "z") -> list[str]:
    found: list[str] = []
    with pytest.raises(LookupError), open_state(folder, attempt=attempt(name), committed=committed) as db:
        found = [row[0] for row in db.execute("SELECT name FROM added")]
        raise LookupError
    return found


def test_state_database_has_all_settings(folder: Path) -> None:
    with open_state(folder, attempt=attempt("a"), committed=None) as db:
        names = ("journal_mode", "locking_mode", "synchronous", "wal_autocheckpoint", "cache_size", "temp_store")
        found = {name: db.execute(f"PRAGMA {name}").get for name in names}

    assert found == {
        "journal_mode": "wal",
        "locking_mode": "exclusive",
        "synchronous": 2,
        "wal_autocheckpoint": 0,
        "cache_size": -131072,
        "temp_store": 1,
    }


def test_metadata_database_has_all_settings(tmp_path: Path) -> None:
    for durable in (True, False):
        store = Store(tmp_path, durable=durable)
        with store._metadata.snapshot() as db:
            assert db.execute("PRAGMA journal_mode").get == "wal"
            assert db.execute("PRAGMA synchronous").get == (2 if durable else 0)
            assert db.execute("PRAGMA foreign_keys").get == 1
        store.close()


def test_prepared_transactions_do_not_change_the_state_file(folder: Path) -> None:
    append(folder, None, "a")
    before = fold(folder, attempt=attempt("b"), committed="a-0").read_bytes()
    append(folder, "a-0", "c")

    assert (folder / "state.db").read_bytes() == before
    assert (folder / "c-0" / "state.db-wal").stat().st_size > 0


def test_metadata_decides_which_prepared_transaction_is_kept(folder: Path) -> None:
    append(folder, None, "a")
    append(folder, "a-0", "b")
    append(folder, "b-0", "c")
    append(folder, "b-0", "d")  # c was not committed

    assert added(folder, "d-0") == ["a-0", "b-0", "d-0"]


def test_uncommitted_transactions_leave_nothing(folder: Path) -> None:
    append(folder, None, "a")
    append(folder, "a-0", "b")

    assert added(folder, "a-0", "c") == ["a-0"]
    assert sorted(entry.name for entry in folder.iterdir()) == ["lock", "state.db"]


def test_long_log_is_folded(folder: Path) -> None:
    names = [append(folder, None, "a")]
    sizes = []
    for name in "bcdefghijklmnopqrstuvwxy":
        names.append(append(folder, names[-1], name))
        sizes.append((folder / names[-1] / "state.db-wal").stat().st_size)

    begun_anew = sum(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert 1 <= begun_anew < len(sizes) / 2
    assert max(sizes) < 2 * FOLD_BYTES
    assert added(folder, names[-1]) == names
    assert len(list(folder.iterdir())) <= 3  # the lock, the database, and the last log


@given(steps=st.lists(st.tuples(st.sampled_from(["commit", "lose", "fail", "fold", "copy"]), st.integers(0, 40_000))))
def test_committed_state_is_independent_of_folding(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        publish_epoch(Path(root), "task", 1)
        folder = Path(root) / "state" / "task@" / "shard"
        committed: str | None = None
        names: list[str] = []
        for number, (step, fold_bytes) in enumerate(steps):
            own = Attempt(1, number, 0, f"t{number}")
            if step == "fold" and committed:
                fold(folder, attempt=own, committed=committed)
            elif step == "copy":
                shutil.copytree(folder.parent, copy := Path(root) / f"copy{number}" / "task@")
                folder = copy / "shard"
            else:
                with (
                    suppress(LookupError),
                    open_state(folder, attempt=own, committed=committed, fold_bytes=fold_bytes) as db,
                ):
                    db.execute("CREATE TABLE IF NOT EXISTS added (name TEXT)")
                    assert [row[0] for row in db.execute("SELECT name FROM added ORDER BY rowid")] == names
                    db.execute("INSERT INTO added VALUES (?)", (str(own),))
                    if step == "fail":
                        raise LookupError
                if step == "commit":
                    committed = str(own)
                    names.append(committed)


def test_uncommitted_first_attempt_leaves_no_state(folder: Path) -> None:
    append(folder, None, "a")
    append(folder, None, "b")

    assert added(folder, "b-0") == ["b-0"]


@pytest.mark.parametrize("wins", [0, 1])
def test_either_attempt_at_a_transaction_may_be_committed(wins: int, folder: Path) -> None:
    """Spark may take what either of them said."""
    append(folder, None, "a")
    append(folder, "a-0", "b", 0)
    append(folder, "a-0", "b", 1)

    assert added(folder, f"b-{wins}") == ["a-0", f"b-{wins}"]


def test_concurrent_attempts_do_not_see_each_other(folder: Path) -> None:
    append(folder, None, "a")
    with open_state(folder, attempt=attempt("b", 0), committed="a-0") as older:
        older.execute("INSERT INTO added VALUES ('b-0')")
        append(folder, "a-0", "b", 1)
        assert [row[0] for row in older.execute("SELECT name FROM added")] == ["a-0", "b-0"]

    assert added(folder, "b-1") == ["a-0", "b-1"]


def test_outdated_attempt_is_refused(folder: Path) -> None:
    """The worker was taken for lost before it opened its shard; since then another attempt was committed."""
    append(folder, None, "a")
    append(folder, "a-0", "b", 1)

    with pytest.raises(OutdatedError, match="a newer attempt has opened the state in"):
        append(folder, "a-0", "b", 0)
    append(folder, "b-1", "c")
    with pytest.raises(OutdatedError):
        append(folder, "a-0", "b", 0)
    assert added(folder, "c-0") == ["a-0", "b-1", "c-0"]


def test_attempt_that_ends_late_changes_nothing(folder: Path) -> None:
    """It had opened its shard, and commits its own log once two more transactions are over."""
    append(folder, None, "a")
    with open_state(folder, attempt=attempt("b", 0), committed="a-0") as late:
        late.execute("INSERT INTO added VALUES ('b-0')")
        append(folder, "a-0", "b", 1)
        append(folder, "b-1", "c")
        append(folder, "c-0", "d")
        late.execute("INSERT INTO added VALUES ('late')")

    assert added(folder, "d-0") == ["a-0", "b-1", "c-0", "d-0"]


def test_failed_attempt_leaves_earlier_state(folder: Path) -> None:
    append(folder, None, "a")
    with pytest.raises(ZeroDivisionError), open_state(folder, attempt=attempt("b"), committed="a-0") as db:
        db.execute("INSERT INTO added VALUES ('b')")
        raise ZeroDivisionError

    assert sorted(entry.name for entry in folder.iterdir()) == ["lock", "state.db"]
    assert added(folder, "a-0") == ["a-0"]


def test_a_block_that_ends_the_transaction_fails_and_leaves_nothing(folder: Path) -> None:
    append(folder, None, "a")
    with (
        pytest.raises(StorageError, match="ended the transaction of the state database"),
        open_state(folder, attempt=attempt("b"), committed="a-0") as db,
    ):
        db.execute("ROLLBACK")
        db.execute("INSERT INTO added VALUES ('outside')")

    assert added(folder, "a-0") == ["a-0"]


def test_log_of_an_older_version_is_folded_or_removed(folder: Path) -> None:
    append(folder, None, "a")
    path = fold(folder, attempt=attempt("b"), committed="a-0")
    for token in ("c", "d"):
        db = apsw.Connection(str(path))
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.execute("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0").fetchall()
        db.execute(
            f"BEGIN; INSERT INTO added VALUES ('{token}'); UPDATE flow_shard SET token = '{token}'; COMMIT"
        ).fetchall()
        db.close(True)
        assert Path(f"{path}-wal").stat().st_size > 0
        if token == "c":
            assert added(folder, "c", "e") == ["a-0", "c"]

    assert added(folder, "c", "f") == ["a-0", "c"]
    assert not Path(f"{path}-wal").exists()


def test_database_of_another_attempt_is_refused(folder: Path) -> None:
    append(folder, None, "a")
    append(folder, "a-0", "b")

    with pytest.raises(StorageError, match="is not at the committed transaction x"):
        append(folder, "x", "c")
    with pytest.raises(StorageError, match="is not at the committed transaction x"):
        fold(folder, attempt=attempt("d"), committed="x")


def test_fenced_run_is_refused(folder: Path, tmp_path: Path) -> None:
    append(folder, None, "a")
    publish_epoch(tmp_path, "task", 2)

    with pytest.raises(FencedError, match="another flowctl runs 'task'"):
        append(folder, "a-0", "b")
    with open_state(folder, attempt=attempt("b", epoch=2), committed="a-0") as db:
        assert db.execute("SELECT name FROM added").get == "a-0"


def test_epoch_never_decreases(folder: Path, tmp_path: Path) -> None:
    publish_epoch(tmp_path, "task", 3)

    with pytest.raises(FencedError, match="another flowctl runs 'task'"):
        publish_epoch(tmp_path, "task", 2)
    with open_state(folder, attempt=attempt("a", epoch=3), committed=None) as db:
        db.execute("CREATE TABLE mine (n INTEGER)")


def test_late_removal_of_a_state_keeps_the_state_of_a_newer_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process that removes was stopped after its last look at the epoch."""
    publish_epoch(tmp_path, "task", 1)
    folder = shard_folder(tmp_path, "task", 0, 1)
    append(folder, None, "a")
    require = state.require_epoch

    def require_and_stop(task: Path, epoch: int) -> None:
        require(task, epoch)
        if epoch == 2 and task.exists() and not folder.exists():
            publish_epoch(tmp_path, "task", 3)
            with open_state(folder, attempt=attempt("b", epoch=3), committed=None) as db:
                db.execute("CREATE TABLE newer (n INTEGER)")

    monkeypatch.setattr(state, "require_epoch", require_and_stop)
    remove_state(tmp_path, "task", tmp_path, 2)

    with open_state(folder, attempt=attempt("c", epoch=3), committed="b-0") as db:
        assert db.execute("SELECT n FROM newer").fetchall() == []


def test_removal_that_stops_midway_keeps_the_state_of_a_newer_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process that removes was stopped after it has listed the files of a shard."""
    publish_epoch(tmp_path, "task", 1)
    folder = shard_folder(tmp_path, "task", 0, 1)
    append(folder, append(folder, None, "a"), "b")
    newer = attempt("c", epoch=3)

    def remove(removed: Path, *, ignore_errors: bool) -> None:
        files = list(removed.rglob("*"))
        monkeypatch.undo()
        (removed / "lock").unlink()
        publish_epoch(tmp_path, "task", 3)
        with open_state(folder, attempt=newer, committed=None) as db:
            db.execute("CREATE TABLE newer (n INTEGER)")
        fold(folder, attempt=attempt("d", epoch=3), committed=str(newer))
        for file in files:
            with suppress(FileNotFoundError, IsADirectoryError):
                file.unlink()

    monkeypatch.setattr(shutil, "rmtree", remove)
    with suppress(FencedError):
        remove_state(tmp_path, "task", tmp_path, 2)

    with open_state(folder, attempt=attempt("e", epoch=3), committed=str(newer)) as db:
        assert db.execute("SELECT n FROM newer").fetchall() == []


def test_two_processes_remove_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_epoch(tmp_path, "task", 1)
    folder = shard_folder(tmp_path, "task", 0, 2)
    append(folder, None, "a")
    found = [folder]
    state.remove_shards(tmp_path, "task", 1, 1)
    assert list(folder.parent.glob("*-*")) == []

    monkeypatch.setattr(state, "_shard_folders", lambda _: found)
    state.remove_shards(tmp_path, "task", 1, 1)


def test_late_removal_kills_no_process_of_a_newer_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_epoch(tmp_path, "task", 1)
    folder = shard_folder(tmp_path, "task", 0, 2)
    append(folder, None, "a")
    monkeypatch.setattr(state, "_EVICTION_SECONDS", -1.0)
    monkeypatch.setattr(state, "_PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(state, "lock_holder", lambda *_: 1)
    monkeypatch.setattr(state, "has_open", lambda *_: True)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it was killed"))
    with state.locked(folder / state.LOCK):
        publish_epoch(tmp_path, "task", 2)
        with pytest.raises(FencedError):
            state.remove_shards(tmp_path, "task", 1, 1)


def test_epoch_is_published_while_a_reset_removes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = make_folders

    def make_and_remove(folder: Path) -> None:
        make(folder)
        monkeypatch.undo()
        folder.rmdir()

    monkeypatch.setattr(state, "make_folders", make_and_remove)
    publish_epoch(tmp_path, "task", 1)
    assert state.current_epoch(tmp_path / "state/task@") == 1


@pytest.mark.parametrize("name", ["epoch.written", "state.removing"])
def test_two_resets_remove_one_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The earlier reset stops at a failpoint, and continues after the later reset."""
    publish_epoch(tmp_path, "task", 1)
    append(shard_folder(tmp_path, "task", 0, 1), None, "a")

    def remove_later(reached: str) -> None:
        if reached == name:
            monkeypatch.undo()
            remove_state(tmp_path, "task", tmp_path, 3)

    monkeypatch.setattr(state, "reach", remove_later)
    with pytest.raises(FencedError) if name == "epoch.written" else nullcontext():
        remove_state(tmp_path, "task", tmp_path, 2)
    assert not (tmp_path / "state/task@").exists()


def test_a_folder_that_was_copied_without_its_hard_links_continues(folder: Path, tmp_path: Path) -> None:
    """As most ways to make and restore a backup copy it."""
    append(folder, None, "a")
    append(folder, "a-0", "b")
    append(folder, "b-0", "c")
    shutil.copytree(tmp_path / "state", tmp_path / "copy" / "state")
    copied = tmp_path / "copy" / folder.relative_to(tmp_path)

    assert added(copied, "c-0", "d") == ["a-0", "b-0", "c-0"]
    append(copied, "c-0", "e")
    assert added(copied, "e-0") == ["a-0", "b-0", "c-0", "e-0"]


@pytest.mark.parametrize("note", [bytes(256), b"[1,9"])
def test_incomplete_attempt_record_is_ignored(note: bytes, folder: Path) -> None:
    append(folder, None, "a")
    (folder / "lock").write_bytes(note)

    append(folder, "a-0", "b")

    assert added(folder, "b-0") == ["a-0", "b-0"]
