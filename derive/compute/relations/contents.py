"""The rows of a collection at a time."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from derive.compute.algebra.types import Row
from derive.compute.relations.columns import Source, columns_of
from derive.compute.relations.rows import compile_rows
from derive.compute.relations.table_input import table_at
from derive.storage.contents import ReadOptions
from derive.storage.reduced_read import read_reduced, reduced_here
from derive.storage.roles import Readable
from derive.storage.table import Table

if TYPE_CHECKING:
    from derive.protocol.specs import CollectionSpec
    from derive.storage.segments.rows import ContentRows
    from derive.time.source_read import SourceRead

_BATCH = 10_000


def contents_at(
    store: Readable, source: Source, as_of: int, wanted: Collection[int] | None = None
) -> Generator[list[Row]]:
    """The rows that a collection holds at a time.

    Args:
        store: holds it.
        source: the collection.
        as_of: clock, at or above its `since` and below its `upper`.
        wanted: indexes of the columns that are needed, all others may be NULL; None for all.

    Yields:
        Batches of rows, in no order.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are no longer, or not yet, known.
        ReductionError: documents of a key cannot be reduced.
        SqlError: a document has a value that its column cannot hold.
    """
    if isinstance(source, Table):
        yield from table_at(store, source, as_of)
        return
    rows = compile_rows(columns_of(source), wanted)
    with closing(reduced_at(store, source, as_of)) as parts:
        for part in parts:
            for begin in range(0, len(part), _BATCH):
                batch = part.slice(begin, _BATCH)
                yield rows(batch.documents(), batch.clocks())


def reduced_at(store: Readable, spec: CollectionSpec, as_of: int) -> Generator[ContentRows]:
    """The documents that a collection of a catalog holds at a time, reduced per key, in the order of keys."""
    with TemporaryDirectory(prefix="flowctl-") as scratch:

        def reduced(root: Path, spec: CollectionSpec, read: SourceRead) -> Iterator[ContentRows]:
            return reduced_here(root, spec, read, Path(scratch))

        yield from read_reduced(store, spec, ReadOptions(as_of=as_of), reduced)
