"""Kills: whatever ends a run or its connector, tables hold what collections hold."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from conftest import World, write_catalog
from forked_flowctl import Flowctl
from materialized import CATALOG, folded, orders, tables
from patience import PATIENCE_SECONDS

from derive.catalog import load

_SERVER = """
import sys
from connectors.kit.servicer import serve
from connectors.materialize_sqlite import MaterializeSqlite
serve(MaterializeSqlite(), "127.0.0.1:0")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A catalog whose connector is a program."""
    (tmp_path / "server.py").write_text(_SERVER)
    command = f"{{ local: {{ command: [{sys.executable}, server.py], config: {{ path: {tmp_path / 'out.db'} }} }} }}"
    text = CATALOG.replace('{ address: "ADDRESS", config: { path: "PATH" } }', command)
    write_catalog(tmp_path, text)
    return tmp_path


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    world = World(folder / "data", load(folder / "flow.yaml"))
    yield world
    world.store.close()


def ingest(world: World, begin: int, end: int) -> None:
    """Ingest orders of some numbers now."""
    world.wall = time.time_ns() // 1000
    world.ingest("shop/orders", orders(begin, end), clock=None)


def start(folder: Path, *arguments: str) -> Flowctl:
    """A run in a process group of its own."""
    command = ["run", "--source", "flow.yaml", "--data", "data", *arguments]
    path = os.pathsep.join(part for part in sys.path if part)
    env = {**os.environ, "PYTHONPATH": path}
    with (folder / "errors").open("ab") as errors:
        return Flowctl(
            [*command, "--local-documents", "1000000"], cwd=folder, env=env, stderr=errors, start_new_session=True
        )


def finish(folder: Path) -> None:
    run = start(folder, "--until-idle")
    assert run.wait(PATIENCE_SECONDS) == 0, (folder / "errors").read_text()


def connectors_of(run: Flowctl) -> list[int]:
    """Processes that serve a connector and were started by a run, directly or by its guard."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    serving, pending = list[int](), [run.pid]
    while pending:
        pending += (own := children.get(pending.pop(), []))
        serving += own
    return serving


def count(folder: Path) -> int:
    """Return the number of stored orders."""
    with suppress(apsw.SQLError):  # there is no table yet
        return len(tables(folder / "out.db")["shop/orders"])
    return 0


def test_kills_of_runs_and_connectors_lose_nothing(folder: Path, world: World) -> None:
    chance = random.Random(7)
    for begin in (900, 600, 300, 0):
        ingest(world, begin, begin + 900)
        before, run = count(folder), start(folder, "--limits", '{"documents": 150}')
        while count(folder) <= before:
            assert run.poll() is None, (folder / "errors").read_text()
            time.sleep(0.01)
        for victim in [run.pid, *connectors_of(run)][:: chance.choice([1, -1])][: chance.choice([1, 2])]:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        run.kill()
        run.wait()
    finish(folder)
    world.wall = time.time_ns() // 1000
    assert tables(folder / "out.db") == folded(world)
