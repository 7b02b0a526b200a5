"""Quarantines of derivations: open entries, and decisions to retry or to drop entries.

A retried document is a new event. It has the time of the retry, and its transform reads it as if the source had
published it at this time. While documents are being retried, the transform waits, as it waits for an ingestion into its
source.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from derive.contents.reads import ReadOptions, read_rows
from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact
from derive.document.key import compile_keys
from derive.document.pointer import JSON
from derive.errors import HeldError, TaskError, UsageError, suggest
from derive.failpoint import reach
from derive.protocol.collection import quarantine_name, quarantine_spec, retried_name
from derive.protocol.specs import DerivationSpec, Document, SelectorSpec, TransformSpec
from derive.storage.blobs import translated
from derive.storage.metadata.quarantine import Decision
from derive.storage.roles import Decidable, Readable
from derive.storage.segments.partition import INGESTED, compile_labels
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.writer import SegmentWriter

_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of entries; the conditions of all attributes hold.

    Attributes:
        transform: name of the transform; None for all.
        keys: keys of source documents, each an array of values; empty for all.
        ids: identifiers of entries; empty for all.
    """

    transform: str | None = None
    keys: tuple[JSON, ...] = ()
    ids: tuple[str, ...] = ()

    def transforms(self, spec: DerivationSpec) -> list[TransformSpec]:
        """Return the chosen transforms of a derivation.

        Raises:
            UsageError: the derivation has no such transform.
        """
        names = [transform.name for transform in spec.transforms]
        if self.transform is not None and self.transform not in names:
            guess = suggest(self.transform, names)
            raise UsageError(
                f"'{spec.name}' has no transform '{self.transform}'",
                hint=f"did you mean '{guess}'?" if guess else f"known: {', '.join(names)}",
            )
        return [transform for transform in spec.transforms if self.transform in (None, transform.name)]

    def has(self, entry: Document) -> bool:
        """Return whether an entry of a chosen transform has a chosen key and identifier."""
        is_key = not self.keys or dump_exact(entry["key"]) in map(dump_exact, self.keys)
        return is_key and (not self.ids or entry["id"] in self.ids)


def open_entries(store: Readable, spec: DerivationSpec, choice: Choice) -> Iterator[Document]:
    """Yield the chosen open entries of a derivation's quarantine, by transform and in the order of their documents.

    Entries of transforms that the catalog does not have, and of readings before a raised `backfill`, are not open.

    Raises:
        UsageError: the derivation has no such transform.
    """
    for transform in choice.transforms(spec):
        yield from _entries_of(store, spec, transform, choice)


def _entries_of(store: Readable, spec: DerivationSpec, transform: TransformSpec, choice: Choice) -> Iterator[Document]:
    if store.collection(quarantine_name(spec.name)) is None:
        return
    options = ReadOptions(selector=SelectorSpec(include={"input": transform.state_keys}))
    with closing(read_rows(store, quarantine_spec(spec.name), options)) as parts:
        decided = store.decided(spec.name)
        for rows in parts:
            for entry in rows.documents():
                if entry["id"] not in decided and choice.has(entry):
                    yield entry


def decide(store: Decidable, spec: DerivationSpec, choice: Choice, decision: Decision) -> int:
    """Retry or drop the chosen open entries; return their number. The entries of each transform are one commit.

    Raises:
        UsageError: the derivation has no such transform.
        TaskError: a transform does not read documents of the present.
        HeldError: another process has decided about one of the entries.
    """
    count = 0
    for transform in choice.transforms(spec):
        entries = _entries_of(store, spec, transform, choice)
        if decision == "retry":
            count += _retry(store, spec, transform, entries)
            continue
        dropped = {entry["id"]: entry["input"] for entry in entries}
        if dropped and not store.drop_quarantined(spec.name, dropped):
            raise _decided(spec)
        count += len(dropped)
    return count


def _retry(store: Decidable, spec: DerivationSpec, transform: TransformSpec, entries: Iterator[Document]) -> int:
    first = next(entries, None)
    if first is None:
        return 0
    _require_reading(store, spec, transform)
    source = spec.sources[transform.input.source]
    target = replace(source, name=retried_name(spec.name, transform.input.state_key))
    pack, labels = compile_keys(target.key, target.key_defaults), compile_labels(target)
    store.create(target)
    store.garbage.collect_abandoned(target.name)
    capability = store.acquire_write(target.name)
    writer = SegmentWriter(store.location, target, f"{INGESTED}{capability.id}")  # invalid documents are read as such
    retried: dict[str, str] = {}
    left, last, is_ended = chain([first], entries), capability.frontier, False
    try:
        with translated(store.root), store.capabilities.renewed(capability):
            while batch := list(islice(left, _BATCH)):
                documents = [entry["document"] for entry in batch]
                begin = store.timeline.assign(len(documents))
                clocks, seqs = np.arange(begin, begin + len(documents)), np.zeros(len(documents), dtype=np.int32)
                last = int(clocks[-1])
                writer.write(WrittenRows.sorted_of(clocks, seqs, pack(documents), documents, labels(documents)))
                retried.update((entry["id"], entry["input"]) for entry in batch)
            segments = writer.close()
        reach("quarantine.retrying")
        is_done = store.retry(spec.name, capability, segments, last + 1, retried)
        is_ended = True
        reach("quarantine.retried")
        if not is_done:
            writer.abort()
            raise _decided(spec)
    except BaseException:
        # Ctrl-C may interrupt the process directly after the commit.
        if not is_ended and store.decided(spec.name).isdisjoint(retried):
            writer.abort()
        raise
    finally:
        if not is_ended:
            store.capabilities.release(capability)
    return len(retried)


def _decided(spec: DerivationSpec) -> HeldError:
    return HeldError(
        f"another process has retried or dropped documents of '{spec.name}' meanwhile, or has reset it",
        hint="nothing was done: run the command again",
    )


def _require_reading(store: Decidable, spec: DerivationSpec, transform: TransformSpec) -> None:
    """Raise an error if a transform would not read a document of the present.

    Raises:
        TaskError: the present is outside of the transform's times.
    """
    present, read = store.timeline.present(), transform.input
    name, bound = "notBefore", read.not_before
    if bound is None or present >= bound:
        name, bound = "notAfter", read.not_after
        if bound is None or present < bound:
            return
    raise TaskError(
        f"a retried document gets the present time, and '{transform.name}' of '{spec.name}' has '{name}:"
        f" {format_rfc3339(bound)}'",
        position=transform.position,
        hint=f"change '{name}', or drop the documents: flowctl quarantine drop --task {spec.name}",
    )
