"""What test_failpoints.py has a crash server do, and kills: a history of work on one data folder.

Started again on the folder it was killed over, it goes on with the first step that is not done yet.
"""

from __future__ import annotations

from pathlib import Path

from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset
from derive.engine.run import Run
from derive.engine.split import split
from derive.protocol.specs import CatalogSpec
from derive.storage.compaction import compact
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

BASE = 1_700_000_000_000_000
LATER = 1_800_000_000_000_000
BATCH = 12


def do_history(catalog: CatalogSpec, data: Path) -> None:
    """Do every step of the history that is not done yet."""
    store = Store(data, wall=lambda: LATER, durable=False)
    ingest(catalog, store, 0)
    run(catalog, store)
    ingest(catalog, store, 1)
    run(catalog, store)
    merge(catalog, store)
    while store.task("x/counts").shards < 4:  # type: ignore[union-attr]
        split(store, "x/counts")
    ingest(catalog, store, 2)
    run(catalog, store)
    if not (data / "reset").exists():
        reset(catalog, store, ["x/large"])
        (data / "reset").touch()
    run(catalog, store)
    merge(catalog, store)
    fold(catalog, store)
    ingest(catalog, store, 3)
    run(catalog, store)
    store.close()


def ingest(catalog: CatalogSpec, store: Store, number: int) -> None:
    # What is compacted has fewer documents, and the same `upper`.
    known = store.collection("x/source")
    if known is not None and known.upper > BASE + ((number + 1) * BATCH - 1) * 400_000:
        return
    places = range(number * BATCH, (number + 1) * BATCH)
    documents = [
        {"id": place, "k": "abc"[place % 3], "v": place % 5, "at": format_rfc3339(BASE + place * 400_000)}
        for place in places
    ]
    store.create(catalog.collections["x/source"])
    Ingestion(store, catalog.collections["x/source"], clock="/at").load("history", enumerate(documents, start=1))


def run(catalog: CatalogSpec, store: Store) -> None:
    # What is ingested later has later clocks, so sources may be sealed no further than that.
    work = Run(catalog, store, InProcessExecutor(), shards=2)
    known = store.collection("x/source")
    assert known is not None
    wall = -(-(known.upper - BASE) // 400_000) * 400_000 + BASE
    store.timeline.wall = lambda: wall
    while work.step():
        pass
    store.timeline.wall = lambda: LATER
    errors = [task.error for task in work.tasks.values() if task.error]
    work.close()
    if errors:
        raise errors[0]


def fold(catalog: CatalogSpec, store: Store) -> None:
    for name, place in (("x/source", 20), ("x/counts", 25)):
        known = store.collection(name)
        assert known is not None
        since = BASE + place * 400_000
        if known.since < since:
            compact(store, catalog.collections[name], since=since, grace=0)


def merge(catalog: CatalogSpec, store: Store) -> None:
    for spec in catalog.collections.values():
        compact(store, spec, grace=0)
