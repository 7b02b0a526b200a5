"""The bench of latency: the time until the results of a document can be read, in a continuous run.

A real `flowctl run` runs beside this process, which ingests single documents at random times within a tick, and follows
the derived collection. The derivation is keyed and keeps state in two shards. Two times are printed for each document:
from calling `ingest`, and from when the document can be processed, which is when its ingestion is committed and its
tick has ended. The exit code is 1 if one of the latter is above its ceiling.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.process import end
from derive.catalog import load
from derive.storage.ingest import Ingestion
from derive.storage.store import Store
from derive.time import tick_end

TICKS = (10, 100)
"""Milliseconds."""

MEDIAN, WORST = 0.030, 0.150
"""Maximum seconds from the end of a tick."""

CATALOG = """\
collections:
  bench/events:
    schema: {type: object, required: [id, user], properties: {id: {type: integer}, user: {type: string}}}
    key: [/id]
  bench/counts:
    schema:
      type: object
      required: [user, events]
      properties: {user: {type: string}, events: {type: integer}}
    key: [/user]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE counts (user TEXT PRIMARY KEY, events INTEGER NOT NULL);"]}}
      shards: {maxTxnDuration: TICKms}
      transforms:
        - name: count
          source: bench/events
          shuffle: {key: [/user]}
          lambda: |
            INSERT INTO counts VALUES ($user, 1) ON CONFLICT DO UPDATE SET events = events + 1 RETURNING user, events;
"""


EMPTY = """\
  bench/empty:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
"""
OTHER = """\
  bench/other{number}:
    schema: {{type: object, required: [id], properties: {{id: {{type: integer}}}}}}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms: [{{name: copy, source: {source}, shuffle: any, lambda: SELECT $id}}]
"""
"""A derivation without documents; each fifth one reads an empty collection, and others read the previous one."""


def catalog_of(tick: int, others: int) -> str:
    """Return the catalog, with a number of derivations without documents."""
    names = ["bench/empty" if number % 5 == 0 else f"bench/other{number - 1}" for number in range(others)]
    parts = [OTHER.format(number=number, source=source) for number, source in enumerate(names)]
    return "".join([CATALOG.replace("TICK", str(tick)), EMPTY, *parts])


@dataclass(frozen=True, slots=True)
class Times:
    """Latency of one document, in seconds.

    Attributes:
        handed: seconds from the call of `ingest`.
        ready: seconds from when the document could be processed.
    """

    handed: float
    ready: float


class Latency:
    """A catalog, and a `flowctl run` on it."""

    def __init__(self, folder: Path, tick: int, options: list[str], others: int) -> None:
        source = folder / "flow.yaml"
        source.write_text(catalog_of(tick, others))
        self._tick = tick * 1000
        catalog = load(source)
        self._store = Store(folder / "data")
        for spec in catalog.collections.values():
            self._store.create(spec)
        self._events = catalog.collections["bench/events"]
        self._ingestion = Ingestion(self._store, self._events)
        command = [sys.executable, "-c", "from derive.cli.main import main; main()", "run", "--shards", "2", *options]
        where = ["--source", str(source), "--data", str(folder / "data")]
        self._run = subprocess.Popen([*command, *where], stderr=subprocess.DEVNULL)
        self._sent = 0

    def send(self) -> Times:
        """Ingest one document, and wait for its result."""
        self._sent += 1
        document = {"id": self._sent, "user": f"user-{self._sent % 7}"}
        begun = time.time()
        self._ingestion.load("bench", [(1, document)])
        ingested = time.time()
        self._wait()
        arrived = time.time()
        clock = max(segment.clock_max for segment in self._store.segments(self._events))
        ready = max(ingested, tick_end(clock, self._tick) / 1e6)
        return Times(arrived - begun, arrived - ready)

    def _wait(self) -> None:
        while True:
            mark = self._store.changes.mark()
            known = self._store.collection("bench/counts")
            if known and known.documents >= self._sent:
                return
            if self._run.poll() is not None:
                raise SystemExit("flowctl run has ended")
            self._store.changes.wait(mark, 1)

    def processor_seconds(self) -> float:
        """Return the processor seconds of the run so far, without its child processes."""
        fields = Path(f"/proc/{self._run.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def close(self) -> None:
        end(self._run)
        self._store.close()


def measure(tick: int, options: argparse.Namespace) -> list[Times]:
    """Send documents to a new run, and print its processor use when busy and when idle."""
    pauses = random.Random(7)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        latency = Latency(Path(folder), tick, options.run, options.others)
        try:
            for _ in range(5):
                latency.send()  # warms up the run
            time.sleep(options.settle)
            times, begun = [], latency.processor_seconds()
            for _ in range(options.documents):
                time.sleep(pauses.uniform(0, 3 * tick / 1000))
                times.append(latency.send())
            document_takes = (latency.processor_seconds() - begun) / options.documents
            print(f"tick of {tick} ms, a document by itself: {document_takes * 1000:.1f} ms of a core")
            if options.idle:
                begun = latency.processor_seconds()
                time.sleep(options.idle)
                share = (latency.processor_seconds() - begun) / options.idle
                print(f"tick of {tick} ms, idle: {share:.2%} of a core")
        finally:
            latency.close()
    return times


def report(what: str, seconds: list[float]) -> None:
    """Print a line of figures."""
    ordered = sorted(seconds)
    high = ordered[len(ordered) * 99 // 100]
    print(
        f"{what}: median {statistics.median(ordered) * 1000:.1f} ms, p99 {high * 1000:.1f} ms, worst of"
        f" {len(ordered):,} {ordered[-1] * 1000:.1f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--tick", type=int, action="append", help="milliseconds (repeatable)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to watch a run that has nothing to do")
    parser.add_argument("--others", type=int, default=0, help="number of further derivations, without documents")
    parser.add_argument("--settle", type=float, default=0.0, help="seconds to wait before measuring")
    parser.add_argument("--folder", type=Path, help="on which disk")
    parser.add_argument("run", nargs="*", help="options of flowctl run, after --")
    options = parser.parse_args()
    is_slow = False
    for tick in options.tick or TICKS:
        times = measure(tick, options)
        ready = [time.ready for time in times]
        report(f"tick of {tick} ms, from handing over", [time.handed for time in times])
        report(f"tick of {tick} ms, from its end", ready)
        is_slow |= statistics.median(ready) > MEDIAN or max(ready) > WORST
    print(f"ceilings, from the end of the tick: median {MEDIAN * 1000:.0f} ms, worst {WORST * 1000:.0f} ms")
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
