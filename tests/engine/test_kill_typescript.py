"""A TypeScript derivation with state, killed in the middle of a transaction, derives the same bytes (law L2)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import write_catalog
from test_kill import Kill, kill_driver, kill_in_turn, kill_worker, loaded
from victims import deno_processes

pytestmark = [pytest.mark.spark, pytest.mark.deno]

COUNT = 60_000
CATALOG = """
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
      properties:
        sender: {type: string}
        total: {type: number, reduce: {strategy: sum}}
        count: {type: integer}
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


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalog(tmp_path_factory.mktemp("kill"), CATALOG, totals__ts=MODULE)


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    world = loaded(source, tmp_path_factory.mktemp("undisturbed"), COUNT)
    world.step(shards=1)
    return world.digest()


def kill_deno(process: subprocess.Popen[bytes]) -> None:
    victims = deno_processes(process.pid)
    assert victims, "no Deno is running"
    os.kill(random.choice(victims), signal.SIGKILL)


# What Deno did, the run does again, half as much at a time; and Spark runs a lost worker's part again: both end well.
@pytest.mark.parametrize(
    ("kills", "statuses"),
    [
        ([kill_driver, kill_deno], [-signal.SIGKILL, 0]),
        pytest.param([kill_driver, kill_worker], [-signal.SIGKILL, 0], marks=pytest.mark.torture),
    ],
)
def test_l2_killed_in_the_middle_and_run_again_gives_the_same_bytes(
    kills: list[Kill], statuses: list[int], source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    world = loaded(source, tmp_path, COUNT)

    assert kill_in_turn(kills, source, world) == statuses

    assert world.digest() == expected
    state = world.store.task("k/totals")
    assert state is not None
    assert state.documents_in == COUNT
