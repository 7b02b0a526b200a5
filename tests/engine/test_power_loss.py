"""Losses of power at every step: what was done is there when it is back, and going on gives the same bytes (law L2)."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import World, write_catalog
from crash_client import CrashServer, crash_server
from crash_script import HISTORIES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from power_cut import rows_of
from power_loss import Disk
from test_failpoints import CATALOG, DERIVING

from derive.catalog import load

PARTITIONED = CATALOG.replace("key: [/id]", "key: [/id]\n    projections: {k: {location: /k, partition: true}}")
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "3"))
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
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with crash_server() as server:
        yield Home(tmp_path_factory.mktemp("power"), server, request.param)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("home", ["all"], indirect=True)
@pytest.mark.parametrize("failpoint", DERIVING)
def test_l2_a_loss_of_power_at_any_failpoint_loses_nothing_that_was_done(failpoint: str, home: Home) -> None:
    status, after = home.go(home.disk(), f"{failpoint}:{random.randint(1, 6)}")

    if status:
        home.check(after, random.choice([None, random.randrange(1 << 32)]))


@pytest.mark.parametrize("home", sorted(HISTORIES), indirect=True)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(number=st.integers(0, 10_000), seed=st.none() | st.integers(0, 1 << 32))
def test_l2_a_loss_of_power_at_any_sync_loses_nothing_that_was_done(number: int, seed: int | None, home: Home) -> None:
    status, after = home.go(home.disk(), lost_at=1 + number % home.syncs)

    assert status == -signal.SIGKILL
    home.check(after, seed)
