"""Contents of a collection at a time: the read side of a time-varying collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from derive.document.clock import format_rfc3339
from derive.document.pointer import MISSING
from derive.errors import FrontierError, UsageError
from derive.protocol.specs import JSON, CollectionSpec, Document, SelectorSpec
from derive.reduce.combiner import Combiner
from derive.storage.frontier import BEGINNING
from derive.storage.reader import SourceRead, read_sorted
from derive.storage.store import Store


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read of a collection.

    Attributes:
        since: least clock; None for all.
        as_of: the time at which to read, included; None for everything that is final.
        selector: which logical partitions.
    """

    since: int | None = None
    as_of: int | None = None
    selector: SelectorSpec = field(default_factory=SelectorSpec)


def selector_of(spec: CollectionSpec, value: Mapping[str, JSON]) -> SelectorSpec:
    """The partition selector a person wrote as JSON: `{"include": {...}, "exclude": {...}}`.

    Raises:
        UsageError: it has other properties, or names a field that is not a logical partition.
    """
    unknown = [each for each in value if each not in ("include", "exclude")]
    if unknown:
        raise UsageError(f"a partition selector has no '{unknown[0]}'", hint="it has 'include' and 'exclude'")
    known = [each.field for each in spec.partitions]
    sides: dict[str, dict[str, tuple[JSON, ...]]] = {}
    for side in ("include", "exclude"):
        sides[side] = {}
        for name, values in (value.get(side) or {}).items():
            if name not in known:
                listed = ", ".join(known) or "none"
                raise UsageError(f"'{name}' is not a logical partition of '{spec.name}'", hint=f"it has: {listed}")
            sides[side][name] = tuple(values) if isinstance(values, list) else (values,)
    return SelectorSpec(sides["include"], sides["exclude"])


def source_read(store: Store, spec: CollectionSpec, options: ReadOptions) -> SourceRead:
    """The segments and clocks that hold what was asked for.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are no longer, or not yet, known.
    """
    known = store.collection(spec.name)
    if known is None:
        raise UsageError(f"nothing is stored in collection '{spec.name}' yet")
    end = known.upper
    if options.as_of is not None:
        if options.as_of < known.since:
            raise FrontierError(
                f"'{spec.name}' is exact from {format_rfc3339(known.since)} on; what it held before was compacted"
            )
        if options.as_of >= known.upper:
            raise FrontierError(
                f"'{spec.name}' is known up to {format_rfc3339(known.upper)} and not yet at"
                f" {format_rfc3339(options.as_of)}",
                hint="run the task that fills it, or ask for an earlier time",
            )
        end = options.as_of + 1
    fields = [each.field for each in spec.partitions]
    segments = store.segments(spec.name, fields, options.selector)
    begin = max(BEGINNING, options.since or BEGINNING)
    return SourceRead(0, 0, begin, end, tuple(segments)).within(begin, end)


def read_rows(store: Store, spec: CollectionSpec, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Updates in the order of (clock, seq, key), as rows whose `adjusted` is the document's clock."""
    return read_sorted(store.root, [source_read(store, spec, options)])


def reduce_in_memory(spec: CollectionSpec, rows: Iterator[tuple[bytes, Document]]) -> list[tuple[bytes, Document]]:
    """Fully reduce documents per key; the result is in the order of packed keys.

    Args:
        spec: the collection.
        rows: packed keys and documents, in order.
    """
    groups: dict[bytes, list[Document]] = {}
    for key, document in rows:
        groups.setdefault(key, []).append(document)
    combiner = Combiner(spec.read_schema, name=spec.name)
    reduced = ((key, combiner.full(groups[key])) for key in sorted(groups))
    return [(key, document) for key, document in reduced if document is not MISSING]
