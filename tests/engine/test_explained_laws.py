"""Law: over random catalogs, histories and edits, a replay of the documents that matter gives what is stored."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from conftest import LATER, World, write_catalog
from edited_catalogs import BASE, SECOND, catalog_of
from explained import advance, assert_explained, differing
from hypothesis import example, given
from hypothesis import strategies as st
from random_catalogs import SOURCE, catalogs, cyclic_catalogs, histories
from stateful_catalogs import Derived, text_of
from test_edited_runs import Defined
from test_edited_runs import catalogs as defined_catalogs
from test_laws import SLOW, Documents, pieces

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.why.replay import past_of


@SLOW
@given(
    text=st.one_of(catalogs(priorities=True), cyclic_catalogs()),
    documents=histories(),
    shards=st.sampled_from([1, 2, 3]),
    data=st.data(),
)
def test_explanations_equal_what_random_catalogs_derived(
    text: str, documents: Documents, shards: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name) / "data", load(write_catalog(Path(name), text)))
        for part, now in [*pieces(documents, data), ([], LATER)]:
            if part:
                world.ingest(SOURCE, part)
            world.wall = now
            run = open_run(world.catalog, world.store, InProcessExecutor(), shards=shards)
            run.step()
            run.close()
        assert_explained(world)
        for derived in world.catalog.derivations:
            if not any(part.has_steps for part in past_of(world.store, world.catalog.derivations[derived]).parts):
                assert differing(world, derived, singly=True) == []
        world.store.close()


# A cycle of collections with documents takes steps that raise timestamps of the same tick.
INTO_A_CYCLE: Sequence[tuple[Defined, int]] = [
    ({"copies": Derived("numbers", 0), "again": Derived("numbers", 0)}, 1),
    ({"copies": Derived("numbers", 0)}, 1),
    ({"copies": Derived("again", 0), "again": Derived("copies", 0)}, 1),
]


@SLOW
@example(edits=INTO_A_CYCLE)
@given(edits=st.lists(st.tuples(defined_catalogs, st.sampled_from([1, 2])), min_size=1, max_size=5))
def test_explanations_equal_what_edited_catalogs_derived(edits: Sequence[tuple[Defined, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = World(folder / "data", catalog_of(folder, text_of({"copies": Derived("numbers", 0)})), wall=BASE)
        for number, (defined, shards) in enumerate([({"copies": Derived("numbers", 0)}, 1), *edits]):
            world.catalog = catalog_of(folder, text_of(defined))
            documents = [{"id": 3 * number + n, "n": n % 2} for n in range(3)]
            world.ingest("a/numbers", documents, clock=None)
            world.wall += 6 * SECOND
            advance(world, shards)
        assert_explained(world)
        world.store.close()
