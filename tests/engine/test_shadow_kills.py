"""A run with shadows that is killed at each step: the shadow goes on, or the new version is in force, never both.

A run derives the shadows of an edited chain whose result is in a table of SQLite, too, and swaps. It is killed where
each of its commits is about to be made, and where it is made. After each kill the folder is of one version. What a
later run comes to is, byte for byte, what a folder gives in which only the edited catalog has run.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from conftest import World, write_catalog
from crash_client import CrashServer
from stateful_catalogs import Derived, text_of
from test_shadow import contents

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run

BASE, SECOND = 1_700_000_000_000_000, 1_000_000
STORED = """
materializations:
  a/stored:
    endpoint: {connector: {image: materialize-sqlite, config: {path: stored.db}}}
    bindings: [{source: a/again, resource: {table: again}}]
"""
CHAIN = text_of({"copies": Derived("numbers", 0), "again": Derived("copies", 0)}) + STORED
EDITED = text_of({"copies": Derived("numbers", 1), "again": Derived("copies", 0)}) + STORED
MEMBERS = ("a/copies", "a/again")
DOCUMENTS = [[{"id": 3 * batch + n, "n": n % 2} for n in range(3)] for batch in range(3)]


class Folder:
    """A folder in which the chain has derived two of three batches, and then is edited."""

    def __init__(self, folder: Path, server: CrashServer) -> None:
        self.folder, self.server = folder, server
        self.wall = BASE + 10 * SECOND

    @classmethod
    def begin(cls, folder: Path, server: CrashServer, text: str = CHAIN) -> Folder:
        folder.mkdir()
        begun = cls(folder, server)
        write_catalog(folder, text)
        world = World(folder / "data", load(folder / "flow.yaml"), wall=BASE)
        for batch in DOCUMENTS[:2]:
            world.ingest("a/numbers", batch, clock=None)
            world.wall += 5 * SECOND
            world.step(shards=2)
        world.store.close()
        write_catalog(folder, EDITED)
        return begun

    def copy(self, name: str) -> Folder:
        shutil.copytree(self.folder, self.folder.with_name(name))
        return Folder(self.folder.with_name(name), self.server)

    def world(self) -> World:
        return World(self.folder / "data", load(self.folder / "flow.yaml"), wall=self.wall)

    def do(self, what: str, *arguments: object, failpoint: str = "") -> int:
        order = {"source": str(self.folder / "flow.yaml"), "data": str(self.folder / "data"), "wall": self.wall}
        return self.server.attempt(order | {"do": what, "arguments": list(arguments)}, failpoint)

    def go_on(self) -> None:
        """Derive the last batch, and store it."""
        world = self.world()
        world.ingest("a/numbers", DOCUMENTS[2], clock=None)
        self.wall = world.wall = self.wall + 5 * SECOND
        with closing(open_run(world.catalog, world.store, InProcessExecutor(), shards=2)) as run:
            while run.step():
                pass
            assert [task.error for task in run.tasks.values() if task.error] == []
        world.store.close()

    def table(self) -> list[object]:
        with closing(sqlite3.connect(self.folder / "stored.db")) as database:
            return database.execute("SELECT n, times FROM again ORDER BY n").fetchall()

    def versions(self) -> dict[str, int | None]:
        """The time from which the second version of each member is in force."""
        world = self.world()
        found = {name: [one.begins for one in world.store.history.versions(name)][1:] for name in MEMBERS}
        world.store.close()
        return {name: begins[0] if begins else None for name, begins in found.items()}

    def former(self) -> dict[str, object]:
        """The contents of each member at the last time before the edit."""
        world = self.world()
        found = {name: contents(world, name, BASE + 10 * SECOND - 1) for name in MEMBERS}
        world.store.close()
        return dict(found)

    def digest(self) -> dict[str, str]:
        world = self.world()
        digest = world.digest()
        assert world.store.garbage.unknown() == []
        world.store.close()
        return digest


REQUIRED = ("swap.committing", "swap.committed", "refill.completed")
NAMED = (*REQUIRED, "swap.applied", "refill.completing", "state.folded")


def points(named: Sequence[str], step: int, first: int) -> Iterator[str]:
    """Yield named failpoints, and every so many of all commits, from one of them on."""
    times = (f"metadata.{point}:{number}" for number in itertools.count(1) for point in ("committing", "committed"))
    return itertools.chain(named, itertools.islice(times, first, None, step))


@pytest.mark.parametrize(
    ("named", "step", "first"),
    [(REQUIRED, 240, 7), *(pytest.param(NAMED, 8, first, marks=pytest.mark.torture) for first in range(8))],
)
def test_killed_swap_is_done_once_or_not_yet(named: Sequence[str], step: int, first: int, server: CrashServer) -> None:
    with tempfile.TemporaryDirectory() as name:
        begun = Folder.begin(Path(name) / "begun", server)
        former = begun.former()
        old = begun.table()
        expected = begun.copy("expected")
        assert expected.do("shadow", 2) == 0
        assert set(expected.versions().values()) == {BASE + 10 * SECOND}
        expected.go_on()
        digest, table = expected.digest(), expected.table()
        fresh = Folder.begin(Path(name) / "fresh", server, EDITED)
        fresh.go_on()
        assert (digest, table) == (fresh.digest(), fresh.table())
        killed = set()
        for failpoint in points(named, step, first):
            folder = begun.copy(failpoint.replace(":", "-"))
            status = folder.do("shadow", 2, failpoint=failpoint)
            versions = set(folder.versions().values())
            assert len(versions) == 1
            assert folder.former() == former
            if versions == {None}:
                assert folder.table() == old
            if status == 0:
                shutil.rmtree(folder.folder)
                if ":" in failpoint:
                    break
                continue
            assert status == -signal.SIGKILL
            killed.add((failpoint.partition(":")[0], versions == {None}))
            assert folder.do("shadow", 2) == 0
            assert folder.versions() == expected.versions()
            folder.go_on()
            assert (folder.digest(), folder.table()) == (digest, table)
            assert folder.former() == former
            shutil.rmtree(folder.folder)
        assert {("swap.committing", True), ("swap.committed", False), ("refill.completed", False)} <= killed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", ["metadata.committing", "metadata.committed", "shadow.dropped"])
def test_killed_drop_is_done_again(failpoint: str, server: CrashServer, tmp_path: Path) -> None:
    folder = Folder.begin(tmp_path / "begun", server)
    write_catalog(folder.folder, EDITED.removesuffix(STORED))
    assert folder.do("shadow", 2, failpoint="swap.committing") == -signal.SIGKILL
    assert folder.do("drop_shadow", failpoint=failpoint) == -signal.SIGKILL
    assert folder.do("drop_shadow") == 0
    assert folder.versions() == dict.fromkeys(MEMBERS)
    assert folder.do("shadow", 2) == 0
    world = folder.world()
    fresh = Folder.begin(tmp_path / "fresh", server, EDITED)
    assert world.digest() == fresh.digest()
    world.store.close()
