"""`flowctl metadata copy`: the metadata of a data folder move into PostgreSQL and back, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import World, write_catalog
from forked_flowctl import BARE, flowctl
from postgres_server import server
from psycopg.sql import SQL, Identifier

from derive import failpoint
from derive.catalog import load
from derive.errors import BusyError, FencedError, StorageError, UsageError
from derive.storage.metadata.descriptions import TaskCommit
from derive.storage.metadata.opening import this_host
from derive.storage.metadata.place import VARIABLE, Place, place_of, read_place
from derive.storage.metadata.postgres import connect
from derive.storage.metadata.postgres_copy import PostgresTables, used_alone
from derive.storage.metadata.relocation import move_to_folder, move_to_postgres
from derive.storage.metadata.sqlite_copy import SqliteTables
from derive.storage.metadata.table_copy import copy_tables
from derive.storage.store import Store

BASE = 1_700_000_000_000_000
SECOND = 1_000_000
CATALOG = """
collections:
  b/source:
    schema: {type: object, required: [id, k], properties: {id: {type: integer}, k: {type: integer}, at: {type: string}}}
    key: [/id]
  b/counts:
    schema:
      type: object
      required: [k, n]
      reduce: {strategy: merge}
      properties: {k: {type: integer}, n: {type: integer}, sum: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k INTEGER PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: b/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING k, n, $id AS sum;
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place without tables, whose password this process knows."""
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    return place_of(os.environ[VARIABLE])


def world_of(folder: Path, name: str = "data", wall: int = BASE) -> World:
    path = folder / "flow.yaml"
    return World(folder / name, load(path if path.exists() else write_catalog(folder, CATALOG)), wall=wall)


def go_on(world: World, batches: range) -> None:
    for batch in batches:
        documents = [
            {
                "id": 10 * batch + number,
                "k": (7 * batch + number) % 5,
                "at": f"2023-11-14T22:{13 + batch:02d}:2{number}Z",
            }
            for number in range(4)
        ]
        world.wall = BASE + (batch + 1) * 60 * SECOND
        world.ingest("b/source", documents)
        world.step(shards=2)


def begun(folder: Path) -> None:
    """A data folder with documents, a derivation with state, a table, and a writer that died."""
    with closing((world := world_of(folder)).store) as store:
        go_on(world, range(2))
        store.sql_catalog.add_replica("one", "host:1")
        store.acquire_write("b/source")


def contents(root: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a folder's tables, without epochs and commits, which a move raises."""
    place = read_place(root)
    if place is None:
        with closing(apsw.Connection(str(root / "metadata.db"), apsw.SQLITE_OPEN_READONLY)) as db:
            return rows_of(SqliteTables(db))
    with connect(place, 60_000) as connection, connection.transaction():
        return rows_of(PostgresTables(connection))


def rows_of(tables: SqliteTables | PostgresTables) -> dict[str, list[tuple[Any, ...]]]:
    columns = {
        name: [*names] for name, names in tables.columns().items() if name not in ("folder", "format", "session")
    }
    columns["task"].remove("epoch")
    rows = {name: map(tuple, tables.rows(name, sorted(names))) for name, names in columns.items()}
    return {name: sorted(found, key=repr) for name, found in rows.items()}


def to_postgres(root: Path, place: Place) -> None:
    move_to_postgres(root, place, this_host())


def test_metadata_that_moved_there_and_back_are_equal(tmp_path: Path, place: Place) -> None:
    """Law: a copy to PostgreSQL and back has the rows of all tables; and a run continues with the same bytes."""
    for name in ("data", "still"):
        with closing((world := world_of(tmp_path, name)).store):
            go_on(world, range(2))
    with closing((still := world_of(tmp_path, "still", BASE + 120 * SECOND)).store):
        go_on(still, range(2, 6))
        expected, root = still.digest(), tmp_path / "data"
    with closing(Store(root)):  # the last run has ended, and its capabilities have gone
        pass
    before = contents(root)

    with server().connect() as connection:  # the schema may have tables of others
        schema = Identifier(place.schema)
        connection.execute(SQL("CREATE SCHEMA {}; CREATE TABLE {}.foreign_rows (a int)").format(schema, schema))
    to_postgres(root, place)
    moved = contents(root)
    assert not (root / "metadata.db").exists()
    with closing((world := world_of(tmp_path, wall=BASE + 120 * SECOND)).store):
        go_on(world, range(2, 4))
    there = contents(root)
    move_to_folder(root)
    back = contents(root)
    with closing((world := world_of(tmp_path, wall=BASE + 240 * SECOND)).store):
        go_on(world, range(4, 6))
        assert world.digest() == expected

    assert moved == before
    assert back == there
    assert len(before["segment"]) == 4
    assert not (root / "metadata.json").exists()
    to_postgres(root, place)  # to the same schema again
    with closing(Store(root)) as store:
        assert store.task("b/counts") is not None
    with server().connect() as connection:
        assert connection.execute(SQL("SELECT count(*) FROM {}.foreign_rows").format(schema)).fetchone() == (0,)


POINTS = ["table", "table:9", "copied", "marked", "activated", "switched"]
KILLS = [("to PostgreSQL", point) for point in ["filled", *POINTS]] + [("to the folder", point) for point in POINTS]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("direction", "point"), KILLS)
def test_killed_move_is_complete_or_repeated(direction: str, point: str, tmp_path: Path, place: Place) -> None:
    """Until the old place is marked it is in force; then processes are refused until the move is complete."""
    begun(tmp_path)
    root = tmp_path / "data"
    if direction == "to the folder":
        to_postgres(root, place)

    def move() -> None:
        to_postgres(root, place) if direction == "to PostgreSQL" else move_to_folder(root)

    def tables() -> dict[str, list[tuple[Any, ...]]]:
        return {name: rows for name, rows in contents(root).items() if name not in ("abandoned", "capability")}

    expected = tables()

    assert in_child(move, f"move.{point}") == -signal.SIGKILL
    if point in ("table", "table:9", "filled", "copied"):
        with closing(Store(root)) as store:
            store.sql_catalog.add_replica("two", "host:2")
        expected["replica"].append(("host:2", "two"))
    elif point != "switched":
        with pytest.raises(StorageError, match="moved"):
            Store(root)
    if (direction, point) != ("to the folder", "switched"):
        move()
    assert tables() == expected
    assert (root / "metadata.db").exists() == (direction == "to the folder")
    assert len(contents(root)["abandoned"]) == 1  # the files of the writer that died are collected
    with closing((world := world_of(tmp_path, wall=BASE + 180 * SECOND)).store):
        go_on(world, range(2, 3))


