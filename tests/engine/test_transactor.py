"""The seam between a task and what is done with its documents: one that publishes to no collection runs as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run
from derive.engine.task_opening import open_task
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Opened, Prepared, Transaction
from derive.errors import FencedError, LostError
from derive.position import Position
from derive.protocol.specs import CollectionSpec, InputSpec
from derive.storage.capability.table import TaskCapability
from derive.storage.metadata.descriptions import TaskCommit
from derive.storage.segments.reader import read_sorted
from derive.storage.store import Store
from derive.time.extent import Limits, Size
from derive.time.positions import Place, offset_of

CATALOG = """
collections:
  t/numbers: {schema: &schema {type: object, required: [n], properties: {n: {type: integer}}}, key: [/n]}
  t/doubles:
    schema: *schema
    key: [/n]
    derive:
      using: {sqlite: {}}
      transforms: [{name: double, source: t/numbers, shuffle: any, lambda: SELECT 2 * $n AS n}]
"""
SECOND = 1_000_000


@dataclass(frozen=True)
class LedgerSpec:
    name: str
    inputs: tuple[InputSpec, ...]
    sources: Mapping[str, CollectionSpec]
    tick: int = SECOND


@dataclass
class Ledger:
    """A transactor that enters what it reads in a list, which stands for an endpoint outside the data folder."""

    store: Store
    spec: LedgerSpec
    most: int = 1_000
    has_to_execute: bool = False
    refills: Mapping[str, int] = field(default_factory=dict)
    suspended: tuple[str, ...] = ()
    entries: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    def complete(self, positions: Mapping[str, int]) -> tuple[str, ...]:
        return ()

    def open(self, *, if_free: bool = False) -> Opened:
        capability, state = self.store.acquire_task(self.spec.name, shards=1, if_free=if_free)
        places = {spec.state_key: Place(spec.source, offset_of(spec, self.spec.tick)) for spec in self.spec.inputs}
        return Opened(capability, state, places)

    def prepare(self, waiting: Size, shards: int, limits: Limits) -> Limits:
        return limits

    def execute(self, transaction: Transaction, progress: Callable[[int], None]) -> Prepared:
        batches = read_sorted(self.store.root, transaction.reads)
        self.pending = [str(document["n"]) for rows in batches for document in rows.documents()]
        if len(self.pending) > self.most:
            raise LostError("the endpoint has no room for so many")
        return Prepared(documents_in=len(self.pending))

    def commit(self, transaction: Transaction, prepared: Prepared, commit: TaskCommit) -> TaskCapability:
        capability = self.store.commit_task(transaction.capability, commit)
        self.entries += self.pending if prepared.documents_in else []
        return capability

    def cancel(self) -> None:
        pass


def world_of(folder: Path) -> World:
    return World(folder / "data", load(write_catalog(folder, CATALOG)), wall=100 * SECOND)


def ledger_of(world: World, delay: int = 0, most: int = 1_000, priority: int = 0) -> Ledger:
    collections = world.catalog.collections
    inputs = (
        InputSpec(0, "numbers", "t/numbers", Position("flow.yaml", 1), read_delay=delay),
        InputSpec(1, "doubles", "t/doubles", Position("flow.yaml", 2), priority=priority),
    )
    return Ledger(world.store, LedgerSpec("t/ledger", inputs, collections), most)


def run_of(world: World, ledger: Ledger) -> Run:
    """A run of the catalog's derivation, and of the ledger that reads what it derives."""
    run = open_run(world.catalog, world.store, InProcessExecutor())
    tasks = {**run.tasks, ledger.spec.name: open_task(world.store, ledger, Limits())}
    return Run(world.catalog, world.store, tasks)


def second(world: World, run: Run, *numbers: int) -> None:
    """Ingest numbers, let a second pass, and run."""
    world.ingest("t/numbers", [{"n": n} for n in numbers], clock=None)
    world.wall += SECOND
    run.step()


def test_task_without_output_collection_resumes(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    first = ledger_of(world)
    run = run_of(world, first)
    second(world, run, 1, 2)
    run.close()
    later = ledger_of(world)
    run = run_of(world, later)
    second(world, run, 3)

    assert (sorted(first.entries), sorted(later.entries)) == (["1", "2", "2", "4"], ["3", "6"])
    state = world.task("t/ledger")
    assert (state.documents_in, state.documents_out, state.transactions) == (6, 0, 2)


def test_transactor_honours_delays_and_reports_waiting_documents(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    ledger = ledger_of(world, delay=5 * SECOND)
    run = run_of(world, ledger)
    second(world, run, 1)

    assert ledger.entries == ["2"]
    assert [(waiting.task, waiting.transform, waiting.documents) for waiting in run.waiting()] == [
        ("t/ledger", "numbers", 1)
    ]
    world.wall += 5 * SECOND
    run.step()
    assert ledger.entries == ["2", "1"]


@pytest.mark.parametrize(("priority", "expected"), [(1, ["2", "4", "1", "2"]), (-1, ["1", "2", "2", "4"])])
def test_higher_priority_is_processed_first_in_a_separate_transaction(
    priority: int, expected: list[str], tmp_path: Path
) -> None:
    world = world_of(tmp_path)
    ledger = ledger_of(world, priority=priority)
    second(world, run_of(world, ledger), 1, 2)

    assert ledger.entries == expected
    assert world.task("t/ledger").transactions == 2


def test_transactor_halves_transactions_after_losses_and_stops_only_its_task(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    ledger = ledger_of(world, most=2)
    run = run_of(world, ledger)
    for n in range(4):
        world.ingest("t/numbers", [{"n": n}], clock=None)
        world.wall += SECOND
    run.step()
    assert sorted(map(int, ledger.entries)) == [0, 0, 1, 2, 2, 3, 4, 6]

    second(world, run, 10, 11)
    error = run.tasks["t/ledger"].error
    assert isinstance(error, LostError)
    assert error.message.startswith(
        "the endpoint has no room for so many; the transaction had the smallest possible size"
    )
    assert run.tasks["t/doubles"].error is None


def test_newer_run_supersedes_a_transactor(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    older = run_of(world, ledger_of(world))
    ledger = ledger_of(world)
    newer = run_of(world, ledger)

    with pytest.raises(FencedError, match="another flowctl runs"):
        second(world, older, 1)
    newer.step()

    assert sorted(ledger.entries) == ["1", "2"]
