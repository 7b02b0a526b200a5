"""A run looks at one source after the other, and others commit in between: whatever it has not seen is still to come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import World, write_catalog
from random_catalogs import BASE, SECOND
from typing_extensions import override

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run
from derive.engine.task_reconciler import open_run
from derive.protocol.specs import Document
from derive.storage.ingest import Ingestion
from derive.storage.metadata.descriptions import Collection
from derive.storage.store import Store

NUMBERS = "{type: object, required: [id], properties: {id: {type: integer}, at: {type: string}}}"
CYCLE = f"""
collections:
  i/numbers: {{schema: {NUMBERS}, key: [/id]}}
  i/first:
    schema: {NUMBERS}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: numbers, source: i/numbers, shuffle: any, lambda: "SELECT $id;"}}
        - {{name: second, source: i/second, shuffle: any, lambda: "SELECT $id + 100 AS id;"}}
  i/second:
    schema: {NUMBERS}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: numbers, source: i/numbers, shuffle: any, lambda: "SELECT $id;"}}
        - {{name: first, source: i/first, shuffle: any, lambda: "SELECT $id WHERE 0;"}}
"""


class Interrupted(Store):
    """Something else happens before it says how far a collection is."""

    looks = 0
    """So many times it is not interrupted."""

    interrupt: Callable[[], None] | None = None

    @override
    def collection(self, name: str) -> Collection | None:
        if self.interrupt is not None:
            if self.looks == 0:
                interrupt, self.interrupt = self.interrupt, None
                interrupt()
            self.looks -= 1
        return super().collection(name)


def interrupted(folder: Path, looks: int) -> tuple[World, Interrupted]:
    world = World(folder / "data", load(write_catalog(folder, CYCLE)), wall=BASE + SECOND)
    world.ingest("i/numbers", [{"id": 1, "at": format_rfc3339(BASE)}])
    world.step()
    world.store.close()
    world.store = store = Interrupted(world.root, wall=lambda: world.wall, durable=False)
    store.looks = looks
    return world, store


def begin_ingesting(world: World, documents: list[Document]) -> Callable[[], None]:
    """Begin to ingest documents whose times have come already; what is returned ends it."""
    begun, ending = threading.Event(), threading.Event()

    def lines() -> Iterator[tuple[int, Document]]:
        begun.set()
        ending.wait()
        yield from enumerate(documents, start=1)

    def ingest() -> None:
        store = Store(world.root, wall=lambda: world.wall, durable=False)
        Ingestion(store, world.catalog.collections["i/numbers"], clock="/at").load("test", lines())
        store.close()

    def end() -> None:
        ending.set()
        thread.join()

    thread = threading.Thread(target=ingest)
    thread.start()
    begun.wait()
    return end


def ids(world: World) -> list[list[str]]:
    return [[row[3] for row in world.rows(name)] for name in ("i/first", "i/second")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("looks", range(6))
def test_cycle_advances_only_to_a_time_that_all_derivations_have_read(tmp_path: Path, looks: int) -> None:
    world, store = interrupted(tmp_path, looks)
    ingested = [{"id": 2 + place, "at": format_rfc3339(BASE + (3 + 3 * place) * SECOND)} for place in range(2)]
    store.interrupt = begin_ingesting(world, ingested)
    world.wall = BASE + 30 * SECOND
    for _ in range(3):
        world.step()
        world.wall += SECOND

    assert store.interrupt is None
    first, second = ids(world)
    assert second == ['{"id":1}', '{"id":2}', '{"id":3}']
    assert first == ['{"id":1}', '{"id":101}', '{"id":2}', '{"id":102}', '{"id":3}', '{"id":103}']


def advance(run: Run) -> None:
    (cycle,) = run.cycles
    run.advance(cycle, run.seal())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("looks", range(6))
def test_two_runs_of_one_cycle_read_commits_of_each_other(tmp_path: Path, looks: int) -> None:
    world, store = interrupted(tmp_path, looks)
    runs = [open_run(world.catalog, world.store, InProcessExecutor(), tasks=[name]) for name in ("i/first", "i/second")]
    first, second = runs
    world.ingest("i/numbers", [{"id": 2, "at": format_rfc3339(BASE + 3 * SECOND // 2)}])
    world.wall = BASE + 10 * SECOND
    advance(first)
    store.interrupt = lambda: advance(second)
    for _ in range(10):
        for run in runs:
            run.step()
    for run in runs:
        run.close()

    assert store.interrupt is None
    assert ids(world) == [['{"id":1}', '{"id":101}', '{"id":2}', '{"id":102}'], ['{"id":1}', '{"id":2}']]
