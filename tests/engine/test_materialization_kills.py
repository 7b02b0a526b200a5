"""Kills: whatever ends a run or its connector, tables hold what collections hold."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import World, write_catalog
from forked_flowctl import Flowctl
from materialized import CATALOG, folded, orders, tables

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


def start(folder: Path, *arguments: str, failpoint: str = "") -> Flowctl:
    """A run in a process group of its own."""
    command = ["run", "--source", "flow.yaml", "--data", "data", *arguments]
    path = os.pathsep.join(part for part in sys.path if part)
    env = {**os.environ, "PYTHONPATH": path, "FLOW_FAILPOINT": failpoint}
    with (folder / "errors").open("ab") as errors:
        return Flowctl(
            [*command, "--local-documents", "1000000"], cwd=folder, env=env, stderr=errors, start_new_session=True
        )


def finish(folder: Path, *arguments: str) -> None:
    run = start(folder, "--until-idle", *arguments)
    assert run.wait(120) == 0, (folder / "errors").read_text()


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


def test_kills_of_runs_and_connectors_lose_nothing(folder: Path, world: World) -> None:
    chance = random.Random(7)
    for turn in range(5):
        ingest(world, turn * 100, turn * 100 + 1200)
        run = start(folder, "--limits", '{"documents": 150}')
        time.sleep(chance.uniform(0.9, 2.0))
        for victim in [run.pid, *connectors_of(run)][:: chance.choice([1, -1])][: chance.choice([1, 2])]:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.2)
        run.kill()
        run.wait()
    finish(folder)
    world.wall = time.time_ns() // 1000
    assert tables(folder / "out.db") == folded(world)


@pytest.mark.parametrize("failpoint", ["materialize.committing", "materialize.committed"])
def test_killed_run_continues_at_each_failpoint(folder: Path, world: World, failpoint: str) -> None:
    for turn in range(3):
        ingest(world, turn * 100, turn * 100 + 300)
        run = start(folder, "--until-idle", "--limits", '{"documents": 150}', failpoint=failpoint)
        assert run.wait(60) == -signal.SIGKILL
    finish(folder)
    world.wall = time.time_ns() // 1000
    assert tables(folder / "out.db") == folded(world)
