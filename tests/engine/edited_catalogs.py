"""Catalogs that tests edit under a run, and runs that can be held in the middle of a transaction."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from conftest import World, write_catalog
from patience import PATIENCE_SECONDS
from typing_extensions import override

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run
from derive.engine.task_reconciler import TaskReconciler, open_changing_run
from derive.materialize.stages import AnyPlan
from derive.protocol.specs import CatalogSpec
from derive.shard.progress import Message, Progress

HEAD = """
collections:
  a/numbers:
    schema: {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}}}
    key: [/id]
"""
DERIVED = """
  a/NAME:
    schema:
      type: object
      required: [n]
      reduce: {strategy: merge}
      properties: {n: {type: integer}, times: {type: integer, reduce: {strategy: sum}}}
    key: [/KEY]
    derive:
      using: {sqlite: {}}
      transforms: [{name: from, source: a/SOURCE, shuffle: any, lambda: "SELECT $n + ADDED AS n, 1 AS times WHERE $n < 900;"}]
"""
SECOND = 1_000_000
BASE = 1_700_000_000_000_000


def text_of(*derived: tuple[str, str, int], key: str = "n", above: int = 0) -> str:
    """A catalog of derivations, each by its name, its source and what it adds, below some lines."""
    parts = [
        DERIVED.replace("NAME", name).replace("SOURCE", source).replace("ADDED", str(added)).replace("KEY", key)
        for name, source, added in derived
    ]
    return "# a line\n" * above + HEAD + "".join(parts)


def catalog_of(folder: Path, text: str) -> CatalogSpec:
    return load(write_catalog(folder, text))


def changing(world: World, accepted: Sequence[str] = ()) -> tuple[Run, TaskReconciler]:
    return open_changing_run(world.catalog, world.store, InProcessExecutor(), shards=1, accepted=accepted)


def go_on(world: World, batch: int) -> None:
    world.ingest("a/numbers", [{"id": 10 * batch + n, "n": n} for n in range(5)], clock=None)
    world.wall += 5 * SECOND


class Waits(InProcessExecutor):
    """Lets transactions of one task begin and wait to be let go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        if plan.spec.name == "a/copies":
            self.begun.set()
            assert self.go_on.wait(PATIENCE_SECONDS)
        return super().execute(plan, progress)
