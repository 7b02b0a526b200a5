"""Law: over random catalogs and histories, a preview gives what runs have stored."""

from __future__ import annotations

import tempfile
from pathlib import Path

from conftest import LATER, World, examples, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_catalogs import SOURCE, catalogs, cyclic_catalogs, histories
from test_laws import Documents, pieces

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.preview.run import Options, preview, with_cycles


@settings(max_examples=examples(24, 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.one_of(catalogs(), cyclic_catalogs()),
    documents=histories(),
    shards=st.sampled_from([1, 2, 4]),
    limit=st.sampled_from([None, 1, 3]),
    data=st.data(),
)
def test_previews_of_random_catalogs_equal_their_runs(
    text: str, documents: Documents, shards: int, limit: int | None, data: st.DataObject
) -> None:
    """The results of all derivations together, and those of one over stored sources, differ in no key."""
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name) / "data", load(write_catalog(Path(name), text)))
        for part, now in [*pieces(documents, data), ([], LATER)]:
            if part:
                world.ingest(SOURCE, part)
            world.wall = now
            run = open_run(world.catalog, world.store, InProcessExecutor(), shards=shards)
            run.step()
            run.close()
        every = [*world.catalog.derivations]
        for tasks in (every, [data.draw(st.sampled_from(every))]):
            chosen = with_cycles(world.catalog, tasks)
            options = Options(limit=limit, compares=True)
            assert preview(world.store, world.catalog, chosen, options, lambda _: None) == []
        world.store.close()
