"""Write columns of values as JSON texts of documents, without creating the documents.

The bytes equal those of `write_texts` for documents whose properties are in column order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.columns import Columns, WrittenColumn
from derive.document.exact import dump_exact
from derive.document.pointer import JSON
from derive.errors import DocumentError
from derive.storage.segments.texts import MOST_BYTES, write_texts

_COMMA = ord(",")
_NESTED = frozenset({dict, list})


def write_columns(columns: Columns, most_bytes: int = MOST_BYTES) -> pa.StringArray:
    """Return a column of the documents' JSON texts.

    Args:
        columns: the documents.
        most_bytes: capacity of a column.

    Raises:
        DocumentError: the texts exceed 2 GiB, or a document has more than `MOST_LEVELS` levels.
    """
    count = len(columns)
    if count == 0:
        return pa.array([], pa.string())
    pieces: list[pa.StringArray | str] = []
    before = "{"
    ends = [","] * (len(columns.names) - 1) + ["}"]
    for name, column, kinds, end in zip(columns.names, columns.values, columns.kinds, ends, strict=True):
        before += f"{dump_exact(name).decode()}:"
        if type(column) is WrittenColumn:
            quote = '"' if column.numbers is None else ""
            pieces += [before + quote, column.array if column.numbers is None else column.numbers]
            before = quote + end
            continue
        pieces.append(before)
        texts = _write_scalars(column, end) if kinds.isdisjoint(_NESTED) else None
        before = ""
        if texts is None:
            texts, before = write_texts(column, most_bytes, levels=1), end
        pieces.append(texts)
    pieces.append(before)
    size = sum(count * len(piece) if isinstance(piece, str) else piece.nbytes for piece in pieces)
    if size > most_bytes:  # approximate, because offsets are included
        raise DocumentError(f"{count:,} documents that belong together take more than 2 GiB")
    return pc.binary_join_element_wise(*pieces, "")


def _write_scalars(column: Sequence[JSON], end: str) -> pa.StringArray | None:
    """Return the JSON text of each value, followed by `end`; None if texts contain commas or values need other code."""
    try:
        text = orjson.dumps(column)
    except TypeError:  # an integer exceeds 64 bits
        return None
    content = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(content == _COMMA)
    if len(commas) != len(column) - 1 or len(text) > MOST_BYTES:  # a text contains a comma
        return None
    written = content.copy()
    written[-1] = ord(end)
    if ord(end) != _COMMA:
        written[commas] = ord(end)
    offsets = np.empty(len(column) + 1, dtype=np.int32)
    offsets[0], offsets[1:-1], offsets[-1] = 1, commas + 1, len(text)
    return pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), pa.py_buffer(written))
