"""Warm rates: documents per second after start-up, beside the hand-written loop and peers.

flowctl runs on Spark with all cores, and in this process with one core, as `flowctl run` does for small work. The run
on Spark is between two rounds of the loop, so that other load falls on both; ratios compare with the loop's mean. A
first round in the same process does not count: it loads code, and Java compiles it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing

from bench import loop, peers
from bench.memory import PeakMemory
from bench.report import Column, Report, Value
from bench.transfers import CATALOG, Transfers
from derive.catalog import load
from derive.engine.executor import CostModel, Executor, HybridExecutor
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Committed
from derive.spark.executor import SparkExecutor
from derive.storage.store import Store

FLOORS = {
    "acmeBank/last-large-send": 1.8,
    "acmeBank/first-send": 1.5,
    "acmeBank/grouped-transfers": 1.2,
    "acmeBank/transfer-outcomes": 0.9,
    "acmeBank/balances": 1.1,
}
"""The derivations, and minimum ratios for a million transfers on two cores."""

FLOORS_HOLD_AT = 1_000_000
_READS = {"acmeBank/balances": "acmeBank/transfer-outcomes"}
"""Derivations that read another derivation; the others read transfers."""


class Timer:
    """Times the transactions of a run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def working(self, task: str, documents: int) -> None:
        """Do nothing: only committed transactions count."""

    def committed(self, task: str, done: Committed) -> None:
        """Add the seconds of a committed transaction."""
        self.seconds += done.seconds

    def failed(self, task: str, error: Exception) -> None:
        """Raise the error of a task."""
        raise error


def with_inputs(tasks: list[str]) -> list[str]:
    """Return derivations and their inputs, in execution order."""
    return [task for task in FLOORS if task in tasks or task in {_READS.get(name) for name in tasks}]


def measure(report: Report, sizes: list[Transfers], tasks: list[str], others: Sequence[peers.Peer]) -> PeakMemory:
    """Print the rates; return the peak memory of flowctl's processes."""
    columns = [Column("on Spark", ",.0f"), Column("ratio", width=7), Column("floor", width=7)]
    columns += [Column("in process", ",.0f"), Column("ratio here", width=12), Column("loop", ",.0f", 11)]
    columns += [Column(peer.name, ",.0f", 13) for peer in others]
    about = "Warm: documents a second; ratios are ours to the loop's, so more than 1 is faster"
    report.begin("warm", columns, about=about)
    peak = PeakMemory()
    with closing(SparkExecutor(None, sizes[0].folder / "spark.log")) as spark:
        spark.warm_up()
        for transfers in sizes:
            with _Rates(transfers, spark, peak) as rates:
                for task in with_inputs(tasks):
                    rates.report(report, task, peers.fit_for(others, task, transfers))
    return peak


class _Rates:
    """Rates for one number of transfers."""

    def __init__(self, transfers: Transfers, spark: SparkExecutor, peak: PeakMemory) -> None:
        self._transfers = transfers
        self._spark = spark
        self._peak = peak
        self._catalog = load(CATALOG)
        self._stack = ExitStack()

    def __enter__(self) -> _Rates:
        self._outputs = self._stack.enter_context(self._transfers.scratch())
        self._first, self._second, self._here = (
            self._stack.enter_context(closing(Store(self._stack.enter_context(self._transfers.ingested()))))
            for _ in range(3)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def report(self, report: Report, task: str, others: Sequence[peers.Peer]) -> None:
        """Print the row of a derivation."""
        count = self._transfers.count
        self._ours(task, self._first, self._spark)
        before = self._loop(task)
        with self._peak.watching():
            on_spark = self._ours(task, self._second, self._spark)
        theirs = (before + self._loop(task)) / 2
        here = self._ours(task, self._here, _in_process(self._spark))
        ratio = theirs / on_spark
        floor = FLOORS[task] if count == FLOORS_HOLD_AT else None
        values: dict[str, Value] = {"on Spark": count / on_spark, "ratio": ratio, "floor": floor}
        values |= {"in process": count / here, "ratio here": theirs / here, "loop": count / theirs}
        values |= {peer.name: count / self._peer(peer, task) for peer in others}
        miss = f"{ratio:.2f} of the loop's rate, not {floor}" if floor is not None and ratio < floor else None
        report.row(count, task.partition("/")[2], values, miss=miss)

    def _loop(self, task: str) -> float:
        """Return the seconds of the hand-written loop; its output is kept for derivations that read it."""
        source = _READS.get(task)
        lines = loop.output_of(source, self._outputs) if source else self._transfers.lines
        seconds = loop.derive(task, lines, self._outputs)
        for file in self._outputs.glob("*.db*"):
            file.unlink()
        return seconds

    def _ours(self, task: str, store: Store, executor: Executor) -> float:
        """Return the seconds of all transactions of a task."""
        timer = Timer()
        run = open_run(self._catalog, store, executor, cores=os.cpu_count() or 1, observer=timer, tasks=[task])
        run.until_idle()
        run.close()
        return timer.seconds

    def _peer(self, peer: peers.Peer, task: str) -> float:
        seconds, _ = peer.run(task, self._transfers, rounds=2).output.split()
        return float(seconds)


def _in_process(spark: SparkExecutor) -> Executor:
    """Return the executor of `flowctl run` without Spark, for any number of documents."""
    return HybridExecutor(spark, CostModel(cores=1, local_documents=sys.maxsize), lambda _: None)
