"""Facts about materializations in the metadata, and the files of earlier releases that they replace."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import apsw
import orjson
import pytest
from postgres_server import server
from psycopg.sql import SQL, Identifier

from derive.backup import copy_snapshot
from derive.errors import FencedError, StorageError
from derive.storage.metadata.descriptions import Kept, MaterializationRecord, Refilling, ShardData
from derive.storage.metadata.identity import DATABASE
from derive.storage.metadata.materializations import adopt_every_file, read_record
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.metadata.sqlite import SqliteConnection
from derive.storage.store import Store

TASK = "a/view"
FIRST, SECOND, PART = (
    orjson.dumps({"name": name, "ends": {}, "parts": {}, "keys": keys}).decode()
    for name, keys in (("first", []), ("second", []), ("part", ["b0"]))
)


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Write the files of an earlier release about a materialization; return their folder."""
    folder = root / "state" / "a" / "view@"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_earlier(root: Path, statement: str) -> None:
    """Give a data folder the tables of format 12, and execute a statement."""
    db = apsw.Connection(str(root / "metadata.db"))
    db.execute(
        f"DROP TABLE materialization; DROP TABLE shard_data; UPDATE format SET version = 12; {statement}"
    ).fetchall()
    db.close()


RUN = "INSERT INTO task (name, shards, positions, epoch) VALUES ('a/view', 2, '{\"b0\": 5, \"b1\": 5}', 3)"
RESET = "INSERT INTO task (name, shards, positions, epoch) VALUES ('a/view', 0, '{}', 3)"
PARTLY = "INSERT INTO task (name, shards, positions, epoch) VALUES ('a/view', 2, '{\"b1\": 5}', 3)"


@pytest.mark.parametrize(
    ("task", "files", "restart"),
    [
        (RUN, {"restart": "bare"}, "bare"),  # the first form of the file
        (RUN, {"restart": FIRST, "restart.announced-2-x": SECOND}, FIRST),  # refused, because there is progress
        (RUN, {"restart": FIRST, "restart.announced-2-x": PART}, FIRST),
        (RESET, {"restart": FIRST, "restart.announced-2-x": SECOND}, SECOND),  # committed, and not confirmed
        (PARTLY, {"restart": FIRST, "restart.announced-2-x": PART}, PART),
        (RESET, {"restart.announced-2-x": PART, "restart.announced-2-y": SECOND, "restart.new": "{"}, SECOND),
        (RESET, {"restart": FIRST, "restart.announced-3-x": SECOND}, FIRST),  # never committed
    ],
)
def test_upgrade_moves_the_last_reset(tmp_path: Path, task: str, files: dict[str, str], restart: str) -> None:
    Store(tmp_path).close()
    folder = write_files(tmp_path, files)
    write_earlier(tmp_path, task)
    store = Store(tmp_path)

    assert store.materialization(TASK) == MaterializationRecord(restart, is_stored=True)
    assert list(folder.iterdir()) == []
    store.close()


def test_upgrade_moves_refills_and_data_of_shards(tmp_path: Path) -> None:
    Store(tmp_path).close()
    data = {"flow": "{}", "driver": '{"a": 1}'}
    shards = ("00000000-7fffffff", "80000000-ffffffff", "00000000-ffffffff")  # the last one is of a former number
    files = {f"{name}/kept.json": orjson.dumps(data).decode() for name in shards[1:]}
    write_files(tmp_path, {"refills": '{"b0": 7}', **files})
    write_earlier(tmp_path, RUN)
    store = Store(tmp_path)

    kept = {1: ShardData(b"{}", b'{"a": 1}')}
    assert store.materialization(TASK) == MaterializationRecord("", {"b0": 7}, kept, is_stored=True)
    assert store.materialization("a/other") == MaterializationRecord()

    write_files(tmp_path, {"restart": FIRST, f"{shards[0]}/kept.json": files[f"{shards[1]}/kept.json"]})
    with store.metadata.transaction() as db:  # a process was killed before it removed the files
        assert adopt_every_file(db, tmp_path) == [TASK]
    assert store.materialization(TASK) == MaterializationRecord("", {"b0": 7}, kept, is_stored=True)
    store.close()


