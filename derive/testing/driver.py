"""Running catalog tests: each test gets an empty data folder, three shards a task, and a clock that it moves itself."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from derive.document.key import compile_key
from derive.engine.executor import InProcessExecutor
from derive.engine.log import Entry, recent_entries
from derive.engine.run import Run
from derive.errors import FlowError, TaskError
from derive.position import Position
from derive.protocol.specs import CatalogSpec, Document, IngestStep, TestSpec, VerifyStep
from derive.reduce.combiner import Combiner
from derive.storage.contents import ReadOptions, read_rows, reduce_in_memory
from derive.storage.frontier import tick_end
from derive.storage.ingest import Ingestion
from derive.storage.store import Store
from derive.storage.texts import parse_texts
from derive.testing.diff import Difference, differences
from derive.testing.pairing import pair_documents

SHARDS = 3
"""Shards of each task, so that tests exercise shuffles."""

START = 1_704_067_200_000_000
"""When every test begins: 2024-01-01T00:00:00Z, in microseconds."""

_MOST_STEPS = 10_000
_MOST_SAID = 1 << 20
"""Bytes of a derivation's log that a test shows."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One document of a verify step that is not as expected.

    Attributes:
        key: the document's key, as JSON; where none is known, its number in the step, such as `document 2`.
        differences: where it differs; an expected or actual `MISSING` at the root says that it is missing as a whole.
    """

    key: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a test failed.

    Attributes:
        step: which step, from 1.
        what: what the step does, such as `verify acmeBank/balances`.
        position: where the step is written.
        mismatches: for a verify step, the documents that differ.
        error: for any other failure, its cause.
    """

    step: int
    what: str
    position: Position
    mismatches: tuple[Mismatch, ...] = ()
    error: FlowError | None = None


@dataclass(frozen=True, slots=True)
class TestResult:
    """Outcome of one test.

    Attributes:
        test: the test.
        seconds: how long it took.
        failure: why it failed; None if it passed.
        said: what lambdas said, by derivation and then in order.
    """

    __test__ = False  # for pytest, which collects classes by this name

    test: TestSpec
    seconds: float
    failure: Failure | None
    said: tuple[Entry, ...] = ()


def run_tests(
    catalog: CatalogSpec, names: Sequence[str] | None = None, *, strict: bool = False
) -> Iterator[TestResult]:
    """Run the catalog's tests in the order in which they are written.

    Args:
        catalog: holds tests and what they test.
        names: which tests; None for all.
        strict: refuse properties and items that a verify step does not mention.
    """
    chosen = [test for name, test in catalog.tests.items() if names is None or name in names]
    for test in sorted(chosen, key=lambda each: each.position):
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="flowctl-test-") as folder:
            failure = _Driver(catalog, Path(folder), strict=strict).run(test)
            said = tuple(
                entry
                for name in catalog.derivations
                for entry in recent_entries(Path(folder), name, _MOST_SAID)
                if entry.get("by") == "lambda"
            )
        yield TestResult(test, time.perf_counter() - begun, failure, said)


class _Driver:
    """One test at work."""

    def __init__(self, catalog: CatalogSpec, folder: Path, *, strict: bool) -> None:
        self._catalog = catalog
        self._strict = strict
        self._now = START
        self._store = Store(folder, wall=lambda: self._now, durable=False)
        self._run = Run(catalog, self._store, InProcessExecutor(), shards=SHARDS)

    def run(self, test: TestSpec) -> Failure | None:
        try:
            for number, step in enumerate(test.steps, start=1):
                failure = self._step(number, step)
                if failure:
                    return failure
            last = test.steps[-1].position if test.steps else test.position
            return self._attempt(len(test.steps), "the reads that are still delayed", last, self._drain)
        finally:
            self._run.close()
            self._store.close()

    def _step(self, number: int, step: IngestStep | VerifyStep) -> Failure | None:
        if isinstance(step, IngestStep):
            return self._attempt(number, f"ingest {step.collection}", step.position, lambda: self._ingest(step))
        what = f"verify {step.collection}"
        failure = self._attempt(number, what, step.position, lambda: self._fast_forward(step.collection))
        if failure:
            return failure
        mismatches = tuple(self._compare(step))
        return Failure(number, what, step.position, mismatches) if mismatches else None

    @staticmethod
    def _attempt(number: int, what: str, position: Position, action: Callable[[], None]) -> Failure | None:
        try:
            action()
        except FlowError as error:
            return Failure(number, what, position, error=error)
        return None

    def _ingest(self, step: IngestStep) -> None:
        spec = self._catalog.collections[step.collection]
        combiner = Combiner(spec.write_schema, name=spec.name)
        pack = compile_key(spec.key, spec.key_defaults)
        groups: dict[bytes, list[Document]] = {}
        for document in step.documents:
            groups.setdefault(pack(document), []).append(document)
        documents = [each for key in sorted(groups) for each in combiner.partial(groups[key])]
        Ingestion(self._store, spec).load(f"documents for {spec.name}", enumerate(documents, start=1))
        self._settle()

    def _step_tasks(self) -> None:
        self._run.step()
        for task in self._run.tasks.values():
            if task.error:
                raise task.error

    def _settle(self) -> None:
        """Process everything that waits for nothing but the end of a tick."""
        for _ in range(_MOST_STEPS):
            self._step_tasks()
            soon = [each for each in self._run.waiting() if each.delay == 0 or each.due <= self._now]
            if not soon:
                return
            self._now = max(self._now, min(self._end(each.task, each.due) for each in soon))
        raise TaskError(f"feedback has not come to rest after {_MOST_STEPS} ticks")

    def _fast_forward(self, collection: str) -> None:
        """Let time pass until no delayed read can change a collection any more."""
        while True:
            self._settle()
            delayed = [each for each in self._run.waiting() if self._reaches(each.task, collection)]
            if not delayed:
                return
            self._now = min(self._end(each.task, each.due) for each in delayed)

    def _drain(self) -> None:
        while True:
            self._settle()
            waiting = self._run.waiting()
            if not waiting:
                return
            self._now = min(self._end(each.task, each.due) for each in waiting)

    def _end(self, task: str, due: int) -> int:
        return tick_end(due, self._catalog.derivations[task].tick)

    def _reaches(self, task: str, collection: str) -> bool:
        """Whether what `task` publishes can change `collection`, directly or through others."""
        seen = set()
        pending = [task]
        while pending:
            name = pending.pop()
            if name == collection:
                return True
            if name not in seen:
                seen.add(name)
                pending += [each.name for each in self._catalog.derivations.values() if name in each.sources]
        return False

    def _compare(self, step: VerifyStep) -> Iterator[Mismatch]:
        spec = self._catalog.collections[step.collection]
        self._run.seal()
        rows = read_rows(self._store, spec, ReadOptions(selector=step.selector))
        pairs = (
            pair
            for batch in rows
            for pair in zip(batch.column(3).to_pylist(), parse_texts(batch.column(4)), strict=True)
        )
        for each in pair_documents(spec, step.documents, dict(reduce_in_memory(spec, pairs))):
            found = differences(each.expected, each.actual, strict=self._strict)
            if found:
                yield Mismatch(each.name, tuple(found))
