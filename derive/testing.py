"""Catalog tests: `tests:` stanzas on the in-process executor, in virtual time.

An expected document with all properties of the key is paired with the actual document of this key. The other expected
documents are paired with the remaining actual documents, one after the other, in key order.

The clock stops at every time at which a derivation has work, so transactions are the same as in a continuous run. Only
derivations upstream of a verified collection take part.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from urllib.parse import quote

from derive.catalog.graph import tasks_leading_to, tasks_of, upstream
from derive.catalog.rules.steps import BEGIN
from derive.contents.reads import ReadOptions
from derive.contents.reduced import reduced_documents
from derive.coverage import Coverage
from derive.document.clock import parse_duration, parse_rfc3339
from derive.document.exact import dump_exact, parse_exact
from derive.document.key import absent_fields, compile_key, show_key
from derive.document.pointer import JSON, MISSING, compile_pointer, escape
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import PendingDocuments
from derive.engine.task_reconciler import open_run
from derive.errors import DocumentError, FlowError, TaskError, UsageError
from derive.plural import counted
from derive.position import Position
from derive.protocol.derive import StartsAhead
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import (
    AdvanceStep,
    CatalogSpec,
    CollectionSpec,
    Document,
    IngestStep,
    SelectorSpec,
    StepTime,
    TestSpec,
    TestStep,
    VerifyStep,
    show_offset,
)
from derive.reduce.combiner import Combiner
from derive.scratch import scratch_folder
from derive.shard.session import observing
from derive.stoppable_jobs import StoppableJobs, Stops
from derive.storage.ingest import Ingestion
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.task_log import Entry, recent_entries
from derive.time import tick_end


@dataclass(frozen=True, slots=True)
class Difference:
    """One location at which two documents differ.

    Attributes:
        pointer: JSON pointer.
        expected: the expected value there, or `MISSING`.
        actual: the actual value there, or `MISSING`.
    """

    pointer: str
    expected: JSON
    actual: JSON


def differences(expected: JSON, actual: JSON, *, strict: bool = False, pointer: str = "") -> list[Difference]:
    """Return the locations at which `actual` contradicts `expected`.

    Additional properties and additional last items of `actual` are differences only if `strict`. Numbers are equal if
    they differ only by rounding.

    >>> differences({"a": 1}, {"a": 2, "b": 3})
    [Difference(pointer='/a', expected=1, actual=2)]
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = sorted({*expected, *actual}) if strict else list(expected)
        pairs = [(escape(name), expected.get(name, MISSING), actual.get(name, MISSING)) for name in names]
    elif isinstance(expected, list) and isinstance(actual, list):
        length = max(len(expected), len(actual)) if strict else len(expected)
        pairs = [(str(index), _item(expected, index), _item(actual, index)) for index in range(length)]
    else:
        return [] if _equal(expected, actual) else [Difference(pointer, expected, actual)]
    return [
        difference
        for name, left, right in pairs
        for difference in differences(left, right, strict=strict, pointer=f"{pointer}/{name}")
    ]


def _item(values: list[JSON], index: int) -> JSON:
    return values[index] if index < len(values) else MISSING


def _equal(expected: JSON, actual: JSON) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, int) and isinstance(actual, int):
        return expected == actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        return expected == actual or abs(expected - actual) < 2.22e-16 * max(abs(expected), abs(actual))
    return type(expected) is type(actual) and bool(expected == actual)


@dataclass(frozen=True, slots=True)
class Pair:
    """An expected document and its actual document.

    Attributes:
        name: the key, as JSON; for an expected document without a key its number in the step.
        expected: the expected document, or `MISSING`.
        actual: the actual document, or `MISSING`.
    """

    name: str
    expected: JSON
    actual: JSON


