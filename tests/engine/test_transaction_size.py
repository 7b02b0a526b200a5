"""How much one transaction covers: what bounds the memory of a worker, and how soon a backlog shows results."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import World, examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.run import SilentObserver
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Committed
from derive.errors import FrontierError
from derive.storage.metadata.descriptions import TaskCommit
from derive.time.extent import Limits

CATALOG = """
collections:
  size/numbers: {schema: &schema {type: object, required: [n], properties: {n: {type: integer}}}, key: [/n]}
  size/copies:
    schema: *schema
    key: [/n]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: size/numbers, shuffle: any, lambda: SELECT $n}]}
"""
PER_TICK = 10
BASE = 1_700_000_000_000_000


class Sizes(SilentObserver):
    """Notes how many documents each transaction processed."""

    def __init__(self) -> None:
        self.found: list[int] = []

    @override
    def committed(self, task: str, done: Committed) -> None:
        if done.documents_in:
            self.found.append(done.documents_in)


@settings(max_examples=examples(32, 5))
@given(most=st.integers(50, 500), files=st.lists(st.integers(1, 600), min_size=1, max_size=5))
def test_a_backlog_is_cut_into_transactions_of_the_greatest_size(
    most: int, files: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("size")
    world = World(folder / "data", load(write_catalog(folder, CATALOG)))
    first = 0
    for count in files:
        documents = [
            {"n": n, "at": f"2024-01-01T00:{n // 600:02}:{n // PER_TICK % 60:02}.{n % PER_TICK}Z"}
            for n in range(first, first + count)
        ]
        world.ingest("size/numbers", documents)
        first += count
    sizes = Sizes()

    run = open_run(world.catalog, world.store, InProcessExecutor(), observer=sizes, limits=Limits(documents=most))
    while run.step():
        pass
    run.close()

    # A tick is never cut, and how documents are spread over the time of a file is an estimate.
    assert sum(sizes.found) == first
    assert all(most - 2 * PER_TICK <= each <= most + 2 * PER_TICK for each in sizes.found[:-1])
    assert sizes.found[-1] <= most + 2 * PER_TICK


TWO = """
collections:
  size/numbers: {schema: &schema {type: object, required: [n], properties: {n: {type: integer}}}, key: [/n]}
  size/others: {schema: *schema, key: [/n]}
  size/both:
    schema: {type: object, required: [k, n], properties: {k: {type: string}, n: {type: integer}}}
    key: [/k, /n]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: one, source: size/numbers, shuffle: any, lambda: "SELECT 'one' AS k, $n"}
"""
SECOND = """        - {name: two, source: size/others, READ shuffle: any, lambda: "SELECT 'two' AS k, $n"}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("readDelay: 1h,", ""), ("", "readDelay: 20m,"), ("", "backfill: 1,")],
    ids=["new", "shorter", "longer", "backfill"],
)
def test_positions_of_transforms_never_decrease(before: str, after: str, tmp_path: Path) -> None:
    """A transform that has far to go shares transactions with one that is ahead of it only where both have to go."""
    documents = [{"n": n, "at": format_rfc3339(BASE + n * 1_000_000)} for n in range(300)]
    first = TWO + (SECOND.replace("READ", before) if before or "backfill" in after else "")
    world = World(tmp_path / "data", load(write_catalog(tmp_path, first)), wall=BASE + 1_200_000_000)
    world.ingest("size/numbers", documents)
    world.ingest("size/others", documents)
    limits = Limits(documents=40)

    def settle() -> None:
        run = world.run(limits=limits)
        while run.step():
            pass
        run.close()
        assert [task.error for task in run.tasks.values()] == [None]

    settle()
    world.catalog = load(write_catalog(tmp_path, TWO + SECOND.replace("READ", after)))
    world.wall += 10_000_000
    settle()
    world.wall += 3600_000_000
    settle()

    task = world.task("size/both")
    again = 300 if "backfill" in after else 0
    assert task.documents_in == 600 + again
    rows = [row[3] for row in world.rows("size/both")]
    assert len(rows) == len(set(rows)) + again == 600 + again


def test_commit_with_an_earlier_position_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)), wall=BASE + 100_000_000)
    world.ingest("size/numbers", [{"n": 1, "at": format_rfc3339(BASE)}])
    world.step()
    capability, known = world.store.acquire_task("size/copies", 1, ["size/copies"])
    positions = {key: position - 1 for key, position in known.positions.items()}
    commit = TaskCommit(positions, known.places, {}, 5, 5)

    with pytest.raises(FrontierError, match="'copy' of 'size/copies' in 'size/numbers' would decrease"):
        world.store.commit_task(capability, commit)
    assert world.store.task("size/copies") == known
