"""Virtual time: run the derivations of a test while its wall clock advances.

The clock visits every time at which a derivation has work, so that transactions equal those of a continuous run. Only
derivations upstream of a verified collection take part.
"""

from __future__ import annotations

from pathlib import Path

from derive.catalog.rules.lineage import upstream
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import PendingDocuments
from derive.engine.task_reconciler import open_run
from derive.errors import TaskError
from derive.protocol.specs import CatalogSpec, TestSpec, show_offset
from derive.storage.store import Store
from derive.time.frontier import tick_end

SHARDS = 3
"""Shards of each task, so that tests exercise shuffles."""


class VirtualTime:
    """A data folder with its own wall clock, and the derivations of one test.

    Args:
        catalog: the catalog of the test.
        folder: the data folder.
        test: the test. Derivations upstream of its verified collections take part, or all if it verifies nothing.
        most_ticks: limit for consecutive ticks with documents within one step.

    Attributes:
        store: store of the data folder.
        run: run of the participating derivations.
    """

    def __init__(self, catalog: CatalogSpec, folder: Path, test: TestSpec, most_ticks: int = 10_000) -> None:
        self._most_ticks = most_ticks
        self._begin = self._now = test.begin
        self._ticks = {name: derivation.tick for name, derivation in catalog.derivations.items()}
        self._reads = {name: derivation.sources for name, derivation in catalog.derivations.items()}
        tasks = sorted(upstream(test.verified, self._reads)) if test.verified else list(catalog.derivations)
        self.store = Store(folder, wall=lambda: self._now, durable=False)
        self.run = open_run(catalog, self.store, InProcessExecutor(), tasks=tasks, shards=SHARDS)

    def close(self) -> None:
        """Release the data folder."""
        self.run.close()
        self.store.close()

    def pass_until(self, wall: int) -> None:
        """Advance time to `wall`, and process all documents that are due before."""
        for _ in range(self._most_ticks):
            self._step()
            if self._now >= wall:
                return
            ends = [tick_end(waiting.due, self._ticks[waiting.task]) for waiting in self.run.waiting()]
            self._now = min([wall, *(end for end in ends if end > self._now)])
        reached = show_offset(self._now, self._begin)
        raise TaskError(
            f"{self._most_ticks} ticks with documents have passed, but the test has only reached {reached}",
            hint="advance by less, unless a derivation feeds back without end",
        )

    def settle(self) -> None:
        """Process all documents that wait only for the end of a tick."""
        for _ in range(self._most_ticks):
            self._step()
            waiting = self.run.waiting()
            soon = [reads for reads in waiting if reads.delay == 0 or reads.due <= self._now]
            if not soon:
                return
            self._now = min(map(self._end, soon))
        raise TaskError(f"feedback has not ended after {self._most_ticks} ticks")

    def end_tick(self, collection: str) -> None:
        """Advance time to the end of the present tick of a derived collection; do nothing for other collections."""
        if collection in self._ticks:
            self._now = tick_end(self._now, self._ticks[collection])

    def fast_forward(self, collection: str | None = None) -> None:
        """Advance time until no delayed read can change a collection, or any collection if None."""
        while True:
            self.settle()
            delayed = self._reaching(collection)
            if not delayed:
                return
            self._now = min(map(self._end, delayed))

    def to_come(self, collection: str) -> list[str]:
        """Return descriptions of the waiting documents that will reach a collection later, ordered by time."""
        return [
            self._described(waiting) for waiting in sorted(self._reaching(collection), key=lambda waiting: waiting.due)
        ]

    def _described(self, waiting: PendingDocuments) -> str:
        due = show_offset(waiting.due - (waiting.due - self._begin) % 1_000_000, self._begin)
        count = f"1 document at {due}" if waiting.documents == 1 else f"{waiting.documents} documents from {due} on"
        return f"{count}, through '{waiting.transform}' of {waiting.task}"

    def _step(self) -> None:
        self.run.step()
        for task in self.run.tasks.values():
            if task.error:
                raise task.error

    def _end(self, waiting: PendingDocuments) -> int:
        """Return the end of the tick in which the read is due, or of the present tick if that is later."""
        return tick_end(max(waiting.due, self._now), self._ticks[waiting.task])

    def _reaching(self, collection: str | None) -> list[PendingDocuments]:
        waiting = self.run.waiting()
        if collection is None:
            return waiting
        tasks = upstream([collection], self._reads)
        return [reads for reads in waiting if reads.task in tasks]
