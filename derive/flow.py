"""The Python interface: documents are ingested, derived, read, followed and queried as `flowctl` does.

import derive

with derive.open(".flow", source="flow.yaml") as flow:
    flow.ingest("shop/orders", [{"id": 1, "customer": "ann", "amount": 20}])
    flow.run()
    flow.sql('SELECT customer, spent FROM "shop/spending" WHERE spent > $1', [10]).to_pandas()

Each method does what one command does, with the same rules beside other processes: `flowctl run`, `flowctl sql serve`
and other Python processes may use the folder at the same time. Every failure is a `FlowError`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derive.errors import DocumentError, FlowError, UsageError
from derive.reader import DataFolder, Time, clock_of

if TYPE_CHECKING:
    import threading

    from derive.contents.reads import ReadOptions
    from derive.engine.inputs import PendingDocuments
    from derive.engine.transactor import Committed
    from derive.protocol.specs import CatalogSpec, CollectionSpec, Document
    from derive.sql.python_rows import Rows
    from derive.storage.inputs.line import Line
    from derive.storage.segments.rows import ContentRows, ReadRows
    from derive.storage.store import Store


def open_flow(data: str | Path | None = None, *, source: str | Path = "flow.yaml") -> Flow:
    """Open a catalog and its data folder.

    Args:
        data: the data folder; `.flow` beside the catalog if None. `ingest`, `run` and `sql` create it.
        source: the catalog, which defines the collections. Without a catalog only tables of SQL can be used.

    Raises:
        CatalogError: the catalog has errors.
        UsageError: neither the data folder nor the catalog exists.
        StorageError: the data folder cannot be read.
    """
    return Flow(data, source)


_BATCH = 5_000
"""Number of documents from which a batch is yielded although more documents follow."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of a subscription.

    Attributes:
        documents: the documents in the order of their publication.
        upper: every document published before this time, in microseconds, belongs to this batch or to an earlier one,
            so that `since=batch.upper` resumes the subscription; None if more documents of the time follow.
    """

    documents: Sequence[Document]
    upper: int | None


class Flow(DataFolder):
    """A catalog and its data folder: `derive.open` returns one. Leave the `with` block, or call `close()`, at the end.

    The catalog is read once: open it again after an edit. After `close()`, the next read opens the folder again.
    `collection(name)` returns the reader of a collection.
    """

    def ingest(
        self,
        collection: str,
        documents: Iterable[Mapping[str, Any]],
        *,
        clock: str | None = None,
        load_id: str | None = None,
    ) -> int:
        """Ingest documents: all of them or none. Return their number.

        Args:
            collection: name of the collection.
            documents: the documents, read as a stream. Dates, UUIDs and dataclasses become JSON, and NaN null.
            clock: JSON pointer to an RFC 3339 time in each document, to load history before the first run.
            load_id: identifier of the load. A load that is repeated with the same documents is ingested once, and the
                repetition returns 0.

        Raises:
            DocumentError: documents are not valid; the first ten are listed.
            UsageError: the collection is unknown or derived, or `clock` is not a JSON pointer.
            StorageError: another load has the same identifier, or the data folder refuses the documents.
        """
        from derive.catalog.language.structure import is_pointer
        from derive.storage.ingest import Ingestion
        from derive.storage.metadata.ingestions import LoadedFile, RepeatedLoadError

        if clock is not None and not is_pointer(clock):
            raise UsageError(f"clock takes a JSON pointer, such as /{clock.lstrip('/') or 'at'}")
        if isinstance(documents, Mapping | str | bytes):
            raise UsageError("documents are a list of dicts", hint="one document is a list, too: [document]")
        spec = self._require_catalog().find_ingested(collection)
        lines = _Lines(documents)
        with closing(self._writable()) as store:
            ingestion = Ingestion(store, spec, clock=clock)
            try:
                return ingestion.load("documents", lines, LoadedFile("Python", load_id, lines.digest))
            except RepeatedLoadError:
                return 0

    def run(
        self,
        *,
        until_idle: bool = True,
        tasks: Sequence[str] = (),
        accept: Sequence[str] = (),
        shards: int | None = None,
        threads: int = 4,
        local_documents: int | None = None,
        stop: threading.Event | None = None,
    ) -> list[PendingDocuments]:
        """Run derivations and materializations, and return the documents that still wait.

        A task that fails does not stop the others; its error is raised at the end, or with `until_idle=False` when the
        run is stopped.

        Args:
            until_idle: whether to return once everything ingested so far is processed; if false, the run continues
                until `stop` is set, or Ctrl-C.
            tasks: names of the tasks to run; empty for all.
            accept: names of tasks whose pending edits are accepted.
            shards: number of shards of tasks that run for the first time; None for the default.
            threads: greatest number of tasks that run at once.
            local_documents: number of documents up to which this process does the work, and Spark the rest; None for a
                choice by cost, 0 for Spark alone.
            stop: event that ends the run after the present transactions.

        Raises:
            FlowError: a task failed, or the run cannot begin.
        """
        from derive.catalog.build import require_sound
        from derive.engine.executor import open_executor
        from derive.engine.scheduler import Scheduler
        from derive.engine.shadow import require_unshadowed
        from derive.engine.task_reconciler import open_changing_run

        if isinstance(tasks, str) or isinstance(accept, str):
            raise UsageError("tasks and accept are lists of names", hint='one name is a list, too: ["shop/spending"]')
        catalog = self._require_catalog()
        require_sound(catalog, tuple(tasks) or None)
        observer = _Failures()
        with ExitStack() as stack:
            store = stack.enter_context(closing(self._writable()))
            require_unshadowed(store.shadows, tasks or catalog.tasks)
            log = self.path / "logs" / "spark.log"
            _, executor = open_executor(None, log, {}, local_documents, lambda _: None)
            stack.enter_context(closing(executor))
            run, _ = open_changing_run(
                catalog,
                store,
                executor,
                tasks=tasks or None,
                shards=shards,
                cores=os.cpu_count() or 1,
                observer=observer,
                accepted=accept,
            )
            stack.enter_context(closing(run))
            with Scheduler(run, threads) as scheduler:
                if until_idle:
                    waiting = run.until_idle(scheduler.step)
                else:
                    is_stopped = stop.is_set if stop is not None else lambda: False
                    scheduler.serve(failed=_wait_or_raise, is_stopped=is_stopped)
                    waiting = [documents for documents in run.waiting() if documents.documents]
        if observer.errors:
            raise next(iter(observer.errors.values()))
        return waiting

    def subscribe(
        self, collection: str, since: Time | None = None, *, reduced: bool = False, timeout: float | None = None
    ) -> Generator[Batch]:
        """Yield the documents of a collection, and later its new documents as soon as they are final.

        Args:
            collection: name of a collection of the catalog.
            since: first time of publication; None for all known history.
            reduced: false for each published document; true for the present document of each key that has changed. A
                deleted document has its key and `{"_meta": {"op": "d"}}`.
            timeout: seconds without a new document after which the subscription ends; None to continue for ever, and 0
                for the documents that are final now.

        Raises:
            UsageError: the collection is unknown, or a table that is to be reduced.
            FrontierError: the history at `since` is compacted.
            FencedError: the collection was reset or dropped; all earlier documents were yielded.
        """
        from derive.contents.reads import ReadOptions

        spec = self._require_catalog().find_collection(collection)
        self.store  # noqa: B018 (a missing folder is reported here, not by the first batch)
        options = ReadOptions(None if since is None else clock_of(since))
        return self._batches(spec, options, _Idle(timeout), reduced=reduced)

    def _batches(self, spec: CollectionSpec, options: ReadOptions, idle: _Idle, *, reduced: bool) -> Generator[Batch]:
        last: list[Document] = []
        try:
            with closing(self._updates(spec, options, idle, reduced=reduced)) as updates:
                for update in updates:
                    if not isinstance(update, int):
                        if len(last) >= _BATCH:
                            yield Batch(last, None)
                            last = []
                        last += update.documents()
                    elif last:
                        yield Batch(last, update)
                        last = []
                        idle.reset()
        except _IdleError:
            return
        except FlowError:
            if last:
                yield Batch(last, None)
            raise

    def _updates(
        self, spec: CollectionSpec, options: ReadOptions, idle: _Idle, *, reduced: bool
    ) -> Generator[ContentRows | ReadRows | int]:
        """Yield the rows of a subscription, and the times before which all were yielded."""
        from derive.contents.reads import subscribe_at
        from derive.contents.reduced import follow_reduced, reduced_documents
        from derive.storage.segments.rows import with_deletions

        stored = self.store.read_as(self.store.tables.as_stored(spec))
        if reduced:
            read = partial(reduced_documents, self.store, spec)
            yield from follow_reduced(self.store, stored, options, read, idle.check)
        else:
            with closing(subscribe_at(self.store, spec, options, idle.check)) as published:
                for update in published:
                    yield update if isinstance(update, int) else with_deletions(update)

    def sql(self, text: str, parameters: Sequence[object] = ()) -> Rows:
        """Execute statements in a session of their own, as `flowctl sql` does; return the rows of the last statement.

        Args:
            text: the statements. Each is a transaction, except between BEGIN and COMMIT.
            parameters: values of `$1` and so on, for a single statement.

        Raises:
            SqlError: a statement fails; the error has an SQLSTATE, and the position in the text.
            UsageError: there is no statement, or the parameters do not fit it.
        """
        from derive.sql.client import run_statements

        if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
            raise UsageError("parameters are a list of values", hint="one value is a list, too: [value]")
        return run_statements(self.path, self.catalog, text, parameters)

    def status(self) -> list[dict[str, Any]]:
        """Return a row for each task of the catalog, as `flowctl status -o json` prints it."""
        from derive.planning.status import running_catalog_of, task_row
        from derive.storage.store import Store

        with closing(Store(self.path, reading=True)) as store:
            members, bindings = store.shadows.members(), store.shadows.bindings()
            catalog, _ = running_catalog_of(store, members, bindings, self.catalog)
            return [task_row(store, spec)[0] for spec in (catalog.tasks.values() if catalog else ())]

    def _require_catalog(self) -> CatalogSpec:
        if self.catalog is None:
            raise UsageError(f"there is no catalog {self.source}", hint="name it: derive.open(…, source=…)")
        return self.catalog

    def _writable(self) -> Store:
        from derive.storage.store import Store

        return Store(self.path)


class _Lines:
    """Documents as numbered lines of JSON, and the digest of all lines; a document that is not JSON is an error.

    Args:
        documents: the documents, which are read once.
    """

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        self._content = hashlib.sha256()
        self._lines = self._numbered(documents)

    def __iter__(self) -> Iterator[Line]:
        return self._lines

    def digest(self) -> str:
        """Read all remaining documents, and return the SHA-256 of all lines."""
        for _ in self._lines:
            pass
        return self._content.hexdigest()

    def _numbered(self, documents: Iterable[Mapping[str, Any]]) -> Iterator[Line]:
        from derive.document.exact import dump_exact

        for number, document in enumerate(documents, start=1):
            line: bytes | DocumentError
            try:
                line = dump_exact(dict(document)) if isinstance(document, Mapping) else _not_an_object(document)
            except (TypeError, ValueError) as exc:
                line = DocumentError(f"not JSON: {exc}")
            except DocumentError as exc:
                line = exc
            if isinstance(line, bytes):
                self._content.update(line + b"\n")
            yield number, line


def _not_an_object(value: object) -> DocumentError:
    return DocumentError(f"a document is a dict, and not of type {type(value).__name__}")


_HEAL_SECONDS = 10.0


def _wait_or_raise(error: FlowError) -> None:
    """Wait before the next try after a transient error; raise other errors."""
    if not error.heals:
        raise error
    time.sleep(_HEAL_SECONDS)


@dataclass(slots=True)
class _Failures:
    """Observes a run, and keeps the last error of each task that has stopped.

    Attributes:
        errors: errors by the name of the task.
    """

    errors: dict[str, FlowError] = field(default_factory=dict)

    def working(self, task: str, documents: int) -> None:
        """Do nothing."""

    def committed(self, task: str, done: Committed) -> None:
        """Forget the error of a task that has resumed."""
        self.errors.pop(task, None)

    def failed(self, task: str, error: FlowError) -> None:
        """Keep the error of a task."""
        self.errors[task] = error


class _IdleError(Exception):
    """No document was new for the time of a subscription."""


class _Idle:
    """Ends a subscription that has waited too long.

    Args:
        seconds: the longest wait; None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Begin a new wait."""
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise an error at the end of the longest wait."""
        if self._seconds is not None and time.monotonic() - self._since >= self._seconds:
            raise _IdleError
