"""Rows of published documents, on their way from a lambda to a segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from derive.protocol.specs import Document
from derive.storage.segments.texts import write_texts
from derive.storage.segments.writer import ROWS

LAMBDA_ROWS = pa.schema(
    [
        pa.field("clock", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("doc", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("adjusted", pa.int64(), nullable=False),
        pa.field("transform", pa.int16(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("source_key", pa.binary(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
    ]
)
"""Published documents between shuffles. The last five columns are their place in the order of processing: those of the
source document that caused them, and a running number."""

PROCESSED = ("adjusted", "transform", "seq", "source_key", "number")
"""The columns of `LAMBDA_ROWS` that order documents as they are processed."""

STORED = ("clock", "seq", "key")
"""The columns of `ROWS` that order documents as they are stored."""


def ascending(columns: Sequence[str]) -> list[tuple[str, str]]:
    """An order by columns, as Arrow wants it said."""
    return [(column, "ascending") for column in columns]


def rows_of(
    clocks: Any, seqs: Any, keys: Sequence[bytes], documents: Sequence[Document], labels: pa.StringArray
) -> pa.RecordBatch:
    """Rows (`ROWS`) of documents, sorted by (clock, seq, key)."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(clocks, pa.int64()),
            pa.array(seqs, pa.int32()),
            pa.array(keys, pa.binary()),
            write_texts(documents),
            labels,
        ],
        schema=ROWS,
    )
    return batch if bool(np.all(np.diff(clocks) > 0)) else batch.sort_by(ascending(STORED))


def as_they_are(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows (`ROWS`) of published documents that are the only ones of their key and tick."""
    seqs = pa.array(np.zeros(rows.num_rows, dtype=np.int32))
    columns = [rows.column("clock"), seqs, *(rows.column(name) for name in ("key", "doc", "partition"))]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)