def pair_documents(
    spec: CollectionSpec, expected: Sequence[Document], actual: Mapping[bytes, Document]
) -> Iterator[Pair]:
    """Yield a pair for each document, in key order; unpaired expected documents without a key come last.

    Args:
        spec: the collection.
        expected: documents of a verify step, as they are written.
        actual: documents of the collection, by packed key. A second expected document of a key is paired with
            `MISSING`.
    """
    pack = compile_key(spec.key, spec.key_defaults)
    pointers = [compile_pointer(pointer) for pointer in spec.key]
    by_key: dict[bytes, list[JSON]] = {}
    keyless: list[tuple[int, Document]] = []
    for number, document in enumerate(expected, start=1):
        if any(get(document) is MISSING for get in pointers):
            keyless.append((number, document))
        else:
            by_key.setdefault(pack(document), []).append(document)
    in_order = iter(keyless)
    for key in sorted({*actual, *by_key}):
        first, *repeated = by_key.get(key) or [next(in_order, (0, MISSING))[1]]
        yield Pair(show_key(key), first, actual.get(key, MISSING))
        for document in repeated:
            yield Pair(show_key(key), document, MISSING)
    for number, document in in_order:
        yield Pair(f"document {number}", document, MISSING)


SHARDS = 3
"""Number of shards of each task; with several shards, tests also test shuffles."""


