"""Losses of power at every step: what was done is there when it is back, and going on gives the same bytes (law L2)."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import World, write_catalog
from crash_client import CrashServer
from crash_script import HISTORIES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from power_cut import rows_of
from power_loss import Disk, Recorder
from test_failpoints import CATALOG, DERIVING

from derive.catalog import load

PARTITIONED = CATALOG.replace("key: [/id]", "key: [/id]\n    projections: {k: {location: /k, partition: true}}")
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "1"))
Rows = dict[str, list[Any]]


class Home:
    """A folder of disks with one history, and the server that brings it about on them."""

    def __init__(self, folder: Path, server: CrashServer, history: str) -> None:
        self.folder = folder
        self.server = server
        self.history = history
        self.source = write_catalog(folder, PARTITIONED)
        self.catalog = load(self.source)
        status, disk = self.go(self.disk(), tell=True)
        assert status == 0
        self.syncs: int = disk.reached[-1][1]
        self.expected: list[Rows] = [{}, *(rows for _, _, rows in disk.reached)]
        """What is there after each step, the first of which is to do nothing."""

    def disk(self) -> Path:
        """A place for the content of a disk."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "disk"

    def go(self, disk: Path, failpoint: str = "", **order: Any) -> tuple[int, Disk]:
        """Do the history from a step on, until the power goes; the exit status, and the disk as it is then."""
        disk.mkdir(exist_ok=True)
        log = disk.with_name("log")
        log.unlink(missing_ok=True)
        order |= {"do": "powered history", "history": self.history, "source": str(self.source), "log": str(log)}
        status = self.server.attempt({"begin": 0, "data": str(disk / "data"), **order}, failpoint)
        assert status in (0, -signal.SIGKILL)
        return status, Disk(disk, log)

    def rows(self, disk: Path) -> Rows:
        """What is in all collections of a disk."""
        world = World(disk / "data", self.catalog)
        try:
            return rows_of(self.catalog, world.store)
        finally:
            world.store.close()

    def check(self, after: Disk, seed: int | None) -> None:
        """Make what a loss of power has left, go on with it to the end, and compare.

        Args:
            after: the disk.
            seed: of the dice that decide what has survived of that which was not synced; None if nothing has.
        """
        done = after.reached[-1][0] if after.reached else 0
        restored = self.disk()
        after.restore(restored, None if seed is None else random.Random(seed))
        found, before = self.rows(restored), self.expected[done]
        then = self.expected[min(done + 1, len(self.expected) - 1)]
        for name in self.catalog.collections:
            rows, old, new = found.get(name, []), before.get(name, []), then.get(name, [])
            # Some commits of the step may be there, which add documents; folding and starting over replace them.
            assert rows in (old, new) or (rows[: len(old)] == old and new[: len(rows)] == rows)

        assert self.go(restored, begin=done)[0] == 0
        assert self.rows(restored) == self.expected[-1]


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest, server: CrashServer, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("power"), server, request.param)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("home", ["all"], indirect=True)
@pytest.mark.parametrize("failpoint", DERIVING)
def test_l2_power_loss_at_any_failpoint_loses_no_commit(failpoint: str, home: Home) -> None:
    status, after = home.go(home.disk(), f"{failpoint}:{random.randint(1, 6)}")

    if status:
        home.check(after, random.choice([None, random.randrange(1 << 32)]))


@pytest.mark.parametrize("home", sorted(HISTORIES), indirect=True)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(number=st.integers(0, 10_000), seed=st.none() | st.integers(0, 1 << 32))
def test_l2_power_loss_at_any_sync_loses_no_commit(number: int, seed: int | None, home: Home) -> None:
    status, after = home.go(home.disk(), lost_at=1 + number % home.syncs)

    assert status == -signal.SIGKILL
    home.check(after, seed)


# The disk of test_power_loss.py forgets what POSIX does not promise to keep, and nothing else.


CONTEXT = multiprocessing.get_context("forkserver")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def after(folder: Path, work: Callable[[Path], None], lost_at: int = 0) -> Disk:
    """The disk after work in a process of its own, before which it holds `old` with `one`."""
    disk = folder / "disk"
    disk.mkdir()
    (disk / "old").write_text("one")
    child = CONTEXT.Process(target=do, args=(work, disk, folder / "log", lost_at))
    child.start()
    child.join()
    assert child.exitcode == (-signal.SIGKILL if lost_at else 0)
    return Disk(disk, folder / "log")


