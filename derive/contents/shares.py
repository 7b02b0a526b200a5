"""Shares of a collection's rows: plain data that any process can read in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from derive.algebra.types import Row
from derive.contents.reads import ReadOptions, read_between, reading
from derive.contents.reduced import batches_of, reduced_locally
from derive.protocol.specs import CollectionSpec
from derive.relations.columns import Source, columns_of, compile_rows
from derive.relations.table_rows import TableRows
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ContentRows, ReadRows
from derive.storage.table_types import Table
from derive.time.extent import size_of
from derive.time.source_read import SourceRead

_SHARE_DOCUMENTS = 250_000
"""Approximate number of documents in a share."""

MOST_SHARES = 64


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a read of a collection.

    Attributes:
        root: the data folder, which every reading process must see.
        source: the collection.
        read: segments and timestamps of the read.
        spec: the collection as the documents of the read version are defined.
        number: number of the share of keys, from 0.
        count: number of shares.
    """

    root: Path
    source: Source
    read: SourceRead
    spec: CollectionSpec
    number: int = 0
    count: int = 1


def spec_of(source: Source) -> CollectionSpec:
    """Return the collection of a catalog, or the table as a collection."""
    return source.spec if isinstance(source, Table) else source


def shares_at(store: Readable, source: Source, as_of: int) -> list[Share]:
    """Return the contents of a collection at a time, in shares of its keys.

    Raises:
        FrontierError: the contents at that time are compacted, or not known yet.
    """
    table = source.id if isinstance(source, Table) else None
    with reading(store, spec_of(source), ReadOptions(as_of=as_of), table) as versioned:
        count = min(MOST_SHARES, max(1, size_of([versioned.read]).documents // _SHARE_DOCUMENTS))
        return [Share(store.root, source, versioned.read, versioned.spec, number, count) for number in range(count)]


def rows_of_share(share: Share) -> Iterator[list[Row]]:
    """Yield the rows of a share of a collection's contents.

    Raises:
        SegmentError: a file cannot be read.
        ReductionError: documents of a key cannot be reduced.
        SqlError: a document has a value that its column cannot hold.
    """
    make = _maker(share.source)
    with TemporaryDirectory(prefix="flow-") as scratch:
        parts = reduced_locally(share.root, share.spec, share.read, Path(scratch), share=(share.number, share.count))
        for batch in batches_of(parts):
            yield make(batch, batch.clocks())


def shares_between(store: Readable, source: Source, begin: int, end: int, relation: int | None = None) -> list[Share]:
    """Return the documents of a collection with timestamps in `[begin, end)`, as one share for each file.

    The caller must hold the capability to read the collection from `begin` on.
    """
    spec = spec_of(source)
    spec = spec if isinstance(source, Table) else store.read_as(spec)
    read = read_between(store, spec, ReadOptions().selector, begin, end, relation)
    return [Share(store.root, source, replace(read, segments=(segment,)), spec) for segment in read.segments]


def updates_of_share(share: Share) -> Iterator[list[tuple[Row, int]]]:
    """Yield the rows of a share of published documents, with the changes of their counts.

    Raises:
        SegmentError: a file cannot be read.
        SqlError: a document has a value that its column cannot hold.
    """
    make = _maker(share.source)
    for part in read_sorted(share.root, [share.read]):
        yield list(zip(make(part, part.adjusted.tolist()), part.diffs.tolist(), strict=True))


def _maker(source: Source) -> Callable[[ContentRows | ReadRows, Sequence[int]], list[Row]]:
    """Return a function that converts stored documents and timestamps to rows.

    Tables have types that documents lack.
    """
    if isinstance(source, Table):
        table = TableRows(source)
        return lambda stored, _: table.rows(stored.texts.to_pylist())
    make = compile_rows(columns_of(source))
    return lambda stored, clocks: make(stored.documents(), clocks)
