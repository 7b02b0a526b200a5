"""A data folder with derivations that keep state, which is backed up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import World, write_catalog

from derive import failpoint
from derive.backup import Backup, Finding, Options, Verification, back_up, verify_backup
from derive.catalog import load
from derive.storage.store import Store

BASE = 1_700_000_000_000_000
SECOND = 1_000_000
CATALOG = """
collections:
  b/source:
    schema: {type: object, required: [id, k], properties: {id: {type: integer}, k: {type: integer}, at: {type: string}}}
    key: [/id]
  b/counts:
    schema:
      type: object
      required: [k, n]
      reduce: {strategy: merge}
      properties: {k: {type: integer}, n: {type: integer}, sum: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k INTEGER PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: b/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING k, n, $id AS sum;
  b/large:
    schema: {type: object, required: [n], properties: {n: {type: integer}, of: {type: integer}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE last (n INTEGER PRIMARY KEY, times INTEGER NOT NULL);"]}}
      transforms:
        - name: keep
          source: b/counts
          shuffle: {key: [/n]}
          lambda: INSERT INTO last VALUES ($n, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING n, times AS of;
"""


def world_of(folder: Path, name: str = "data", wall: int = BASE) -> World:
    path = folder / "flow.yaml"
    return World(folder / name, load(path if path.exists() else write_catalog(folder, CATALOG)), wall=wall)


def go_on(world: World, batches: range, shards: int | None = 2) -> None:
    """Ingest batches of documents with times of their own, and derive what follows."""
    for batch in batches:
        world.wall = BASE + (batch + 1) * 10 * SECOND
        documents = [
            {
                "id": 10 * batch + number,
                "k": (7 * batch + number) % 5,
                "at": f"2023-11-14T22:{13 + batch:02d}:2{number}Z",
            }
            for number in range(4)
        ]
        world.wall = BASE + (batch + 1) * 60 * SECOND
        world.ingest("b/source", documents)
        world.step(shards=shards)


def take(world: World, folder: Path, **options: Any) -> Backup:
    return back_up(world.store, folder, Options(**options))


def wrong(root: Path) -> list[Finding]:
    """All that is wrong with a data folder."""
    store = Store(root, reading=True, accept_older=True)
    try:
        return list(Verification(store).run())
    finally:
        store.close()


def wrong_with_backup(folder: Path) -> list[Finding]:
    return list(verify_backup(folder))


def in_child(work: Callable[[], object], point: str = "") -> int:
    """Do something in a process that dies at a failpoint; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            failpoint.arm(point)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
