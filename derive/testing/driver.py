"""Run catalog tests: each test has an empty data folder, three shards a task, and a clock that the test moves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from derive.contents.reads import ReadOptions
from derive.contents.reduced import reduced_documents
from derive.document.key import compile_key
from derive.errors import FlowError
from derive.position import Position
from derive.protocol.specs import (
    AdvanceStep,
    CatalogSpec,
    Document,
    IngestStep,
    StepTime,
    TestSpec,
    TestStep,
    VerifyStep,
    show_offset,
)
from derive.reduce.combiner import Combiner
from derive.storage.ingest import Ingestion
from derive.storage.metadata.owner import Door
from derive.storage.task_log import Entry, recent_entries
from derive.testing.diff import Difference, differences, pair_documents
from derive.testing.virtual_time import VirtualTime

_MOST_SAID = 1 << 20
"""Limit for the part of a derivation's log that a test shows, in bytes."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One document of a verify step that is not as expected.

    Attributes:
        key: the document's key, as JSON; for a document without a key its number in the step, such as `document 2`.
        differences: locations of the differences; `MISSING` at the root means that the whole document is missing.
    """

    key: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Cause of a failed test.

    Attributes:
        step: number of the failed step, from 1.
        description: action of the step, such as `verify acmeBank/balances`.
        position: position of the step in the catalog.
        mismatches: for a verify step, the documents that differ.
        error: for any other failure, the error.
        to_come: for a verify step at a time, the documents that arrive later, in words.
    """

    step: int
    description: str
    position: Position
    mismatches: tuple[Mismatch, ...] = ()
    error: FlowError | None = None
    to_come: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TestResult:
    """Outcome of one test.

    Attributes:
        test: the test.
        seconds: duration of the test.
        failure: cause of the failure; None if the test passed.
        said: log entries of lambdas, by derivation and then in order.
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
        catalog: the tests, and the derivations that they test.
        names: names of tests to run; None for all.
        strict: refuse properties and items that a verify step does not mention.
    """
    chosen = [test for name, test in catalog.tests.items() if names is None or name in names]
    for test in sorted(chosen, key=lambda test: test.position):
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="flowctl-test-") as folder:
            failure = _Driver(catalog, Path(folder), test, strict=strict).run()
            said = tuple(
                entry
                for name in catalog.derivations
                for entry in recent_entries(Path(folder), name, _MOST_SAID)
                if entry.get("by") == "lambda"
            )
        yield TestResult(test, time.perf_counter() - begun, failure, said)


class _Driver:
    """Runs one test."""

    def __init__(self, catalog: CatalogSpec, folder: Path, test: TestSpec, *, strict: bool) -> None:
        self._catalog = catalog
        self._test = test
        self._strict = strict
        self._time = VirtualTime(catalog, folder, test)

    def run(self) -> Failure | None:
        test = self._test
        try:
            for number, step in enumerate(test.steps, start=1):
                failure = self._step(number, step)
                if failure:
                    return failure
            last = test.steps[-1].position if test.steps else test.position
            if test.end is None:
                description, finish = "the reads that are still delayed", self._time.fast_forward
            else:
                description, finish = "the end of the test", partial(self._time.pass_until, test.end)
            return self._attempt(len(test.steps), description, last, finish)
        finally:
            self._time.close()

    def _step(self, number: int, step: TestStep) -> Failure | None:
        if isinstance(step, IngestStep):
            return self._attempt(number, self._describe("ingest", step), step.position, lambda: self._ingest(step))
        if isinstance(step, AdvanceStep):
            description = f"advance to {self._offset(step.time)}"
            return self._attempt(number, description, step.position, lambda: self._time.pass_until(step.time.wall))
        description = self._describe("verify", step)
        failure = self._attempt(number, description, step.position, lambda: self._await(step))
        if failure:
            return failure
        mismatches = tuple(self._compare(step))
        if not mismatches:
            return None
        to_come = tuple(self._time.to_come(step.collection)) if step.time else ()
        return Failure(number, description, step.position, mismatches, to_come=to_come)

    def _describe(self, verb: str, step: IngestStep | VerifyStep) -> str:
        return f"{verb} {step.collection}" + (f" at {self._offset(step.time)}" if step.time else "")

    def _offset(self, time: StepTime) -> str:
        return show_offset(time.present, self._test.begin)

    @staticmethod
    def _attempt(number: int, description: str, position: Position, action: Callable[[], None]) -> Failure | None:
        try:
            action()
        except FlowError as error:
            return Failure(number, description, position, error=error)
        return None

    def _ingest(self, step: IngestStep) -> None:
        if step.time:
            self._time.pass_until(step.time.wall)
        spec = self._catalog.collections[step.collection]
        combiner = Combiner(spec.write_schema, name=spec.name)
        pack = compile_key(spec.key, spec.key_defaults)
        groups: dict[bytes, list[Document]] = {}
        for document in step.documents:
            groups.setdefault(pack(document), []).append(document)
        documents = [document for key in sorted(groups) for document in combiner.partial(groups[key])]
        ingestion = Ingestion(self._time.store, spec, door=Door.TEST)
        ingestion.load(f"documents for {spec.name}", enumerate(documents, start=1))
        if not step.time:
            self._time.end_tick(spec.name)
            self._time.settle()

    def _await(self, step: VerifyStep) -> None:
        """Advance time until the step's collection is complete at the time of the step."""
        if step.time:
            self._time.pass_until(step.time.wall)
        else:
            self._time.fast_forward(step.collection)

    def _compare(self, step: VerifyStep) -> Iterator[Mismatch]:
        spec = self._catalog.collections[step.collection]
        self._time.run.seal()
        parts = reduced_documents(self._time.store, spec, ReadOptions(selector=step.selector))
        actual = {key: document for part in parts for key, document in part.pairs()}
        for comparison in pair_documents(spec, step.documents, actual):
            faults = differences(comparison.expected, comparison.actual, strict=self._strict)
            if faults:
                yield Mismatch(comparison.name, tuple(faults))
