"""The rows of a collection at a time, with SQL columns."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import closing
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from derive.algebra.bounds import Bounds
from derive.algebra.types import Row, Type
from derive.contents.tables import table_at
from derive.document.key import pack
from derive.document.pointer import JSON
from derive.relations.columns import Source, columns_of, compile_rows
from derive.schema.projection import UUID_POINTER
from derive.storage.roles import Readable
from derive.storage.table import Table

if TYPE_CHECKING:
    from derive.protocol.specs import CollectionSpec

_MOST_KEYS = 1_000
"""Maximum number of keys that are looked up in files; for more, files are scanned."""


def contents_at(
    store: Readable,
    source: Source,
    as_of: int,
    requested: Collection[int] | None = None,
    bounds: Bounds | None = None,
) -> Generator[list[Row]]:
    """Yield the rows that a collection holds at a time.

    Args:
        store: the data folder.
        source: the collection.
        as_of: timestamp, at or above its `since` and below its `upper`.
        requested: indexes of the needed columns, others may be NULL; None for all.
        bounds: bounds of columns in needed rows; other rows may be left out.

    Yields:
        Batches of rows, in no order.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are compacted, or not known yet.
        ReductionError: documents of a key cannot be reduced.
        SqlError: a document has a value that its column cannot hold.
    """
    if isinstance(source, Table):
        yield from table_at(store, source, as_of, bounds or {})
        return
    from derive.contents.reads import ReadOptions
    from derive.contents.reduced import batches_of, reduced_documents

    columns = columns_of(source)
    rows = compile_rows(columns, requested)
    is_parsed = requested is None or any(columns[index].pointer != UUID_POINTER for index in requested)
    options, keys = ReadOptions(as_of=as_of), _keys(source, bounds or {})
    with closing(reduced_documents(store, source, options, keys)) as parts:
        for batch in batches_of(parts):
            yield rows(batch.documents() if is_parsed else [{}] * len(batch), batch.clocks())


def _keys(spec: CollectionSpec, bounds: Bounds) -> list[bytes] | None:
    """Return packed keys of the needed documents; None for all."""
    columns = columns_of(spec)
    choices: list[list[JSON]] = []
    for pointer in spec.key:
        place = next((at for at, column in enumerate(columns) if at in bounds and column.pointer == pointer), None)
        data = None if place is None else bounds[place].data
        if place is None or data is None:
            return None
        is_boolean = columns[place].type is Type.BOOLEAN
        choices.append([bool(datum) if is_boolean else datum for datum in data if datum is not None])
    return [pack(values) for values in product(*choices)] if prod(map(len, choices)) <= _MOST_KEYS else None