class VirtualTime:
    """A data folder with its own wall clock, and derivations that run in it.

    Args:
        catalog: the catalog.
        folder: the data folder.
        begin: the first time, microseconds.
        tasks: names of the derivations that take part.
        shards: number of shards of each task.
        most_ticks: limit for consecutive ticks with documents within one step.

    Attributes:
        store: store of the data folder.
        run: run of the participating derivations.
    """

    def __init__(
        self,
        catalog: CatalogSpec,
        folder: Path,
        begin: int,
        tasks: Sequence[str],
        *,
        shards: int = SHARDS,
        most_ticks: int = 10_000,
    ) -> None:
        self._most_ticks = most_ticks
        self._begin = self._now = begin
        self._ticks = {name: derivation.tick for name, derivation in catalog.derivations.items()}
        self._reads = {name: derivation.sources for name, derivation in catalog.derivations.items()}
        self.store = Store(folder, wall=lambda: self._now, durable=False)
        self._executor = InProcessExecutor()
        self.run = open_run(catalog, self.store, self._executor, tasks=tasks, shards=shards)

    def close(self) -> None:
        """Release the data folder."""
        self.run.close()
        self.store.close()

    def stop(self) -> None:
        """Make running and later transactions fail."""
        self._executor.cancel()

    def pass_until(self, wall: int) -> None:
        """Advance time to `wall`, and process all documents that are due before it."""
        for _ in range(self._most_ticks):
            self._step()
            if self._now >= wall:
                return
            ends = [tick_end(waiting.due, self._ticks[waiting.task]) for waiting in self.run.waiting()]
            self._now = min([wall, *(end for end in ends if end > self._now)])
        reached = show_offset(self._now, self._begin)
        raise TaskError(
            f"after {counted(self._most_ticks, 'tick')} with documents, the test has only reached {reached}",
            hint="advance by a shorter time; or check whether a derivation feeds back without end",
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
        raise TaskError(
            f"feedback has not ended after {counted(self._most_ticks, 'tick')}",
            hint="check whether a derivation feeds back without end",
        )

    def end_tick(self, collection: str) -> None:
        """Advance time to the end of the present tick of a derived collection; do nothing for other collections."""
        if collection in self._ticks:
            self._now = tick_end(self._now, self._ticks[collection])

    def fast_forward(self, collection: str | None = None) -> None:
        """Advance time until no delayed read can change a collection (None for all collections)."""
        while True:
            self.settle()
            delayed = self._reaching(collection)
            if not delayed:
                return
            self._now = min(map(self._end, delayed))

    def to_come(self, collection: str) -> list[str]:
        """Return descriptions of the waiting documents that a collection receives later, ordered by time."""
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
        """Return the end of the tick in which the read is due; at least the end of the present tick."""
        return tick_end(max(waiting.due, self._now), self._ticks[waiting.task])

    def _reaching(self, collection: str | None) -> list[PendingDocuments]:
        waiting = self.run.waiting()
        if collection is None:
            return waiting
        tasks = upstream([collection], self._reads)
        return [reads for reads in waiting if reads.task in tasks]


_MEMORY, _LEAST_MEMORY = "/dev/shm", 1 << 30
"""A folder in memory, and its free bytes from which tests use it."""

_MOST_SAID = 1 << 20
"""Limit for the part of a derivation's log that a test shows, in bytes."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One document of a verify step that is not as expected.

    Attributes:
        key: the document's key, as JSON; for a document without a key its number in the step, such as `document 2`.
        differences: locations of the differences; `MISSING` at the root means that the whole document is missing.
        unset: pointers of the key's fields that a document lacks that the test produced.
    """

    key: str
    differences: tuple[Difference, ...]
    unset: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the differences as lines of text."""
        lines = []
        for difference in self.differences:
            if difference.pointer == "" and MISSING in (difference.expected, difference.actual):
                missing = difference.actual is MISSING
                document = dump_exact(difference.expected if missing else difference.actual).decode()
                text = "is missing; expected" if missing else "is not expected; the test produced"
                lines.append(f"  {self.key}  {text} {document}")
                if self.unset and not missing:
                    shown = f"{', '.join(self.unset)} of the key {'has' if len(self.unset) == 1 else 'have'} no value"
                    lines.append(f"  {' ' * len(self.key)}  {shown}: publish one, and name it in 'required'")
                continue
            expected, actual = (
                "nothing" if value is MISSING else dump_exact(value).decode()
                for value in (difference.expected, difference.actual)
            )
            lines.append(f"  {self.key}  {difference.pointer}   expected  {expected}")
            lines.append(f"  {' ' * len(self.key)}  {' ' * len(difference.pointer)}   actual    {actual}")
        return lines


def publish(time: VirtualTime, spec: CollectionSpec, documents: Sequence[Document]) -> None:
    """Publish documents together, in the order of the key; documents of one key are combined first."""
    combiner = Combiner(spec.write_schema, name=spec.name)
    pack = compile_key(spec.key, spec.key_defaults)
    groups: dict[bytes, list[Document]] = {}
    for document in documents:
        groups.setdefault(pack(document), []).append(document)
    combined = [document for key in sorted(groups) for document in combiner.partial(groups[key])]
    Ingestion(time.store, spec, door=Door.TEST).load(f"documents for {spec.name}", enumerate(combined, start=1))


def contents(time: VirtualTime, spec: CollectionSpec, selector: SelectorSpec | None = None) -> dict[bytes, Document]:
    """Return the reduced documents of a collection by their packed keys."""
    time.run.seal()
    parts = reduced_documents(time.store, spec, ReadOptions(selector=selector or SelectorSpec()))
    return {key: document for part in parts for key, document in part.pairs()}


def mismatches(
    spec: CollectionSpec, expected: Sequence[Document], actual: Mapping[bytes, Document], *, strict: bool
) -> Iterator[Mismatch]:
    """Yield the documents that are not as expected, in the order of `pair_documents`."""
    for comparison in pair_documents(spec, expected, actual):
        faults = differences(comparison.expected, comparison.actual, strict=strict)
        if faults:
            is_produced = comparison.actual is not MISSING
            unset = absent_fields(spec.key, spec.key_defaults, comparison.actual) if is_produced else ()
            yield Mismatch(comparison.name, tuple(faults), tuple(unset))


class Snapshots:
    """The contents that verify steps have seen, as files of JSON Lines, which later runs are compared with.

    Args:
        folder: folder of the files; `<test>/<step>.<collection>.jsonl` with escapes for unusual characters.
        is_updated: whether changed contents replace the files.

    Attributes:
        written: paths of the files that were written.
    """

    def __init__(self, folder: Path, *, is_updated: bool) -> None:
        self._folder, self._is_updated = folder, is_updated
        self.written: list[Path] = []

    def path(self, test: str, step: int, collection: str) -> Path:
        """Return the path of the contents of a step, below the folder for every name of a test."""
        parts = [quote(part, safe=" ").replace(".", "%2E") or "%" for part in test.split("/")]
        return self._folder.joinpath(*parts, f"{step}.{quote(collection, safe='')}.jsonl")

    def compare(self, path: Path, spec: CollectionSpec, actual: Mapping[bytes, Document]) -> list[Mismatch]:
        """Return the differences between contents and a file; write the file if it is missing or updated.

        Raises:
            UsageError: the file cannot be read or written.
            DocumentError: a line of the file is not JSON.
        """
        text = "".join(f"{dump_exact(actual[key]).decode()}\n" for key in sorted(actual))
        try:
            former = path.read_text(encoding="utf-8") if path.exists() else None
            if former == text:
                return []
            if former is None or self._is_updated:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                self.written.append(path)
                return []
        except OSError as exc:
            raise UsageError(f"cannot use the snapshot {path}: {exc.strerror}") from exc
        expected = [_parsed(line, f"{path}:{number}") for number, line in enumerate(former.splitlines(), start=1)]
        return list(mismatches(spec, expected, actual, strict=True))


def _parsed(line: str, position: str) -> Document:
    try:
        document = parse_exact(line.encode())
    except ValueError as exc:
        raise DocumentError(f"{position}: not JSON: {exc}", hint="write the snapshot again: --update") from exc
    if not isinstance(document, dict):
        raise DocumentError(f"{position}: not a JSON object", hint="write the snapshot again: --update")
    return document


@dataclass(frozen=True, slots=True)
class Failure:
    """Cause of a failed test.

    Attributes:
        step: number of the failed step, from 1.
        description: action of the step, such as `verify acmeBank/balances`.
        position: position of the step in the catalog.
        mismatches: for a verify step, the documents that differ.
        error: for any other failure, the error.
        to_come: for a verify step with a time, a text about the documents that arrive later.
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
        messages: log entries of lambdas, by derivation and then in order.
    """

    __test__ = False  # pytest would collect a class of this name as a test

    test: TestSpec
    seconds: float
    failure: Failure | None
    messages: tuple[Entry, ...] = ()


def run_tests(
    catalog: CatalogSpec,
    names: Sequence[str] | None = None,
    *,
    strict: bool = False,
    jobs: int = 1,
    snapshots: Snapshots | None = None,
    coverage: Coverage | None = None,
) -> Generator[TestResult, None, None]:
    """Run the catalog's tests, and yield their results in the order in which the tests are written.

    Args:
        catalog: the tests, and the derivations that they test.
        names: names of tests to run; None for all.
        strict: whether to refuse properties and items that a verify step does not mention.
        jobs: number of tests that run at the same time. Tests with processes of modules begin first, because they
            wait most of their time.
        snapshots: earlier contents that verify steps are compared with, too; None for none.
        coverage: receives the transforms and branches that documents reach; None to measure nothing.
    """
    chosen = [test for name, test in catalog.tests.items() if names is None or name in names]
    chosen.sort(key=lambda test: test.position)
    run = partial(run_test, catalog, strict=strict, snapshots=snapshots, coverage=coverage)
    if jobs == 1 or len(chosen) < 2:
        yield from map(run, chosen)
    else:
        order = sorted(range(len(chosen)), key=lambda index: not starts_processes(catalog, chosen[index]))
        yield from StoppableJobs(chosen, lambda test, stops: run(test, stops=stops), order).results(jobs)


def starts_processes(catalog: CatalogSpec, test: TestSpec) -> bool:
    """Return whether a derivation of a test has lambdas in a process of their own."""
    specs = [catalog.derivations[name] for name in tasks_of(catalog, test) if name in catalog.derivations]
    return any(isinstance(find_runtime(spec.connector), StartsAhead) for spec in specs)


def run_test(
    catalog: CatalogSpec,
    test: TestSpec,
    *,
    strict: bool = False,
    snapshots: Snapshots | None = None,
    coverage: Coverage | None = None,
    stops: Stops | None = None,
) -> TestResult:
    """Run one test, and return its result.

    Args:
        catalog: the catalog.
        test: the test.
        strict: as for `run_tests`.
        snapshots: as for `run_tests`.
        coverage: as for `run_tests`.
        stops: has a function that stops the test and removes its data folder while the test runs.
    """
    begun = time.perf_counter()
    measured = nullcontext() if coverage is None else observing(coverage)
    with scratch_folder(_memory()) as folder:
        driver = _Driver(catalog, folder, test, strict=strict, snapshots=snapshots)
        with measured, _stoppable(driver, folder, stops):
            failure = driver.run()
        messages = tuple(
            entry
            for name in catalog.derivations
            for entry in recent_entries(folder, name, _MOST_SAID)
            if entry.get("by") == "lambda"
        )
    return TestResult(test, time.perf_counter() - begun, failure, messages)


@contextmanager
def _stoppable(driver: _Driver, folder: Path, stops: Stops | None) -> Iterator[None]:
    """List a function that stops a test while the block runs."""

    def stop() -> None:
        driver.stop()
        shutil.rmtree(folder, ignore_errors=True)

    if stops is not None:
        stops.add(stop)
    try:
        yield
    finally:
        if stops is not None:
            stops.discard(stop)


@cache
def _memory() -> str | None:
    """Return a folder in memory for data folders, which are deleted at once; None for the folder of temporary files.

    A file in memory needs no wait for a disk.
    """
    with suppress(OSError):
        free = shutil.disk_usage(_MEMORY).free
        if "TMPDIR" not in os.environ and free >= _LEAST_MEMORY and os.access(_MEMORY, os.W_OK | os.X_OK):
            return _MEMORY
    return None


class _Driver:
    """Runs one test."""

    def __init__(
        self, catalog: CatalogSpec, folder: Path, test: TestSpec, *, strict: bool, snapshots: Snapshots | None
    ) -> None:
        self._catalog, self._snapshots = catalog, snapshots
        self._test = test
        self._strict = strict
        self._time = VirtualTime(catalog, folder, test.begin, tasks_of(catalog, test))

    def stop(self) -> None:
        """Make the running transactions of the test fail."""
        self._time.stop()

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
        spec = self._catalog.collections[step.collection]
        actual = contents(self._time, spec, step.selector)
        faults = tuple(mismatches(spec, step.documents, actual, strict=self._strict))
        if not faults and self._snapshots is not None:
            path = self._snapshots.path(self._test.name, number, step.collection)
            description += f" · {path}"
            try:
                faults = tuple(self._snapshots.compare(path, spec, actual))
            except FlowError as error:
                return Failure(number, description, step.position, error=error)
        if not faults:
            return None
        to_come = tuple(self._time.to_come(step.collection)) if step.time else ()
        return Failure(number, description, step.position, faults, to_come=to_come)

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
        publish(self._time, spec, step.documents)
        if not step.time:
            self._time.end_tick(spec.name)
            self._time.settle()

    def _await(self, step: VerifyStep) -> None:
        """Advance time until the step's collection is complete at the time of the step."""
        if step.time:
            self._time.pass_until(step.time.wall)
        else:
            self._time.fast_forward(step.collection)


class CatalogSession:
    """The collections of a catalog in a data folder of their own and in virtual time, for tests in Python.

    Without a beginning, every read delay expires before the contents of a collection are read. With a beginning, time
    passes only by `advance` and by the times of ingestions, as in a test of the catalog that sets the time.

    Args:
        catalog: the catalog.
        folder: a new data folder.
        begin: beginning of the time, RFC 3339; None for a session without times.
        tasks: names of the derivations that take part; None for all.
        shards: number of shards of each derivation.

    Attributes:
        catalog: the catalog.
        is_timed: whether time passes only by `advance` and by the times of ingestions.
    """

    def __init__(
        self,
        catalog: CatalogSpec,
        folder: Path,
        *,
        begin: str | None = None,
        tasks: Sequence[str] | None = None,
        shards: int = SHARDS,
    ) -> None:
        self.catalog = catalog
        self.is_timed = begin is not None
        self._begin = self._present = self._wall = BEGIN if begin is None else parse_rfc3339(begin)
        self._latest = -1  # timestamp of the last document
        self._time = VirtualTime(
            catalog, folder, self._begin, list(catalog.derivations) if tasks is None else tasks, shards=shards
        )

    def close(self) -> None:
        """Release the data folder."""
        self._time.close()

    def ingest(self, collection: str, documents: Sequence[Document], *, at: str | None = None) -> None:
        """Publish documents into a collection, and process them.

        Args:
            collection: name of the collection.
            documents: the documents.
            at: in a session with a beginning, the time of the documents: RFC 3339, or an offset such as `+20m` from
                the beginning; None for the present.

        Raises:
            UsageError: the collection is unknown, or time would go back.
            DocumentError: a document is invalid.
            FlowError: a derivation has failed.
        """
        spec = self.catalog.find_collection(collection)
        if at is not None:
            self._require_times("at")
            clock = self._begin + parse_duration(at[1:]) if at.startswith("+") else parse_rfc3339(at)
            if clock < self._wall:
                reached = show_offset(self._wall, self._begin)
                raise UsageError(f"time cannot go back: 'at' is {at}, but the session is at {reached}")
            self._wall = clock
        self._present = self._wall
        if self.is_timed:
            self._time.pass_until(self._wall)
        publish(self._time, spec, documents)
        self._latest = max(self._wall, self._latest + 1) + len(documents) - 1
        if not self.is_timed:
            self._time.end_tick(collection)
            self._time.settle()

    def advance(self, duration: str) -> None:
        """Let time pass, such as `1h 30m`, in a session with a beginning."""
        self._require_times("advance")
        self._present += parse_duration(duration)
        self._wall = max(self._wall, self._present)
        self._time.pass_until(self._wall)

    def run(self, collection: str | None = None) -> None:
        """Process all documents that lead to a collection: all that are due, or all without a beginning."""
        if not self.is_timed:
            self._time.fast_forward(collection)
            return
        tasks = self.catalog.derivations if collection is None else tasks_leading_to(self.catalog, [collection])
        tick = math.lcm(*(self.catalog.derivations[task].tick for task in tasks))
        if self._latest >= 0:
            last = max(self._present, self._latest)
            self._wall = max(self._wall, last - last % tick + tick)
        self._time.pass_until(self._wall)

    def documents(self, collection: str) -> list[Document]:
        """Return the contents of a collection, one document for each key, in the order of the keys."""
        spec = self.catalog.find_collection(collection)
        self.run(collection)
        actual = contents(self._time, spec)
        return [actual[key] for key in sorted(actual)]

    def verify(self, collection: str, documents: Sequence[Document], *, strict: bool = False) -> None:
        """Compare the contents of a collection with expected documents, as a verify step of a catalog.

        Raises:
            AssertionError: documents differ; the text has each difference.
        """
        spec = self.catalog.find_collection(collection)
        self.run(collection)
        faults = list(mismatches(spec, documents, contents(self._time, spec), strict=strict))
        if faults:
            lines = [line for mismatch in faults for line in mismatch.lines()]
            raise AssertionError("\n".join([f"'{collection}' is not as expected:", *lines]))

    def _require_times(self, name: str) -> None:
        if not self.is_timed:
            raise UsageError(f"'{name}' needs a session with times", hint="open it with begin='2024-05-01T09:00:00Z'")
