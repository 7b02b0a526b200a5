"""Real processes, killed in the middle of a transaction: nothing is lost, doubled or half-visible (law L2)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import World, write_catalog
from patience import PATIENCE_SECONDS
from victims import deno_processes, java_processes, module_processes, processes_of, python_workers

from derive.catalog import load

pytestmark = [pytest.mark.spark, pytest.mark.deno]

CATALOG = """
collections:
  k/transfers:
    schema: {type: object, required: [id, sender, amount], properties: {id: {type: integer}, sender: {type: string}, amount: {type: number}}}
    key: [/id]
  k/totals:
    schema:
      type: object
      required: [sender, total]
      reduce: {strategy: merge}
      properties: {sender: {type: string}, total: {type: number, reduce: {strategy: sum}}, count: {type: integer}}
    key: [/sender]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE counts (sender TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: k/transfers
          shuffle: {key: [/sender]}
          lambda: |
            INSERT INTO counts VALUES ($sender, 1) ON CONFLICT DO UPDATE SET n = n + 1
            RETURNING substr(sender, 1, 3) AS sender, $amount AS total, n AS count;
"""

Kill = Callable[[subprocess.Popen[bytes]], None]
FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"


TYPESCRIPT = """
collections:
  k/transfers:
    schema:
      type: object
      required: [id, sender, amount]
      properties: {id: {type: integer}, sender: {type: string}, amount: {type: number}}
    key: [/id]
  k/totals:
    schema:
      type: object
      required: [sender]
      reduce: {strategy: merge}
      properties: {sender: {type: string}, total: {type: number, reduce: {strategy: sum}}, count: {type: integer}}
    key: [/sender]
    derive:
      using: {typescript: {module: totals.ts}}
      transforms: [{name: count, source: k/transfers, shuffle: {key: [/sender]}}]
"""
MODULE = """
import { Document, IDerivation, SourceCount } from 'flow/k/totals.ts';

export class Derivation extends IDerivation {
    counts: Record<string, number>;
    changed: Record<string, number> = {};
    sums = new Map<string, number>();

    constructor(open: { state: { counts?: Record<string, number> } }) {
        super(open);
        this.counts = open.state.counts ?? {};
    }

    count({ doc }: { doc: SourceCount }): Document[] {
        this.changed[doc.sender] = this.counts[doc.sender] = (this.counts[doc.sender] ?? 0) + 1;
        this.sums.set(doc.sender, (this.sums.get(doc.sender) ?? 0) + doc.amount);
        return [{ sender: doc.sender.slice(0, 3), count: this.counts[doc.sender] }];
    }

    override flush(): Document[] {
        const sums = [...this.sums];
        this.sums.clear();
        return sums.map(([sender, total]) => ({ sender: sender.slice(0, 3), total }));
    }

    override startCommit() {
        const updated = { counts: this.changed };
        this.changed = {};
        return { state: { updated, mergePatch: true } };
    }
}
"""

PYTHON = TYPESCRIPT.replace("typescript: {module: totals.ts}", "python: {module: totals.py}")
ARROW = PYTHON.replace("totals.py", "columns.py")
PYTHON_MODULE = """
from typing import Any

from k.totals import Document, IDerivation, Request


class Derivation(IDerivation):
    def __init__(self, open: Request.Open):
        self.sums: dict[str, float] = {}

    def count(self, read: Request.ReadFromCount) -> Document:
        doc = read.doc
        self.state["count"] = self.state.get("count", 0) + 1
        self.sums[doc.sender] = self.sums.get(doc.sender, 0) + doc.amount
        return Document(sender=doc.sender[:3], count=self.state["count"])

    def flush(self) -> Any:
        sums, self.sums = self.sums, {}
        return [Document(sender=sender[:3], total=total) for sender, total in sums.items()]
"""

ARROW_MODULE = """
import pyarrow as pa
import pyarrow.compute as pc

from k.totals import IDerivation, arrow


class Derivation(IDerivation):
    @arrow
    def count(self, batch: pa.RecordBatch) -> pa.Table:
        sender = pc.utf8_slice_codeunits(batch["sender"], 0, 3)
        return pa.table({"flow_row": batch["flow_row"], "sender": sender, "total": batch["amount"]})
"""


def loaded(source: Path, root: Path, count: int) -> World:
    """Return transfers in two batches, so that the one that is disturbed has state before it; ingest them once."""
    ingested = source.with_name(f"ingested-{count}")
    if not ingested.exists():
        ingest(World(ingested, load(source)), count)
    shutil.copytree(ingested, root / "data")
    return World(root / "data", load(source))


def ingest(world: World, count: int) -> None:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    for part in (range(2_000), range(2_000, count)):
        documents = [
            {
                "id": number,
                "sender": f"s{number % 997:04d}",
                "amount": number % 13 / 8,
                "at": f"{begin + timedelta(milliseconds=7 * number):%Y-%m-%dT%H:%M:%S.%fZ}",
            }
            for number in part
        ]
        world.ingest("k/transfers", documents)
    world.store.close()


def start(source: Path, world: World) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "2", "--local-documents", "0"]
    where = ["--source", str(source), "--data", str(world.root)]
    return subprocess.Popen([*command, *where], stderr=subprocess.DEVNULL, start_new_session=True)


def progress_of(world: World) -> set[Path]:
    """Files in which workers have noted progress."""
    return {file for file in (world.root / "tmp").rglob("shard-*") if file.stat().st_size}


def wait_for_progress(world: World, process: subprocess.Popen[bytes], before: Set[Path] = frozenset()) -> None:
    """Wait until workers have processed some of a transaction, in files that are not among those `before`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be disturbed"
        with suppress(FileNotFoundError):  # what is left of one before is being removed
            if progress_of(world) - before:
                return
        time.sleep(0.005)
    pytest.fail("no progress")


def wait_for_the_end(process: subprocess.Popen[bytes]) -> int:
    """Wait until nothing of a run is left: workers outlive a driver for a moment, and note progress until they end."""
    status = process.wait()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := processes_of(process.pid):
        assert time.monotonic() < deadline, f"processes {left} outlive their driver"
        time.sleep(0.05)
    return status


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    process.kill()


def kill_worker(process: subprocess.Popen[bytes]) -> None:
    workers = python_workers(process.pid)
    assert workers, "Spark has no Python worker"
    os.kill(workers[0], signal.SIGKILL)


def kill_java(process: subprocess.Popen[bytes]) -> None:
    (java,) = java_processes(process.pid)
    os.kill(java, signal.SIGKILL)


def kill_in_turn(kills: Sequence[Kill], source: Path, world: World) -> list[int]:
    """Run again and again, each time killing something in the middle of the transaction; the exit statuses."""
    statuses = []
    for kill in kills:
        before = progress_of(world)
        process = start(source, world)
        wait_for_progress(world, process, before)
        kill(process)
        statuses.append(wait_for_the_end(process))
        task = world.task("k/totals")
        if statuses[-1]:
            assert task.documents_in == 0  # nothing of the transaction was committed
    return statuses


def kill_deno(process: subprocess.Popen[bytes]) -> None:
    victims = deno_processes(process.pid)
    assert victims, "no Deno is running"
    os.kill(random.choice(victims), signal.SIGKILL)


def kill_module(process: subprocess.Popen[bytes]) -> None:
    victims = module_processes(process.pid)
    assert victims, "no Python module is running"
    os.kill(random.choice(victims), signal.SIGKILL)


# Spark runs a lost worker's part again; and what Deno did, the run does again, half as much at a time.
@pytest.mark.parametrize(
    ("text", "kills", "statuses"),
    [
        pytest.param(CATALOG, [kill_driver], [-signal.SIGKILL], id="sql driver"),
        *(
            pytest.param(text, kills, [status, 0], id=name, marks=pytest.mark.torture)
            for name, text, kills, status in (
                ("sql java", CATALOG, [kill_java, kill_worker], 1),
                ("sql worker", CATALOG, [kill_driver, kill_worker], -signal.SIGKILL),
                ("typescript deno", TYPESCRIPT, [kill_driver, kill_deno], -signal.SIGKILL),
                ("typescript worker", TYPESCRIPT, [kill_driver, kill_worker], -signal.SIGKILL),
                ("python module", PYTHON, [kill_driver, kill_module], -signal.SIGKILL),
                ("python worker", PYTHON, [kill_driver, kill_worker], -signal.SIGKILL),
                ("arrow module", ARROW, [kill_driver, kill_module], -signal.SIGKILL),
            )
        ),
    ],
)
def test_l2_killed_in_the_middle_and_run_again_gives_the_same_bytes(
    text: str, kills: list[Kill], statuses: list[int], tmp_path: Path
) -> None:
    source = write_catalog(tmp_path, text, totals__ts=MODULE, totals__py=PYTHON_MODULE, columns__py=ARROW_MODULE)
    count = 60_000
    undisturbed = loaded(source, tmp_path / "undisturbed", count)
    undisturbed.step(shards=1)
    world = loaded(source, tmp_path / "killed", count)

    assert kill_in_turn(kills, source, world) == statuses
    if statuses[-1]:
        world.step(shards=2)  # in this process, which costs no start of Spark

    assert world.digest() == undisturbed.digest()
    assert world.task("k/totals").documents_in == count
