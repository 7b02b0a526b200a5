"""What test_failpoints.py has a crash server do, and kills: a history of work on one data folder.

Started again on the folder it was killed over, it goes on with the first step that is not done yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset, split
from derive.engine.task_reconciler import open_run
from derive.protocol.specs import CatalogSpec
from derive.storage.compaction import compact
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

BASE = 1_700_000_000_000_000
LATER = 1_800_000_000_000_000
BATCH = 12


Step = Callable[[CatalogSpec, Store], None]


def do_history(
    catalog: CatalogSpec,
    data: Path,
    *,
    history: str = "all",
    begin: int = 0,
    durable: bool = False,
    cache: Path | None = None,
    done: Callable[[Store, int], None] = lambda *_: None,
) -> None:
    """Do every step of a history, from one of them on, that is not done yet.

    Args:
        catalog: what is derived.
        data: the data folder.
        history: which of `HISTORIES`.
        begin: the first step.
        durable: survive a loss of power.
        cache: as for `Store`.
        done: told after every step how many are done.
    """
    store = Store(data, wall=lambda: LATER, durable=durable, cache=cache)
    for number, step in enumerate(HISTORIES[history][begin:], start=begin + 1):
        step(catalog, store)
        done(store, number)
    store.close()


def ingest(number: int) -> Step:
    def step(catalog: CatalogSpec, store: Store) -> None:
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

    return step


def run(catalog: CatalogSpec, store: Store) -> None:
    # What is ingested later has later clocks, so sources may be sealed no further than that.
    work = open_run(catalog, store, InProcessExecutor(), shards=2)
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
    fold_source(catalog, store)
    fold_collection(catalog, store, "x/counts", 25)


def fold_source(catalog: CatalogSpec, store: Store) -> None:
    fold_collection(catalog, store, "x/source", 20)


def fold_collection(catalog: CatalogSpec, store: Store, name: str, place: int) -> None:
    known = store.collection(name)
    assert known is not None
    since = BASE + place * 400_000
    if known.since < since:
        compact(store, catalog.collections[name], since=since, grace=0)


def merge(catalog: CatalogSpec, store: Store) -> None:
    for spec in catalog.collections.values():
        compact(store, spec, grace=0)


def split_counts(_: CatalogSpec, store: Store) -> None:
    while store.task("x/counts").shards < 4:  # type: ignore[union-attr]
        split(store, "x/counts")


def reset_large(catalog: CatalogSpec, store: Store) -> None:
    if not (store.root / "reset").exists():
        reset(catalog, store, ["x/large"])
        (store.root / "reset").touch()


HISTORIES: Mapping[str, Sequence[Step]] = {
    "all": (
        ingest(0),
        run,
        ingest(1),
        run,
        merge,
        split_counts,
        ingest(2),
        run,
        reset_large,
        run,
        merge,
        fold,
        ingest(3),
        run,
    ),
    "storage": (ingest(0), ingest(1), merge, ingest(2), fold_source, ingest(3), merge),
}