def in_child(work: Callable[[], object], point: str) -> int:
    """Do something in a process that dies at a failpoint; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            failpoint.arm(point)
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def while_cut_off(move: Callable[[], object]) -> None:
    """Move after all connections have ended, as if their machines were unreachable; a thread may connect again."""
    for _ in range(5):
        cut_off()
        with suppress(BusyError):
            move()
            return
    raise AssertionError("there are connections again and again")


def cut_off() -> None:
    """End all connections."""
    ended = "SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity WHERE application_name LIKE 'flowctl%'"
    with server().connect() as connection:
        connection.execute(ended)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("direction", ["to PostgreSQL", "to the folder"])
def test_move_waits_for_no_user(direction: str, tmp_path: Path, place: Place) -> None:
    begun(tmp_path)
    root = tmp_path / "data"
    if direction == "to the folder":
        to_postgres(root, place)
    with closing(Store(root)), pytest.raises(BusyError, match=rf"are in use: .*:{os.getpid()}") as caught:
        to_postgres(root, place) if direction == "to PostgreSQL" else move_to_folder(root)
    assert caught.value.hint == "stop these processes, and run the command again"


def test_processes_of_the_old_place_commit_nothing(tmp_path: Path, place: Place) -> None:
    """A driver that was suspended through a move, and one that waits for the lock of the database."""
    begun(tmp_path)
    root = tmp_path / "data"
    with closing(apsw.Connection(str(root / "metadata.db"))) as waiting:
        waiting.set_busy_timeout(60_000)
        waiting.execute("BEGIN; SELECT * FROM task").fetchall()
        waiting.execute("COMMIT")
        to_postgres(root, place)
        with pytest.raises(apsw.ConstraintError, match="the metadata were moved by .* to postgresql://"):
            waiting.execute("UPDATE task SET epoch = 7")

    zombie = Store(root)
    capability, _ = zombie.acquire_task("b/counts", 2, ["b/counts"])
    while_cut_off(lambda: move_to_folder(root))
    with pytest.raises(StorageError, match="are not in use: 'flowctl metadata copy' has moved them"):
        zombie.timeline.read()
    while_cut_off(lambda: to_postgres(root, place))
    with pytest.raises(FencedError):
        zombie.commit_task(capability, TaskCommit({}, {}, {}, documents_in=1, documents_out=0))
    zombie.close()


def test_process_that_begins_during_a_move_waits_for_it(tmp_path: Path, place: Place) -> None:
    begun(tmp_path)
    root = tmp_path / "data"
    to_postgres(root, place)
    opened: list[int] = []

    def work() -> None:
        with closing(Store(root)) as store:
            opened.append(len(store.sql_catalog.replicas()))

    thread = threading.Thread(target=work)
    with used_alone(read_place(root) or place) as connection:
        thread.start()
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert not opened
    thread.join()
    assert opened == [1]


def test_other_places_are_refused(tmp_path: Path, place: Place) -> None:
    begun(tmp_path)
    root, other = tmp_path / "data", tmp_path / "other"
    Store(other).close()
    to_postgres(root, place)

    with pytest.raises(UsageError, match="has the metadata of the data folder"):
        to_postgres(other, place)
    with pytest.raises(UsageError, match=r"are in postgresql://"):
        to_postgres(root, place_of(server().metadata_url))
    with pytest.raises(UsageError, match="are in the folder"):
        move_to_folder(other)
    with server().connect() as connection:  # the server has lost commits
        connection.execute(SQL("UPDATE {}.folder SET commits = 1").format(Identifier(place.schema)))
    with pytest.raises(StorageError, match="is older than"):
        move_to_folder(root)
    assert read_place(root) == place


def test_copy_that_differs_is_found(tmp_path: Path) -> None:
    begun(tmp_path)

    class Losing(SqliteTables):
        def replace(self, table: str, columns: Any, rows: Any) -> None:
            super().replace(table, columns, list(rows)[1:] if table == "segment" else rows)

    with closing(apsw.Connection(str(tmp_path / "data/metadata.db"))) as db, closing(apsw.Connection("")) as copy:
        with copy.backup("main", db, "main") as backup:
            backup.step(-1)
        with pytest.raises(StorageError, match="the copy of the table 'segment' differs .* has 3 rows instead of 4,"):
            copy_tables(SqliteTables(db), Losing(copy))
        copy.execute("DROP TABLE work")
        with pytest.raises(StorageError, match="the databases have different tables: work"):
            copy_tables(SqliteTables(db), SqliteTables(copy))


def test_command_moves_the_metadata(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    (tmp_path / "source.jsonl").write_text('{"id": 1, "k": 1}\n')
    url = server().metadata_url
    named = {**BARE, "FLOW_METADATA": url}
    assert flowctl(tmp_path, "ingest", "--collection", "b/source", "source.jsonl")[0] == 0

    status, out, err = flowctl(tmp_path, "metadata", "copy", "--to", url, env=named)
    assert (status, '{"name":"segment","rows":1,' in out) == (0, True), err
    assert "secret" not in err
    assert flowctl(tmp_path, "run", "--until-idle", env=named)[0] == 0
    assert flowctl(tmp_path, "verify", "--replay", env=named)[0] == 0
    status, _, err = flowctl(tmp_path, "metadata", "copy", "--to-folder", env=named)
    assert (status, "are in the folder now" in err.replace("\n", " ")) == (0, True)
    assert flowctl(tmp_path, "verify")[0] == 0
    status, _, err = flowctl(tmp_path, "metadata", "copy")
    assert (status, err) == (2, "error: name one place for the metadata\n  = use --to URL or --to-folder\n")
