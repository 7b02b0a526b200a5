"""Warm rates: documents a second once everything has started, ours on Spark beside the hand-written loop and peers.

Each of ours runs between two rounds of its loop, so that what else the machine does falls on both; ratios are ours to
the loop's mean. Of peers it is the second round in one process that counts.
"""

from __future__ import annotations

import os
from contextlib import closing

from bench import loop, peers
from bench.memory import PeakMemory
from bench.report import Column, Report, Value
from bench.transfers import CATALOG, Transfers
from derive.catalog import load
from derive.engine.opening import open_run
from derive.engine.transaction import Committed
from derive.protocol.specs import CatalogSpec
from derive.spark.executor import SparkExecutor
from derive.storage.store import Store

FLOORS = {
    "acmeBank/last-large-send": 1.8,
    "acmeBank/first-send": 1.5,
    "acmeBank/grouped-transfers": 1.2,
    "acmeBank/transfer-outcomes": 0.9,
    "acmeBank/balances": 1.1,
}
"""The derivations, and the least ratios of a million transfers on two cores."""

FLOORS_HOLD_AT = 1_000_000
_READS = {"acmeBank/balances": "acmeBank/transfer-outcomes"}
"""What reads another derivation; the others read transfers."""


class Timer:
    """Times the transactions of a run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def working(self, task: str, documents: int) -> None:
        """Nothing to note."""

    def committed(self, task: str, done: Committed) -> None:
        """A transaction is committed."""
        self.seconds += done.seconds

    def failed(self, task: str, error: Exception) -> None:
        """Give up."""
        raise error


def with_inputs(tasks: list[str]) -> list[str]:
    """Derivations and what they read, in the order in which they run."""
    return [task for task in FLOORS if task in tasks or task in {_READS.get(name) for name in tasks}]


def measure(report: Report, sizes: list[Transfers], tasks: list[str]) -> PeakMemory:
    """Print the rates; returns how large our processes became."""
    columns = [Column("flowctl", ",.0f"), Column("loop", ",.0f"), Column("ratio", width=8), Column("floor", width=8)]
    columns += [Column(peer.name, ",.0f", 14) for peer in peers.installed()]
    report.begin(
        "warm", columns, about="Warm: documents a second; ratios are ours to the loop's, so more than 1 is faster"
    )
    peak = PeakMemory()
    catalog = load(CATALOG)
    with closing(SparkExecutor(None, sizes[0].folder / "spark.log")) as executor:
        executor.warm_up()
        for transfers in sizes:
            with transfers.ingested() as data, closing(Store(data)) as store:
                rates = _Rates(transfers, catalog, store, executor, peak)
                for task in with_inputs(tasks):
                    rates.report(report, task)
    return peak


class _Rates:
    """Rates of so many transfers."""

    def __init__(
        self, transfers: Transfers, catalog: CatalogSpec, store: Store, executor: SparkExecutor, peak: PeakMemory
    ) -> None:
        self._transfers = transfers
        self._catalog = catalog
        self._store = store
        self._executor = executor
        self._peak = peak
        self._outputs = store.root.parent / "loop"
        self._outputs.mkdir()

    def report(self, report: Report, task: str) -> None:
        """Print the row of a derivation."""
        count = self._transfers.count
        before = self._loop(task)
        ours = self._ours(task)
        theirs = (before + self._loop(task)) / 2
        ratio = theirs / ours
        floor = FLOORS[task] if count == FLOORS_HOLD_AT else None
        values: dict[str, Value] = {"flowctl": count / ours, "loop": count / theirs, "ratio": ratio, "floor": floor}
        values |= {peer.name: count / self._peer(peer, task) for peer in peers.fit_for(task, self._transfers)}
        miss = f"{ratio:.2f} of the loop's rate, not {floor}" if floor is not None and ratio < floor else None
        report.row(count, task.partition("/")[2], values, miss=miss)

    def _loop(self, task: str) -> float:
        """Seconds of the hand-written loop; what it publishes is kept for those that read it."""
        source = _READS.get(task)
        lines = loop.output_of(source, self._outputs) if source else self._transfers.lines
        seconds = loop.derive(task, lines, self._outputs)
        for file in self._outputs.glob("*.db*"):
            file.unlink()
        return seconds

    def _ours(self, task: str) -> float:
        """Seconds that all transactions of a task take on Spark, from what is stored to what is committed."""
        timer = Timer()
        cores = os.cpu_count() or 1
        with self._peak.watching():
            run = open_run(self._catalog, self._store, self._executor, cores=cores, observer=timer, tasks=[task])
            run.until_idle()
            run.close()
        return timer.seconds

    def _peer(self, peer: peers.Peer, task: str) -> float:
        seconds, _ = peer.run(task, self._transfers, rounds=2).output.split()
        return float(seconds)
