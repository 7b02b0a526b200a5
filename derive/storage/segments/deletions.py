"""Convert rows of a multiset to documents: one per insertion, and one with a deletion marker per retraction."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.storage.segments.rows import DIFF, DOC, ReadRows

_MARK = '"_meta":{"op":"d"}}'


def as_documents(stored: pa.Table) -> pa.Table:
    """Convert rows of a segment to documents; rows of a reduced collection are unchanged.

    Args:
        stored: rows with a column of diffs and, optionally, documents.
    """
    diffs = stored.column(DIFF).to_numpy()
    if not len(diffs) or (diffs == 1).all():
        return stored
    times = np.abs(diffs)
    if (times != 1).any():
        stored = stored.take(pa.array(np.repeat(np.arange(len(diffs)), times)))
        diffs = np.repeat(diffs, times)
    index = stored.schema.get_field_index(DOC)
    if index < 0 or not (diffs < 0).any():
        return stored
    texts = stored.column(index).combine_chunks()
    marked = pc.if_else(pa.array(diffs < 0), marked_texts(texts), texts)
    return stored.set_column(index, stored.schema.field(index), marked)


def with_deletions(rows: ReadRows) -> ReadRows:
    """Convert rows with diffs to documents."""
    table = as_documents(pa.Table.from_batches([rows.batch]))
    return ReadRows(table.combine_chunks().to_batches()[0]) if table.num_rows else rows


def marked_texts(texts: pa.StringArray) -> pa.StringArray:
    """Return texts of deleted documents with the marker `{"_meta": {"op": "d"}}`."""
    begun = pc.utf8_slice_codeunits(texts, 0, -1)
    comma = pc.if_else(pc.equal(texts, "{}"), "", ",")
    return pc.binary_join_element_wise(begun, comma, _MARK, "")
