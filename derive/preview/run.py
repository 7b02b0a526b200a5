"""A preview: runs derivations in a temporary data folder, and compares their results with stored results.

The temporary folder is empty at first, so only the documents determine the state. The preview runs the same code as
`flowctl run`. The data folder is only read.

The documents of a preview are the first documents of real sources up to a limit, or documents of a fixture.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson

from derive.catalog.language.yaml import parse_yaml
from derive.contents.reads import ReadOptions, reading
from derive.contents.reduced import reduced_documents
from derive.document.exact import parse_exact
from derive.document.key import show_key
from derive.document.pointer import MISSING
from derive.errors import UsageError
from derive.preview.recording import Recorder, Report
from derive.protocol.specs import CatalogSpec, CollectionSpec, DerivationSpec, Document
from derive.scratch import scratch_folder
from derive.shard.session import observing
from derive.storage.folder_id import identity_of, write_folder_id
from derive.storage.ingest import Ingestion
from derive.storage.metadata.owner import Door
from derive.storage.roles import Readable
from derive.storage.segments.columns import compile_fields
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows, WrittenRows, with_deletions
from derive.storage.segments.writer import SegmentWriter
from derive.storage.store import Store
from derive.testing import Difference, VirtualTime, differences
from derive.time import tick_end


@dataclass(frozen=True, slots=True)
class Selection:
    """Documents of real sources, in the order of time.

    Attributes:
        begin: timestamp from which documents are counted; None for all. Earlier documents are also read, because the
            state depends on them.
        limit: number of counted documents; None for no limit.
        tick: length of a tick, microseconds, to read the last tick to its end; None to stop within a tick.
    """

    begin: int | None = None
    limit: int | None = None
    tick: int | None = None

    def parts(self, parts: Iterator[ReadRows]) -> Iterator[ReadRows]:
        """Yield the selected rows among rows that are in the order of time."""
        left, end = self.limit, None
        for rows in parts:
            count = len(rows)
            if left is not None and end is None:
                begin = 0 if self.begin is None else int(np.searchsorted(rows.adjusted, self.begin))
                if count - begin < left:
                    left -= max(0, count - begin)
                else:
                    count = begin + left
                    end = int(rows.adjusted[count - 1]) + 1
                    if self.tick is not None:
                        end = tick_end(end - 1, self.tick)
                        count = int(np.searchsorted(rows.adjusted, end))
            elif end is not None:
                count = int(np.searchsorted(rows.adjusted, end))
            yield rows.slice(0, count)
            if end is not None and count < len(rows):
                return
            if end is not None and self.tick is None:
                return


def copy_sources(store: Readable, target: Store, specs: Sequence[CollectionSpec], selection: Selection) -> int | None:
    """Copy documents of collections, with their timestamps, into empty collections of another folder.

    Args:
        store: the data folder.
        target: the other data folder, whose clock is after all documents.
        specs: the collections.
        selection: selection of their documents.

    Returns:
        The timestamp of the last copied document; None without documents.

    Raises:
        SegmentError: a file cannot be read.
    """
    with ExitStack() as stack:
        stored = [spec for spec in specs if store.collection(spec.name) is not None]
        reads = [
            replace(stack.enter_context(reading(store, spec, ReadOptions())).read, index=index)
            for index, spec in enumerate(stored)
        ]
        copies = [_Copy(target, spec) for spec in stored]
        last = None
        for rows in selection.parts(read_sorted(store.location, reads)):
            for index in np.unique(rows.transforms).tolist():
                copies[index].write(rows.filter(rows.transforms == index))
            last = int(rows.adjusted[-1]) if len(rows) else last
        for copy in copies:
            copy.close()
        return last


class _Copy:
    """A collection into which documents are copied.

    Args:
        target: the data folder.
        spec: the collection.
    """

    def __init__(self, target: Store, spec: CollectionSpec) -> None:
        target.create(spec)
        self._target = target
        self._capability = target.acquire_write(spec.name, history=True, door=Door.TEST)
        # The rows may be older than the schema, so they are validated when they are read.
        self._writer = SegmentWriter(target.location, spec, f"preview-{self._capability.id}", is_valid=False)
        self._labels, self._fields = compile_labels(spec), compile_fields(spec)
        self._end = self._capability.frontier

    def write(self, rows: ReadRows) -> None:
        """Add rows, in order."""
        marked = with_deletions(rows)
        clocks, _, seqs, keys = marked.lists()
        documents = marked.documents()
        written = WrittenRows.of(clocks, seqs, keys, marked.texts, self._labels(documents))
        self._writer.write(written.with_fields(self._fields(documents)))
        self._end = clocks[-1] + 1

    def close(self) -> None:
        """Commit the rows."""
        segments = self._writer.close()
        self._target.update_and_downgrade(self._capability, segments, self._end, ascending=True, is_last=True)


def read_fixture(path: Path, sources: Sequence[str], collection: str | None) -> dict[str, list[Document]]:
    """Return the documents of a fixture, by the collection into which they are ingested.

    A file with the suffix .yaml, .yml or .json is a list of documents, as in the tests of a catalog, or a mapping from
    collections to such lists. Any other file is JSON Lines.

    Args:
        path: the file.
        sources: names of the collections that the preview reads.
        collection: the collection of a plain list; None for the only source.

    Raises:
        UsageError: the file cannot be read, or names a collection that the preview does not read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the fixture {path} cannot be read: {exc}") from exc
    if path.suffix in (".yaml", ".yml", ".json"):
        value = parse_yaml(text, str(path)).value
    else:
        value = [_parsed(path, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if isinstance(value, list):
        if collection is None and len(sources) != 1:
            hint = f"name it with --collection, or write a mapping: it is one of {', '.join(sources)}"
            raise UsageError(f"the fixture {path} does not say which collection its documents belong to", hint=hint)
        value = {collection or sources[0]: value}
    if not isinstance(value, Mapping) or not all(isinstance(documents, list) for documents in value.values()):
        raise UsageError(f"the fixture {path} is neither a list of documents nor a mapping to such lists")
    for name in value:
        if name not in sources:
            raise UsageError(f"the previewed derivations do not read '{name}'", hint=f"they read: {', '.join(sources)}")
    return {str(name): documents for name, documents in value.items() if isinstance(documents, list)}


def _parsed(path: Path, number: int, line: str) -> Document:
    try:
        document: Document = parse_exact(line.encode())
    except (ValueError, orjson.JSONDecodeError) as exc:
        raise UsageError(f"{path}:{number}: not JSON: {exc}") from exc
    return document


def ingest_fixture(target: Store, catalog: CatalogSpec, fixture: Mapping[str, Sequence[Document]]) -> None:
    """Ingest the documents of a fixture at the present time of a data folder.

    Raises:
        DocumentError: documents are invalid.
    """
    for name, documents in fixture.items():
        ingestion = Ingestion(target, catalog.collections[name], door=Door.TEST)
        ingestion.load(f"documents for {name}", enumerate(documents, start=1))


_FIXTURE_BEGIN = 1_704_067_200_000_000
"""Time of a fixture's documents, as in tests of a catalog: 2024-01-01T00:00:00Z."""


def with_cycles(catalog: CatalogSpec, tasks: Sequence[str]) -> list[str]:
    """Return derivations and the other derivations of their cycles, sources before readers."""
    return [name for cycle in catalog.cycles if not set(cycle).isdisjoint(tasks) for name in cycle]


def sources_of(catalog: CatalogSpec, tasks: Sequence[str]) -> list[str]:
    """Return the collections that derivations read and do not derive themselves, in the order of the catalog."""
    read = {name for task in tasks for name in catalog.derivations[task].sources}
    return [name for name in catalog.collections if name in read and name not in tasks]


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose stored document differs from the document of a preview.

    Attributes:
        task: name of the derivation.
        key: the key, as JSON.
        differences: the differences: `expected` is the stored value, and `actual` is the value of the preview.
    """

    task: str
    key: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a preview.

    Attributes:
        begin: timestamp from which documents are shown; None for all.
        limit: number of shown documents of real sources; None for all.
        fixture: documents that replace real documents, by collection; None for real documents.
        has_state: whether changes of state are reported.
        compares: whether results are compared with stored results; then effects are not reported.
    """

    begin: int | None = None
    limit: int | None = None
    fixture: Mapping[str, Sequence[Document]] | None = None
    has_state: bool = False
    compares: bool = False


def preview(
    store: Readable, catalog: CatalogSpec, tasks: Sequence[str], options: Options, report: Report
) -> list[KeyDifference]:
    """Run derivations over documents in a temporary folder, which is removed at the end.

    Args:
        store: the data folder, which is only read.
        catalog: the catalog.
        tasks: names of the derivations, with all members of their cycles.
        options: options of the preview.
        report: receives the effects of each document, in the order of processing, unless results are compared.

    Returns:
        The keys whose stored documents differ, if results are compared.

    Raises:
        FlowError: a derivation failed, or documents cannot be read; effects of earlier documents were reported.
    """
    # Collections of other derivations are sources in a preview, and are known up to the present like ingested ones.
    catalog = replace(catalog, derivations={task: catalog.derivations[task] for task in tasks}, materializations={})
    begin = time.time_ns() // 1000 if options.fixture is None else _FIXTURE_BEGIN
    with scratch_folder() as folder:
        recorder = Recorder(folder, _shown(report, options.begin), has_state=options.has_state)
        observed = nullcontext() if options.compares else observing(recorder)
        with closing(VirtualTime(catalog, folder, begin, tasks, shards=1)) as clock, observed:
            if origin := identity_of(store.root).origin:  # the identifier is the salt of hashes
                write_folder_id(folder, origin)
            last = None
            if options.fixture is None:
                tick = max(catalog.derivations[task].tick for task in tasks) if options.compares else None
                specs = [catalog.collections[name] for name in sources_of(catalog, tasks)]
                last = copy_sources(store, clock.store, specs, Selection(options.begin, options.limit, tick))
            else:
                ingest_fixture(clock.store, catalog, options.fixture)
            clock.fast_forward()
            if not options.compares:
                return []
            return [
                difference
                for task in tasks
                for difference in _compared(store, clock.store, catalog.derivations[task], last, options)
            ]


def _shown(report: Report, begin: int | None) -> Report:
    """Return a function that reports only effects of documents that were published from a time on."""
    return report if begin is None else lambda effect: report(effect) if effect.published_at >= begin else None


def _compared(
    store: Readable, other: Readable, task: DerivationSpec, last: int | None, options: Options
) -> Iterator[KeyDifference]:
    """Yield the keys whose documents differ at the last time at which both folders know all results.

    Raises:
        UsageError: nothing is stored.
        FrontierError: the stored history at that time is compacted.
    """
    known = store.collection(task.name)
    if known is None:
        raise UsageError(f"'{task.name}' has never run, so there is nothing to compare with", hint="leave out --diff")
    uppers = [known.upper, other.upper(task.name)]
    end = min(uppers if options.limit is None or last is None else [*uppers, tick_end(last, task.tick)])
    stored, made = (_contents(folder, task.collection, end - 1) for folder in (store, other))
    with closing(stored), closing(made):
        yield from _different(task.name, stored, made)


def _contents(store: Readable, spec: CollectionSpec, as_of: int) -> Generator[tuple[bytes, Document]]:
    with closing(reduced_documents(store, spec, ReadOptions(as_of=as_of))) as parts:
        for part in parts:
            yield from part.pairs()


def _different(
    task: str, stored: Iterator[tuple[bytes, Document]], made: Iterator[tuple[bytes, Document]]
) -> Iterator[KeyDifference]:
    """Yield the differences of two sequences in the order of keys."""
    left, right = next(stored, None), next(made, None)
    while left is not None or right is not None:
        key = min(pair[0] for pair in (left, right) if pair is not None)
        before = left[1] if left is not None and left[0] == key else MISSING
        after = right[1] if right is not None and right[0] == key else MISSING
        if places := differences(before, after, strict=True):
            yield KeyDifference(task, show_key(key), tuple(places))
        left = next(stored, None) if before is not MISSING else left
        right = next(made, None) if after is not MISSING else right
