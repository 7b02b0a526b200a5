"""How much one transaction covers: what bounds the memory of a worker, and how soon a backlog shows results."""

from __future__ import annotations

import pytest
from conftest import World, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.engine import plan
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run, Silent
from derive.engine.task import Committed

CATALOG = """
collections:
  size/numbers:
    schema: &schema {type: object, required: [n], properties: {n: {type: integer}}}
    key: [/n]
  size/copies:
    schema: *schema
    key: [/n]
    derive:
      using: {sqlite: {}}
      transforms: [{name: copy, source: size/numbers, shuffle: any, lambda: SELECT $n}]
"""
PER_TICK = 10


class Sizes(Silent):
    """Notes how many documents each transaction processed."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def committed(self, task: str, done: Committed) -> None:
        if done.documents_in:
            self.found.append(done.documents_in)


@settings(max_examples=25)
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MAX_DOCUMENTS", most)
        run = Run(world.catalog, world.store, InProcessExecutor(), observer=sizes)
        while run.step():
            pass
        run.close()

    # A tick is never cut, and how documents are spread over the time of a file is an estimate.
    assert sum(sizes.found) == first
    assert all(most - 2 * PER_TICK <= each <= most + 2 * PER_TICK for each in sizes.found[:-1])
    assert sizes.found[-1] <= most + 2 * PER_TICK
