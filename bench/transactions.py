"""The bench of small transactions: a collection that grew by a few documents at a time, before and after compaction.

Each transaction is a segment of its own, made durable and committed through the storage interface, as a task does; some
go through a whole ingestion. Measured are appending (at the beginning, and over all segments), reading everything in
order, and looking up frontiers and segments, as every plan of a transaction does. Then the segments are merged, then
history is reduced, and all is measured again. The exit code is 1 if a ratio is too low.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.document.key import compile_keys
from derive.protocol.specs import CollectionSpec
from derive.storage.compaction import compact
from derive.storage.ingest import Ingestion
from derive.storage.metadata.descriptions import CollectionUpdate
from derive.storage.segments.partition import NO_PARTITION
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.writer import SegmentWriter
from derive.storage.store import Store

CATALOG = """
collections:
  bench/events:
    key: [/account]
    schema:
      type: object
      required: [account]
      reduce: {strategy: merge}
      properties: {account: {type: integer}, amount: {type: number, reduce: {strategy: sum}}}
"""
NAME = "bench/events"
ACCOUNTS = 1_000
SAMPLE = 100

FLOORS = {
    "append, over many segments": 0.3,
    "append, merged": 0.3,
    "ingest, merged": 0.3,
    "read, merged": 5.0,
    "look, merged": 20.0,
}
"""Minimum ratios: of append and ingest to the time at the beginning, of the others to the time before merging."""


class Bench:
    """A collection, and the operations to time."""

    def __init__(self, folder: Path, size: int) -> None:
        (folder / "flow.yaml").write_text(CATALOG)
        self.spec: CollectionSpec = load(folder / "flow.yaml").collections[NAME]
        self.store = Store(folder / "data")
        self.store.create(self.spec)
        self._keys = compile_keys(self.spec.key, self.spec.key_defaults)
        self._capability, _ = self.store.acquire_task(NAME, 1, [NAME])
        self._size = size
        self._count = 0

    def append(self) -> None:
        """Run one transaction of a task: write a durable segment, and commit it."""
        documents = self._documents()
        first = self.store.timeline.assign(self._size)
        writer = SegmentWriter(self.store.location, self.spec, f"bench-{self._count}")
        clocks = range(first, first + self._size)
        labels = [NO_PARTITION] * self._size
        writer.write(WrittenRows.sorted_of(clocks, [0] * self._size, self._keys(documents), documents, labels))
        frontier = first + self._size
        update = CollectionUpdate(NAME, writer.close(), frontier)
        self._capability = self.store.commit_task(self._capability, None, [update])

    def ingest(self) -> None:
        """Run one ingestion of a small file."""
        self.store.release_task(self._capability)
        Ingestion(self.store, self.spec).load("bench", enumerate(self._documents(), start=1))
        self._capability, _ = self.store.acquire_task(NAME, 1, [NAME])

    def read(self) -> None:
        """Read everything in order."""
        documents = sum(len(rows) for rows in read_rows(self.store, self.spec, ReadOptions()))
        known = self.store.collection(NAME)
        assert known is not None
        assert documents == known.documents

    def look(self) -> None:
        """Look up the frontiers and segments, as a plan does first."""
        self.store.collection(NAME)
        self.store.segments(self.spec)

    def _documents(self) -> list[dict[str, float]]:
        self._count += 1
        first = self._count * self._size
        return [{"account": (first + number) % ACCOUNTS, "amount": number + 0.5} for number in range(self._size)]


def seconds(task: Callable[[], object], rounds: int = 1) -> float:
    """Return the median seconds of a task."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        task()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def measure(bench: Bench) -> dict[str, float]:
    """Return the seconds of each operation; reads come first, before there are new segments."""
    return {
        "look": seconds(bench.look, 20),
        "read": seconds(bench.read, 3),
        "append": seconds(bench.append, SAMPLE),
        "ingest": seconds(bench.ingest, SAMPLE // 5),
    }


def show(what: str, bench: Bench) -> dict[str, float]:
    known = bench.store.collection(NAME)
    assert known is not None
    taken = measure(bench)
    times = "".join(f"{1e3 * median:11.2f}" for median in taken.values())
    print(f"{what:22}{known.segments:10,}{known.documents:12,}{times}", flush=True)
    return taken


def run(folder: Path, transactions: int, size: int) -> bool:
    """Return whether every ratio is above its floor."""
    bench = Bench(folder, size)
    print(f"{'':22}{'segments':>10}{'documents':>12}{'look ms':>11}{'read ms':>11}{'append ms':>11}{'ingest ms':>11}")
    first = show("at the beginning", bench)
    for _ in range(transactions - 2 * SAMPLE):
        bench.append()
    before = show("many segments", bench)
    merging = seconds(lambda: compact(bench.store, bench.spec, grace=0))
    after = show("merged", bench)
    known = bench.store.collection(NAME)
    assert known is not None
    folding = seconds(lambda: compact(bench.store, bench.spec, since=known.upper, grace=0))
    show("history reduced", bench)
    print(f"merging took {merging:.1f} s, reducing history {folding:.1f} s\n")
    ratios = {
        "append, over many segments": first["append"] / before["append"],
        "append, merged": first["append"] / after["append"],
        "ingest, merged": first["ingest"] / after["ingest"],
        "read, merged": before["read"] / after["read"],
        "look, merged": before["look"] / after["look"],
    }
    for name, ratio in ratios.items():
        print(f"{name:30}{ratio:8.2f}   floor {FLOORS[name]:6.2f}")
    return all(ratio >= FLOORS[name] for name, ratio in ratios.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--documents", type=int, default=5, help="in each transaction")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return int(not run(Path(folder), options.transactions, options.documents))


if __name__ == "__main__":
    sys.exit(main())
