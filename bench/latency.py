"""The bench of latency: from handing one document to `ingest` until what it causes can be read.

A real `flowctl run` with a tick of 100 ms runs beside it, and has nothing else to do. The derivation is keyed and keeps
state in two shards. Exit code 1 if the median is above the ceiling.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from derive.catalog import load
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

CEILING = 0.7
"""Seconds that the median may take."""

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
      shards: {maxTxnDuration: 100ms}
      transforms:
        - name: count
          source: bench/events
          shuffle: {key: [/user]}
          lambda: |
            INSERT INTO counts VALUES ($user, 1) ON CONFLICT DO UPDATE SET events = events + 1 RETURNING user, events;
"""


class Latency:
    """A catalog, and a `flowctl run` at work on it."""

    def __init__(self, folder: Path) -> None:
        source = folder / "flow.yaml"
        source.write_text(CATALOG)
        self._catalog = load(source)
        self._store = Store(folder / "data")
        for spec in self._catalog.collections.values():
            self._store.create(spec)
        command = [sys.executable, "-c", "from derive.cli.main import main; main()", "run", "--shards", "2"]
        where = ["--source", str(source), "--data", str(folder / "data")]
        self._run = subprocess.Popen([*command, *where], stderr=subprocess.DEVNULL)
        self._sent = 0

    def send(self) -> float:
        """Seconds that one document takes."""
        self._sent += 1
        document = {"id": self._sent, "user": f"user-{self._sent % 7}"}
        begun = time.perf_counter()
        Ingestion(self._store, self._catalog.collections["bench/events"]).load("bench", [(1, document)])
        while self._arrived() < self._sent:
            if self._run.poll() is not None:
                raise SystemExit("flowctl run has ended")
            time.sleep(0.005)
        return time.perf_counter() - begun

    def _arrived(self) -> int:
        known = self._store.collection("bench/counts")
        return known.documents if known else 0

    def close(self) -> None:
        self._run.send_signal(signal.SIGINT)
        self._run.wait()
        self._store.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50)
    options = parser.parse_args()
    pauses = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        latency = Latency(Path(folder))
        try:
            for _ in range(5):
                latency.send()  # Spark starts
            seconds = []
            for _ in range(options.documents):
                time.sleep(pauses.uniform(0, 0.3))  # at any moment of a tick
                seconds.append(latency.send())
        finally:
            latency.close()
    median = statistics.median(seconds)
    print(f"one document, tick of 100 ms: median {median:.2f} s, worst {max(seconds):.2f} s, ceiling {CEILING} s")
    return int(median > CEILING)


if __name__ == "__main__":
    sys.exit(main())
