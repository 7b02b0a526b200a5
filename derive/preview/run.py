"""A preview: runs derivations in a temporary data folder, and compares their results with stored results.

The temporary folder is empty at first, so only the documents determine the state. The preview runs the same code as
`flowctl run`. The data folder is only read.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from derive.contents.reads import ReadOptions
from derive.contents.reduced import reduced_documents
from derive.document.key import show_key
from derive.document.pointer import MISSING
from derive.errors import UsageError
from derive.preview.recording import Recorder, Report
from derive.preview.sources import Selection, copy_sources, ingest_fixture
from derive.protocol.specs import CatalogSpec, CollectionSpec, DerivationSpec, Document
from derive.shard.session import observing
from derive.storage.folder_id import identity_of, write_folder_id
from derive.storage.roles import Readable
from derive.testing import Difference, VirtualTime, differences
from derive.time import tick_end

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
    with TemporaryDirectory(prefix="flowctl-preview-") as scratch:
        folder = Path(scratch)
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
