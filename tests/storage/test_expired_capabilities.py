"""The right of a task to write ends when its holder does, wherever that was, and not before."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.cli.check import owner_issues
from derive.cli.collections import collection_row
from derive.errors import FencedError
from derive.planning.plan import plan_tasks
from derive.planning.status import task_row
from derive.protocol.specs import CatalogSpec
from derive.storage.capability.capabilities import Capabilities
from derive.storage.capability.table import LIFETIME, Capability
from derive.storage.ingest import Ingestion
from derive.storage.metadata.descriptions import CollectionUpdate
from derive.storage.metadata.process import this_process
from derive.storage.store import Store
from derive.storage.timeline import wall_clock

CATALOG = """
collections:
  l/raw:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
  l/events:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
"""
DERIVED = """
    derive: {using: {sqlite: {}}, transforms: [{name: one, source: l/raw, shuffle: any, lambda: SELECT $id;}]}
"""
NAME = "l/events"
pytestmark = pytest.mark.both_databases
ELSEWHERE = "another.example.com:1:2a2a/4026531836:99"


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    world = World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)
    world.store.create(world.catalog.collections[NAME])
    return world


def set_lease(world: World, holder: str, expires: int) -> None:
    db = apsw.Connection(str(world.root / "metadata.db"))
    db.execute("UPDATE capability SET holder = ?, expires = ? WHERE expires IS NOT NULL", (holder, expires))
    db.close()


def lease(world: World) -> int:
    db = apsw.Connection(str(world.root / "metadata.db"))
    expires: int = db.execute("SELECT expires FROM capability WHERE expires IS NOT NULL").get
    db.close()
    return expires


def update(frontier: int) -> CollectionUpdate:
    return CollectionUpdate(NAME, [], frontier)


def sealed(world: World) -> int:
    return world.store.seal([NAME], 9_000_000)[NAME]


KILLED = """
import os, signal, sys
from pathlib import Path
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.storage.store import Store

store = Store(Path(sys.argv[2]), wall=lambda: 1_000_000)
open_run(load(Path(sys.argv[1])), store, InProcessExecutor()).step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_l3_killed_run_releases_removed_collections(tmp_path: Path) -> None:
    source = write_catalog(tmp_path, CATALOG + DERIVED)
    command = [sys.executable, "-c", KILLED, str(source), str(tmp_path / "data")]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == -signal.SIGKILL
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)), wall=2_000_000)

    world.ingest(NAME, [{"id": 7}], None)
    world.wall = 3_000_000
    world.step()

    assert [row[3] for row in world.rows(NAME)] == ['{"id":7}']
    assert world.store.upper(NAME) == 3_000_000


def test_local_running_task_holds_upper_without_a_time_limit(world: World) -> None:
    """A machine that slept over night finds all its leases late."""
    capability, _ = world.store.acquire_task(NAME, 1, [NAME])
    set_lease(world, this_process(), wall_clock() - 1)

    assert sealed(world) == 0
    assert world.store.commit_task(capability, None, [update(5_000_000)]).frontiers == {NAME: 5_000_000}


def test_invisible_task_holds_upper_until_its_capability_expires(world: World) -> None:
    capability, _ = world.store.acquire_task(NAME, 1, [NAME])

    set_lease(world, ELSEWHERE, wall_clock() + LIFETIME)
    assert (sealed(world), world.store.task_capabilities.release_inputs(NAME)) == (0, False)

    set_lease(world, ELSEWHERE, wall_clock() - 1)
    assert (sealed(world), world.store.task_capabilities.release_inputs(NAME)) == (9_000_000, True)
    with pytest.raises(FencedError, match="the capability to write 'l/events' has expired"):
        world.store.commit_task(capability, None, [update(10_000_000)])


def test_seals_and_commits_renew_capabilities_of_the_process(world: World) -> None:
    capability, _ = world.store.acquire_task(NAME, 1, [NAME])
    for renew in (
        lambda: world.store.seal([], 0),
        world.store.renew_tasks,
        lambda: world.store.commit_task(capability, None, [update(0)]),
    ):
        set_lease(world, this_process(), 0)
        before = wall_clock()
        renew()
        assert lease(world) >= before + LIFETIME


def test_inputs_of_a_dead_task_are_released(world: World) -> None:
    world.store.acquire_task(NAME, 1, [NAME])
    set_lease(world, ELSEWHERE, 0)
    world.store.task_capabilities.acquire_inputs(NAME, {"one": (NAME, 0)})

    sealed(world)

    db = apsw.Connection(str(world.root / "metadata.db"))
    assert db.execute("SELECT kind, at FROM capability").fetchall() == [("read", None)]
    assert db.execute("SELECT * FROM abandoned").fetchall() == []
    db.close()


def test_commands_that_read_wait_for_no_writer(world: World, tmp_path: Path) -> None:
    """Expired capabilities, which the next writer drops, count for no reader."""
    world.store.acquire_write(NAME)
    set_lease(world, ELSEWHERE, wall_clock() - 1)
    catalog = load(write_catalog(tmp_path, CATALOG + DERIVED))
    reader = Store(world.root, lambda: 1_000_000, reading=True)
    with closing(reader), world.store.metadata.transaction():  # which keeps all other writers waiting
        assert task_row(reader, catalog.derivations[NAME])[1] is None
        assert [plan.changes for plan in plan_tasks(reader, catalog)] != []
        assert list(owner_issues(catalog, reader)) == []
        assert collection_row(reader, catalog, NAME, ["/id"])["writers"] == []


def test_an_ingestion_renews_its_capability_until_its_files_are_on_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bytes] = []
    renewed = Capabilities.renewed

    @contextmanager
    def watched(self: Capabilities, capability: Capability, every: float) -> Iterator[None]:
        with renewed(self, capability, every):
            yield
            found.extend(file.read_bytes()[-4:] for file in world.root.rglob("*.parquet"))

    monkeypatch.setattr(Capabilities, "renewed", watched)
    Ingestion(world.store, world.catalog.collections[NAME]).load("x", [(1, {"id": 1})])

    assert found == [b"PAR1"]
