"""One collection with a million segments: what a run, a look and a commit pay for its size.

`python -m bench.segments`. The segments are rows of the metadata that no file stands behind, except the last one, so
only work on descriptions is measured. Each figure is the least processor time of some repetitions.

The planning of a transaction is one look for work, the choice of the end, the division into slices, and the packing of
the segments for workers. At the present, it takes the segments that have just arrived, and its cost does not depend on
the number of stored segments. In a backfill, it takes as many segments as the limits allow: of merged segments, a dozen
have as many documents as a transaction takes; of small ones, which nothing has merged yet, thousands. A worker needs
about 0.3 ms of processor time to read a small segment, so the planning is less than a hundredth of the work of such a
transaction.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.inputs import estimate_waiting, find_pending, look
from derive.plural import counted
from derive.protocol.specs import CatalogSpec, DerivationSpec
from derive.storage.ingest import Ingestion
from derive.storage.metadata.descriptions import CollectionUpdate, TaskCommit
from derive.storage.metadata.segment import insert_segments
from derive.storage.metadata.sqlite import SqliteMetadata
from derive.storage.store import Store
from derive.time.extent import Limits, choose_end, size_of, slice_borders
from derive.time.packed_segments import packed_reads
from derive.time.positions import Segment, SourceRead

CATALOG = """
collections:
  bench/numbers:
    schema: &s {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
  bench/copies:
    schema: *s
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: bench/numbers, shuffle: any, lambda: SELECT $id;}]}
  bench/merged:
    schema: *s
    key: [/id]
  bench/mergedCopies:
    schema: *s
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: bench/merged, shuffle: any, lambda: SELECT $id;}]}
"""
SOURCE, TASK = "bench/numbers", "bench/copies"
MERGED, MERGED_TASK = "bench/merged", "bench/mergedCopies"
DAY, MINUTE = 86_400_000_000, 60_000_000
MIDDLE = 5 * DAY + MINUTE
"""Time from the middle of the history to its end."""
COMMITTED = 10_000
PLANNED = 100_000
MERGED_SEGMENTS, MERGED_DOCUMENTS = 100_000, 250_000
"""Number of merged segments, and of the documents of each: a segment with fewer is merged with others."""


def measured(what: str, work: Callable[[], object], times: int = 5) -> None:
    """Print the least processor time of some work, in milliseconds, and the peak memory of the process so far."""
    least = float("inf")
    for _ in range(times):
        begun = time.process_time()
        work()
        least = min(least, time.process_time() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what:<62} {least * 1e3:>10,.2f} ms   peak {peak:>6,} MiB", flush=True)


def described(count: int, begin: int, end: int, name: str = SOURCE, documents: int = 100) -> Iterator[Segment]:
    """Yield segments that follow one another in time, of 50 bytes for each document."""
    step = (end - begin) // count
    for number in range(count):
        first = begin + number * step
        path, checksum = (
            f"collections/{name}@/ingest-{uuid.uuid4()}-0.parquet",
            sha256(str(number).encode()).hexdigest(),
        )
        yield Segment(name, path, (), first, first + step - 1, documents, 50 * documents, checksum)


def fill(folder: Path, count: int) -> None:
    """Make a data folder whose source has `count` segments over ten days, and a last one with a document.

    Another source has merged segments.
    """
    catalog, store = load(folder / "flow.yaml"), Store(folder / "data")
    ends = {}
    for name in (SOURCE, MERGED):
        Ingestion(store, catalog.collections[name]).load("bench", [(1, {"id": 1})])
        (last,) = store.segments(catalog.collections[name])
        ends[name] = last.clock_min - 2 * MIDDLE + MINUTE, last.clock_min - MINUTE
    store.close()
    metadata = SqliteMetadata(folder / "data" / "metadata.db", durable=False)
    with metadata.transaction() as db:
        insert_segments(db, SOURCE, list(described(count, *ends[SOURCE])))
        merged = described(MERGED_SEGMENTS, *ends[MERGED], MERGED, MERGED_DOCUMENTS)
        insert_segments(db, MERGED, list(merged))
    metadata.close()


def planned(store: Store, spec: DerivationSpec, positions: dict[str, int], bound: int) -> int:
    """Plan a transaction, and return the number of its segments."""
    (source,), tick, limits = spec.inputs, spec.tick, Limits()
    position = positions.get(source.state_key, 0)
    inputs = look(store, spec, positions, limits=limits)
    end = choose_end([inputs.read(source, position, bound)], position, bound, tick, limits)
    reads = [inputs.read(source, position, end)]
    slice_borders(reads, end, tick, 0, 8, limits)
    packed_reads(reads)
    return size_of(reads).segments


def measure_planning(store: Store, spec: DerivationSpec, last: int) -> None:
    """Measure the planning of a transaction at the present, and of a transaction of a backfill."""
    (key,) = (item.state_key for item in spec.inputs)
    bound = (last // spec.tick + 1) * spec.tick
    for what, position in (("at the present", last), ("in a backfill", last - MIDDLE)):
        taken = planned(store, spec, {key: position}, bound)
        title = f"planning {what}, of a transaction of {counted(taken, 'segment')}"
        measured(title, partial(planned, store, spec, {key: position}, bound))


def measure_command(what: str, *arguments: str) -> None:
    """Print the processor time and the peak memory of a command."""
    command = subprocess.Popen([sys.executable, "-m", "derive.cli.main", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    if command.returncode:
        raise SystemExit(command.returncode)
    seconds, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024
    print(f"{what:<62} {seconds * 1e3:>10,.2f} ms   peak {peak:>6,} MiB", flush=True)


def measure(catalog: CatalogSpec, store: Store) -> None:
    """Measure the looks of a task, a commit, and a plan."""
    spec, source = catalog.derivations[TASK], catalog.collections[SOURCE]
    (key,) = (item.state_key for item in spec.inputs)
    _, last = store.span(SOURCE)
    live, middle = {key: last}, {key: last - MIDDLE}
    measured("description of the collection", lambda: store.collection(SOURCE))
    measured("look for work, at the present", lambda: look(store, spec, live, limits=Limits()))
    measured("look for work, in a backfill from the start", lambda: look(store, spec, {}, limits=Limits()))
    measured("look for work, in the middle of a backfill", lambda: look(store, spec, middle, limits=Limits()))
    inputs = look(store, spec, middle, limits=Limits())
    measured("estimate of the documents that wait", lambda: estimate_waiting(inputs, spec, middle, last))
    measured("number of the documents that wait, from the start", lambda: find_pending(store, spec, {}), 1)
    measured("number of the documents that wait, from the middle", lambda: find_pending(store, spec, middle), 1)
    measured("segments of the last second", lambda: store.segments(source, begin=last - 1_000_000))
    measure_planning(store, spec, last)
    print(f"{MERGED_SEGMENTS:,} merged segments")
    measure_planning(store, catalog.derivations[MERGED_TASK], store.span(MERGED)[1])
    _commit(store, catalog)
    _send(last)


def _commit(store: Store, catalog: CatalogSpec) -> None:
    store.create(catalog.collections[TASK])
    capability, _ = store.acquire_task(TASK, COMMITTED, [TASK])
    for position in (DAY, 2 * DAY):
        segments = list(described(COMMITTED, position, position + DAY, TASK))
        tokens = {number: f"{uuid.uuid4()}-{number}" for number in range(COMMITTED)}
        commit = TaskCommit({"copy": position}, {}, tokens, COMMITTED, COMMITTED)
        update = CollectionUpdate(TASK, segments, position + DAY)
        begun = time.process_time()
        capability = store.commit_task(capability, commit, [update])
        what = f"commit of {COMMITTED:,} segments and shards"
        print(f"{what:<62} {(time.process_time() - begun) * 1e3:>10,.2f} ms")


def _send(last: int) -> None:
    read = SourceRead(0, 0, 0, last, tuple(described(PLANNED, last - DAY, last)))
    measured(f"packing of {PLANNED:,} segments in a plan", lambda: packed_reads([read]), 2)
    (packed,) = packed_reads([read])
    sent = pickle.dumps(packed)
    print(f"{'  their size':<62} {len(sent) / 1e6:>10,.2f} MB")
    measured("  a worker opens the plan", lambda: pickle.loads(sent))
    measured("  a worker opens an eighth of the segments", lambda: packed.within(last - DAY // 8, last))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=1_000_000)
    count = parser.parse_args().segments
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flow.yaml").write_text(CATALOG)
        # the peak of a command's memory is at least the memory of its parent, so another process inserts the segments
        filler = multiprocessing.get_context("spawn").Process(target=fill, args=(folder, count))
        filler.start()
        filler.join()
        catalog, store = load(folder / "flow.yaml"), Store(folder / "data")
        print(f"{count:,} segments of one collection", flush=True)
        _, last = store.span(SOURCE)
        options = ["--source", str(folder / "flow.yaml"), "--data", str(folder / "data"), "--collection", SOURCE]
        recent = ["--since", format_rfc3339(last - 1_000_000)]
        measure_command("flowctl collections read of the last second", "collections", "read", *options, *recent)
        measure_command("flowctl compact --dry-run", "compact", "--dry-run", *options)
        measure(catalog, store)
        store.close()


if __name__ == "__main__":
    main()
