"""Data folders of older metadata formats: how those that are checked in came about, and how the next one does.

    PYTHONPATH=<a checkout of the last commit of a format> python tests/engine/format_history.py

writes `tests/engine/formats/<format>.tar.xz`: a history of work on a small data folder, done by that checkout's code.
It uses what every version has had, and skips what one does not have yet. When the format changes, do this first, in
the commit before the change; test_formats.py then finds the new file by itself.
"""

from __future__ import annotations

import os
import socket
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import split
from derive.engine.task_reconciler import open_run
from derive.protocol.specs import CatalogSpec
from derive.storage.ingest import Ingestion
from derive.storage.metadata import sqlite_tables as metadata
from derive.storage.store import Store

FORMATS = Path(__file__).with_name("formats")
BASE = 1_700_000_000_000_000
BATCH = 12
SPACING = 400_000
"""Microseconds from one document to the next."""

CATALOG = """
collections:
  u/source:
    schema:
      type: object
      required: [id, k, v, place, at]
      properties:
        id: {type: integer}
        k: {type: string}
        v: {type: number}
        place: {type: string}
        at: {type: string}
    key: [/id]
    projections: {place: {location: /place, partition: true}}
  u/counts:
    schema:
      type: object
      required: [k, n]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer}, sum: {type: number, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: u/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING 'all' AS k, n, $v AS sum;
        - name: forget
          source: u/source
          shuffle: {key: [/k]}
          readDelay: 2s
          lambda: UPDATE seen SET n = n - 1 WHERE k = $k;
  u/large:
    schema: {type: object, required: [n], properties: {n: {type: integer}, sum: {type: number}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE last (n INTEGER PRIMARY KEY);"]}}
      transforms:
        - {name: keep, source: u/counts, shuffle: {key: [/n]}, lambda: "INSERT INTO last VALUES ($n) ON CONFLICT DO NOTHING RETURNING n, $sum;"}
  u/echo:
    schema:
      type: object
      required: [k, v, loud]
      properties: {k: {type: string}, v: {type: number}, loud: {type: integer}}
    key: [/k, /loud]
    projections: {loud: {location: /loud, partition: true}}
    derive:
      using: {sqlite: {}}
      transforms:
        - name: call
          source: {name: u/source, partitions: {include: {place: [north]}}}
          shuffle: {key: [/k]}
          lambda: SELECT $k, $v, $v > 2 AS loud;
        - name: echo
          source: {name: u/echo, partitions: {include: {loud: [1]}}}
          shuffle: {key: [/k]}
          lambda: SELECT $k || 'o' AS k, $v - 1 AS v, $v > 3 AS loud;
  u/typed:
    schema:
      type: object
      required: [k, v]
      reduce: {strategy: merge}
      properties: {k: {type: string}, v: {type: number, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {typescript: {module: typed.ts}}
      transforms: [{name: double, source: u/source, shuffle: any}]
  u/totals:
    schema: {type: object, required: [k, total], properties: {k: {type: string}, total: {type: number}}}
    key: [/k]
    derive:
      using: {typescript: {module: totals.ts}}
      transforms: [{name: add, source: u/source, shuffle: {key: [/k]}}]
"""
TYPED = """
import { Document, IDerivation, SourceDouble } from 'flow/u/typed.ts';

export class Derivation extends IDerivation {
    double({ doc }: { doc: SourceDouble }): Document[] {
        return [{ k: doc.k, v: 2 * doc.v }];
    }
}
"""
TOTALS_MODULE = """
import { Document, IDerivation, SourceAdd } from 'flow/u/totals.ts';

export class Derivation extends IDerivation {
    totals: Record<string, number>;

    constructor(open: { state: { totals?: Record<string, number> } }) {
        super(open);
        this.totals = open.state.totals ?? {};
    }

    add({ doc }: { doc: SourceAdd }): Document[] {
        this.totals[doc.k] = (this.totals[doc.k] ?? 0) + doc.v;
        return [{ k: doc.k, total: this.totals[doc.k] }];
    }

    override startCommit() {
        return { state: { updated: { totals: this.totals }, mergePatch: true } };
    }
}
"""


def documents(batch: int) -> list[dict[str, Any]]:
    """What is ingested into `u/source` as its batch of this number."""
    return [
        {
            "id": number,
            "k": "abü"[number % 3],
            "v": number % 7 / 2,
            "place": ("north", "south/east")[number % 2],
            "at": f"2023-11-14T22:13:{20 + number * SPACING / 1e6:04.1f}Z",
        }
        for number in range(batch * BATCH, (batch + 1) * BATCH)
    ]


def after(batch: int) -> int:
    """The clock at which a batch is complete."""
    return BASE + (batch + 1) * BATCH * SPACING


def write_catalog(folder: Path) -> Path:
    """Write the catalog and its modules; return the catalog's path."""
    (folder / "typed.ts").write_text(TYPED)
    (folder / "totals.ts").write_text(TOTALS_MODULE)
    path = folder / "flow.yaml"
    path.write_text(CATALOG)
    return path


class History:
    """A data folder at work."""

    def __init__(self, catalog: CatalogSpec, data: Path) -> None:
        self.catalog = catalog
        self.data = data
        self.wall = BASE
        self.store = Store(data, wall=lambda: self.wall, durable=False)

    def make(self) -> None:
        """Three batches, and what is left when processes die in the middle."""
        for batch in (0, 1):
            self.ingest(batch)
            self.run(shards=2)
            self.compact()
        split(self.store, "u/counts")
        self.ingest(2)
        self.interrupt(lambda: self.ingest(3))
        if list(self.data.rglob("state.db-wal")):  # a commit is final without
            self.interrupt(self.run)

    def ingest(self, batch: int) -> None:
        self.wall = after(batch)
        spec = self.catalog.collections["u/source"]
        Ingestion(self.store, spec, clock="/at").load("history", enumerate(documents(batch), start=1))

    def run(self, shards: int | None = None) -> None:
        run = open_run(self.catalog, self.store, InProcessExecutor(), shards=shards)
        while run.step():
            pass
        errors = [task.error for task in run.tasks.values() if task.error]
        run.close()
        assert not errors, errors[0]

    def compact(self) -> None:
        with suppress(ImportError):
            compaction = import_module("derive.storage.compaction")
            for spec in self.catalog.collections.values():
                compaction.compact(self.store, spec)

    def interrupt(self, work: Callable[[], None]) -> None:
        """Do work in a process that ends before its first commit of documents."""
        child = os.fork()
        if child == 0:
            self.store = Store(self.data, wall=lambda: self.wall, durable=False)
            for verb in ("update_and_downgrade", "commit_task"):  # whichever there are
                setattr(self.store, verb, lambda *_, **__: os._exit(0))
            with suppress(BaseException):
                work()
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0, "it came to its end"


def main() -> None:
    """Make a data folder with the code that is imported, and pack it."""
    socket.gethostname = lambda: "host"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        History(load(write_catalog(folder)), folder / "data").make()
        path = FORMATS / f"{metadata.FORMAT}.tar.xz"
        FORMATS.mkdir(exist_ok=True)
        with tarfile.open(path, "w:xz") as packed:
            for file in sorted((folder / "data").rglob("*")):
                if file.is_file():
                    packed.add(file, file.relative_to(folder), filter=_anonymous)
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
