"""`flowctl reset` and `flowctl split` killed halfway: a task then has been reset, or split, or has not; never a part.

What a run derives and stores after that is what it does without the command, or after all of it. The command can be
given again, and does what it does on an undisturbed folder.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import World, write_catalog
from crash_client import FENCED, CrashServer
from crash_script import BASE

from derive.catalog import load
from derive.document.clock import format_rfc3339

CATALOG = """
collections:
  k/numbers:
    schema: {type: object, required: [id, n, at], properties: {id: {type: integer}, n: {type: integer}, at: {type: string}}}
    key: [/id]
  k/counts:
    schema: {type: object, required: [n], reduce: {strategy: merge}, properties: {n: {type: integer}, times: {type: integer}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (n INTEGER PRIMARY KEY, times INTEGER);"]}}
      transforms:
        - name: count
          source: k/numbers
          shuffle: {key: [/n]}
          lambda: |
            INSERT INTO t VALUES ($n, STEP) ON CONFLICT DO UPDATE SET times = times + STEP RETURNING n, times;
materializations:
  k/stored:
    endpoint: {connector: {image: materialize-sqlite, config: {path: FOLDER/stored.db}}}
    bindings: [{source: k/counts, resource: {table: counts}}]
"""
SECOND = 1_000_000


class Scene:
    """A data folder, what its table holds, and orders to a crash server."""

    def __init__(self, folder: Path, server: CrashServer) -> None:
        self.folder, self.server = folder, server
        self.wall, self.count = BASE, 0
        self.write(step=1)
        self.go_on()

    def write(self, step: int) -> None:
        write_catalog(self.folder, CATALOG.replace("STEP", str(step)).replace("FOLDER", str(self.folder)))

    def do(self, what: str, *arguments: Any, failpoint: str = "") -> int:
        order = {"source": str(self.folder / "flow.yaml"), "data": str(self.folder / "data"), "wall": self.wall}
        return self.server.attempt(order | {"do": what, "arguments": list(arguments)}, failpoint)

    def go_on(self) -> None:
        """Documents for each of eight numbers, and a run."""
        documents = [{"id": self.count + n, "n": n, "at": format_rfc3339(self.wall + n)} for n in range(8)]
        assert self.do("ingest", "k/numbers", self.count, documents) == 0
        self.count += len(documents)
        self.wall += 10 * SECOND
        assert self.do("run", 2, 1_000_000) == 0

    @contextmanager
    def database(self) -> Iterator[apsw.Connection]:
        """The endpoint, which the connector of a run that was killed may be about to leave still."""
        with closing(apsw.Connection(str(self.folder / "stored.db"))) as database:
            database.set_busy_timeout(10_000)
            yield database

    def times(self) -> set[int]:
        """What each number was counted to; the table agrees with the collection."""
        world = World(self.folder / "data", load(self.folder / "flow.yaml"))
        last = {row[3] for row in world.rows("k/counts")[-8:]}
        world.store.close()
        with self.database() as database:
            rows = database.execute("SELECT n, times FROM counts ORDER BY n").fetchall()
        assert last == {f'{{"n":{n},"times":{times}}}' for n, times in rows}
        assert [n for n, _ in rows] == list(range(8))
        return {int(str(times)) for _, times in rows}

    def spoil(self) -> None:
        """Have the table hold what no run stores, until a reset has all of it stored anew."""
        with self.database() as database:
            database.execute("UPDATE counts SET times = -1")

    def table(self) -> set[int]:
        with self.database() as database:
            return {int(str(row[0])) for row in database.execute("SELECT times FROM counts").fetchall()}

    def shards(self, name: str) -> int:
        world = World(self.folder / "data", load(self.folder / "flow.yaml"))
        state = world.store.task(name)
        world.store.close()
        return state.shards if state else 0


RESETS = [("reset.committing", False), ("reset.committed", True), ("reset.removed", True)]


@pytest.fixture
def scene(tmp_path: Path, server: CrashServer) -> Scene:
    return Scene(tmp_path, server)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("failpoint", "is_done"), RESETS)
def test_killed_reset_is_complete_or_absent(scene: Scene, failpoint: str, is_done: bool) -> None:
    scene.write(step=10)
    assert scene.do("reset", "k/counts", failpoint=failpoint) == -signal.SIGKILL
    scene.go_on()
    assert scene.times() == ({20} if is_done else {11})

    assert scene.do("reset", "k/counts") == 0
    scene.go_on()
    assert scene.times() == {30}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("failpoint", "is_done"), RESETS)
def test_killed_reset_of_a_materialization_is_complete_or_absent(scene: Scene, failpoint: str, is_done: bool) -> None:
    scene.spoil()
    assert scene.do("reset", "k/stored", failpoint=failpoint) == -signal.SIGKILL
    scene.wall += 10 * SECOND
    assert scene.do("run", 2, 1_000_000) == 0
    assert scene.table() == ({1} if is_done else {-1})

    scene.spoil()
    assert scene.do("reset", "k/stored", failpoint=failpoint) == -signal.SIGKILL
    assert scene.do("reset", "k/stored") == 0
    scene.go_on()
    assert scene.times() == {2}


def test_stopped_reset_of_a_materialization_is_refused_after_a_run(scene: Scene) -> None:
    assert scene.do("reset", "k/stored", failpoint="reset.committing:1:pause") == -signal.SIGSTOP
    scene.go_on()
    assert scene.server.resume() == FENCED
    assert scene.times() == {2}
    assert not list((scene.folder / "data").rglob("restart*"))

    assert scene.do("reset", "k/stored", failpoint="reset.committed:1:pause") == -signal.SIGSTOP
    scene.go_on()
    assert scene.server.resume() == 0
    scene.go_on()
    assert scene.times() == {4}


SPLITS = [
    ("epoch.written", False),
    ("epoch.published", False),
    ("split.copied", False),
    ("split.copied:3", False),
    ("split.committed", True),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "failpoint", "is_done"),
    [
        *(("k/counts", *split) for split in SPLITS),
        *(("k/stored", *split) for split in SPLITS if not split[0].startswith("split.copied")),  # it copies no files
    ],
)
def test_killed_split_is_complete_or_absent(scene: Scene, name: str, failpoint: str, is_done: bool) -> None:
    assert scene.shards(name) == 2
    assert scene.do("split", name, 4, failpoint=failpoint) == -signal.SIGKILL
    scene.go_on()
    assert (scene.shards(name), scene.times()) == (4 if is_done else 2, {2})

    assert scene.do("split", name, 4) == 0
    scene.go_on()
    assert (scene.shards(name), scene.times()) == (4, {3})
