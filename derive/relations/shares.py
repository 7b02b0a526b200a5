"""Rows of collections that others work out: what is read of one is told as plain data, and done in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from derive.algebra.types import Row
from derive.protocol.specs import CollectionSpec
from derive.relations.columns import Source, columns_of
from derive.relations.documents import compile_rows
from derive.relations.tables.rows import TableRows
from derive.storage.contents import ReadOptions, read_between, reading
from derive.storage.reduced_read import reduced_here
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ContentRows, ReadRows
from derive.storage.table import Table
from derive.time.extent import size_of
from derive.time.source_read import SourceRead

_ROWS = 10_000
_SHARE_DOCUMENTS = 250_000
"""About how many documents a share has."""

MOST_SHARES = 64


@dataclass(frozen=True, slots=True)
class Share:
    """A share of what is read of a collection.

    Attributes:
        root: the data folder, which every process that reads sees.
        source: the collection.
        read: its segments and clocks.
        number: which share of the keys, from 0.
        count: of how many.
    """

    root: Path
    source: Source
    read: SourceRead
    number: int = 0
    count: int = 1


def spec_of(source: Source) -> CollectionSpec:
    """A collection of a catalog, or a table, as a collection."""
    return source.spec if isinstance(source, Table) else source


def shares_at(store: Readable, source: Source, as_of: int) -> list[Share]:
    """What a collection holds at a time, in shares of its keys.

    Raises:
        FrontierError: the contents at that time are no longer, or not yet, known.
    """
    with reading(store, spec_of(source), ReadOptions(as_of=as_of)) as read:
        count = min(MOST_SHARES, max(1, size_of([read]).documents // _SHARE_DOCUMENTS))
        return [Share(store.root, source, read, number, count) for number in range(count)]


def rows_of_share(share: Share) -> Iterator[list[Row]]:
    """The rows of a share of what a collection holds.

    Raises:
        SegmentError: a file cannot be read.
        ReductionError: documents of a key cannot be reduced.
        SqlError: a document has a value that its column cannot hold.
    """
    make = _maker(share.source)
    with TemporaryDirectory(prefix="flow-") as scratch:
        parts = reduced_here(
            share.root, spec_of(share.source), share.read, Path(scratch), share=(share.number, share.count)
        )
        for part in parts:
            for begin in range(0, len(part), _ROWS):
                batch = part.slice(begin, _ROWS)
                yield make(batch, batch.clocks())


def shares_between(store: Readable, source: Source, begin: int, end: int) -> list[Share]:
    """What was published in a collection with clocks in `[begin, end)`, a share for each of its files.

    It is for whoever has the right to read it from there on.
    """
    spec = spec_of(source)
    read = read_between(store, spec, ReadOptions().selector, begin, end)
    return [Share(store.root, source, replace(read, segments=(segment,))) for segment in read.segments]


def updates_of_share(share: Share) -> Iterator[list[tuple[Row, int]]]:
    """The rows of a share of what was published, each document a row, and how often each is added.

    Raises:
        SegmentError: a file cannot be read.
        SqlError: a document has a value that its column cannot hold.
    """
    make = _maker(share.source)
    for part in read_sorted(share.root, [share.read]):
        yield list(zip(make(part, part.adjusted.tolist()), part.diffs.tolist(), strict=True))


def _maker(source: Source) -> Callable[[ContentRows | ReadRows, Sequence[int]], list[Row]]:
    """Makes rows of what is stored, and its clocks. Tables have types that the documents of a catalog have not."""
    if isinstance(source, Table):
        table = TableRows(source)
        return lambda stored, _: table.rows(stored.texts.to_pylist())
    make = compile_rows(columns_of(source))
    return lambda stored, clocks: make(stored.documents(), clocks)