def do(work: Callable[[Path], None], disk: Path, log: Path, lost_at: int) -> None:
    Recorder(disk, log, lost_at).install()
    work(disk)
    os._exit(0)


def tree(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def left(folder: Path, disk: Disk) -> dict[str, str]:
    disk.restore(folder / "restored")
    return tree(folder / "restored")


def act(disk: Path, actions: str) -> None:
    """Do the actions of a row of the table below, each of which is a verb and paths in the disk."""
    for action in actions.split("; "):
        verb, *names = action.split()
        paths = [disk / name for name in names]
        if verb == "write":
            paths[0].write_text(names[1])
        elif verb == "sync":
            sync(paths[0])
        elif verb == "mkdir":
            paths[0].mkdir()
        elif verb == "replace":
            paths[0].replace(paths[1])
        elif verb == "link":
            os.link(*paths)
        else:
            paths[0].unlink()


REWRITTEN = "remove old; write new new; sync new"  # `new` might be given the inode of `old`


def test_simulated_hard_links_are_one_file(tmp_path: Path) -> None:
    after(tmp_path, partial(act, actions="link old new; sync .")).restore(tmp_path / "restored")

    assert (tmp_path / "restored" / "old").samefile(tmp_path / "restored" / "new")


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ("write old two", {"old": "one"}),
        ("write old two; sync old; write old three", {"old": "two"}),
        ("write new new; sync new", {"old": "one"}),
        ("write new new; sync .", {"old": "one", "new": ""}),
        ("write new new; sync new; sync .", {"old": "one", "new": "new"}),
        ("mkdir below; write below/new new; sync below/new; sync below", {"old": "one"}),
        ("mkdir below; write below/new new; sync below/new; sync below; sync .", {"old": "one", "below/new": "new"}),
        ("write new new; sync new; sync .; replace new old", {"old": "one", "new": "new"}),
        ("write new new; sync new; sync .; replace new old; sync .", {"old": "new"}),
        ("remove old", {"old": "one"}),
        (REWRITTEN, {"old": "one"}),
    ],
)
def test_unsynced_writes_are_lost(actions: str, expected: dict[str, str], tmp_path: Path) -> None:
    assert left(tmp_path, after(tmp_path, partial(act, actions=actions))) == expected


def test_power_loss_precedes_the_effect_of_a_sync(tmp_path: Path) -> None:
    both = partial(act, actions="write new new; sync new; sync .")
    assert left(tmp_path, after(tmp_path, both, lost_at=2)) == {"old": "one"}


def test_any_part_of_unsynced_writes_may_survive(tmp_path: Path) -> None:
    disk = after(tmp_path, partial(act, actions=REWRITTEN))
    seen = set()
    for seed in range(40):
        disk.restore(tmp_path / str(seed), random.Random(seed))
        seen.add(tuple(sorted(tree(tmp_path / str(seed)))))

    assert seen == {(), ("new",), ("old",), ("new", "old")}


def commit(disk: Path, synchronous: str) -> None:
    db = apsw.Connection(str(disk / "a.db"))
    db.execute(f"PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}").fetchall()
    db.execute("CREATE TABLE t (n)")
    for number in (1, 2):
        db.execute("INSERT INTO t VALUES (?)", (number,))
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (3)")
    os._exit(0)


@pytest.mark.parametrize(("synchronous", "kept"), [("FULL", ["t"]), ("OFF", [])])
def test_sqlite_keeps_exactly_the_synced_writes(synchronous: str, kept: list[str], tmp_path: Path) -> None:
    after(tmp_path, partial(commit, synchronous=synchronous)).restore(tmp_path / "restored")

    db = apsw.Connection(str(tmp_path / "restored" / "a.db"))
    assert [name for (name,) in db.execute("SELECT name FROM sqlite_schema")] == kept
    assert not kept or db.execute("SELECT n FROM t").fetchall() == [(1,), (2,)]
    db.close()