def test_upgrade_of_postgres_moves_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    place = place_of(os.environ[VARIABLE])
    settle_place(tmp_path, place, creates=True)
    Store(tmp_path).close()
    folder = write_files(tmp_path, {"restart": FIRST})
    with server().connect() as db:
        db.execute(SQL("SET search_path = {}").format(Identifier(place.schema)))
        db.execute("DROP TABLE materialization")
        db.execute("DROP TABLE shard_data")
        db.execute('CREATE ROLE "A reader"')
        db.execute('CREATE ROLE "An owner"')
        db.execute('ALTER TABLE task OWNER TO "An owner"')
        db.execute('GRANT SELECT ON task TO "A reader", PUBLIC')
        db.execute("UPDATE folder SET protocol = 2")
        db.execute(RUN.encode())
    with pytest.raises(StorageError, match="has version 2") as refused:
        Store(tmp_path, reading=True)
    assert str(refused.value.hint).endswith(
        "upgrade the tables: run a command of this release that writes, such as flowctl run"
    )
    store = Store(tmp_path)

    assert store.materialization(TASK) == MaterializationRecord(FIRST, is_stored=True)
    assert list(folder.iterdir()) == []
    store.close()
    with server().connect() as db:
        db.execute(SQL("SET search_path = {}").format(Identifier(place.schema)))
        query = (
            "SELECT array_agg(has_table_privilege(name, 'shard_data', kind) ORDER BY kind) FROM"
            " unnest(ARRAY['A reader', 'public', 'An owner']) AS name, unnest(ARRAY['SELECT', 'UPDATE']) AS kind"
            " GROUP BY name ORDER BY name"
        )
        assert db.execute(query).fetchall() == [([True, False],), ([True, True],), ([True, False],)]
        db.execute('DROP OWNED BY "A reader", "An owner" CASCADE')
        db.execute('DROP ROLE "A reader", "An owner"')


@pytest.mark.both_databases
def test_notes_need_the_right_to_run(tmp_path: Path) -> None:
    """A reset ends refills and the data of shards, and its name stays."""
    store = Store(tmp_path / "data")
    capability, _ = store.acquire_task(TASK, 1)
    store.adopt_materialization(TASK)
    store.note_task(capability, Refilling({"b0": 7}))
    store.note_task(capability, Kept({0: ShardData(b"1", b"2"), 1: ShardData(b"3")}))
    store.note_task(capability, Kept({1: ShardData(b"4")}))
    kept = {0: ShardData(b"1", b"2"), 1: ShardData(b"4")}
    assert store.materialization(TASK) == MaterializationRecord("", {"b0": 7}, kept, is_stored=True)

    store.reset([TASK], restarts={TASK: FIRST})
    assert store.materialization(TASK) == MaterializationRecord(FIRST, is_stored=True)
    with pytest.raises(FencedError, match="'a/view' was reset"):
        store.note_task(capability, Refilling({"b0": 8}))
    assert store.materialization(TASK).refills == {}
    store.close()


@pytest.mark.both_databases
def test_facts_in_files_are_read_and_backed_up_before_a_run_records_them(tmp_path: Path) -> None:
    """Another machine has upgraded the metadata, and this one has files with facts."""
    root, copy = tmp_path / "data", tmp_path / "copy"
    store = Store(root)
    with store.metadata.transaction() as db:
        db.execute(RUN)
    folder = write_files(root, {"restart": FIRST, "00000000-7fffffff/kept.json": '{"flow": "{}", "driver": ""}'})
    kept = {0: ShardData(b"{}")}
    assert store.materialization(TASK) == MaterializationRecord(FIRST, {}, kept)

    copy.mkdir()
    copy_snapshot(root, store.metadata, copy)
    with closing(SqliteConnection(str(copy / DATABASE))) as copied:
        assert read_record(copied, TASK) == MaterializationRecord(FIRST, {}, kept, is_stored=True)
    assert not store.adopt_materialization("a/other").kept
    assert (folder / "restart").exists()

    assert store.adopt_materialization(TASK) == MaterializationRecord(FIRST, {}, kept, is_stored=True)
    assert store.materialization(TASK) == MaterializationRecord(FIRST, {}, kept, is_stored=True)
    copy_snapshot(root, store.metadata, copy)
    store.close()
