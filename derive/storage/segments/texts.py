"""Documents as columns of JSON text: parses and writes them, and makes them from columns of values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.columns import Columns, WrittenColumn, spare_pandas
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.errors import DocumentError
from derive.protocol.specs import Document

spare_pandas()  # must precede the first array

_BORDER = orjson.Fragment(b"\n")
_MOST_AROUND = 3
"""Largest number of levels around a document."""

MOST_BYTES = (1 << 31) - 1
"""Capacity of a text column in bytes: offsets have 32 bits."""


def parse_texts(column: pa.StringArray) -> list[Document]:
    """Parse the documents of a column of JSON texts."""
    documents: list[Document] = parse_exact(join_texts(column))
    return documents


def join_texts(column: pa.StringArray) -> bytes:
    """Join a column of JSON texts into a JSON array."""
    return b"".join((b"[", _joined(column), b"]"))


def _joined(column: pa.StringArray) -> pa.Buffer:
    return pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column), ",")[0].as_buffer()


class JoinedTexts:
    """A column of JSON texts with access to slices as JSON arrays.

    Args:
        column: texts without nulls.
    """

    def __init__(self, column: pa.StringArray) -> None:
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
        self._starts = offsets - offsets[0] + np.arange(len(offsets))  # offsets including commas
        self._joined = memoryview(_joined(column))

    def array(self, begin: int, end: int) -> bytes:
        """Return a JSON array of the texts in `[begin, end)`."""
        first, behind = self._starts[begin], self._starts[end]
        return b"".join((b"[", self._joined[first : max(first, behind - 1)], b"]"))


def write_texts(documents: Sequence[JSON], most_bytes: int = MOST_BYTES, *, levels: int = 0) -> pa.StringArray:
    """Write documents, or parts of documents, as a column of JSON texts.

    Args:
        documents: parsed documents.
        most_bytes: capacity of a column.
        levels: number of levels of the document that surround each part.

    Raises:
        DocumentError: the texts exceed 2 GiB, or a document has more than `MOST_LEVELS` levels.
    """
    count = len(documents)
    if count == 0:
        return pa.array([], pa.string())
    # JSON text without spaces contains no line break, because strings escape line breaks.
    mixed: list[JSON] = [_BORDER] * (2 * count - 1)
    mixed[::2] = documents
    for _ in range(_MOST_AROUND + levels):
        mixed = [mixed]
    around = _MOST_AROUND + levels + 1
    texts = dump_exact(mixed)[around:-around].split(b",\n,")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, count), out=offsets[1:])
    if offsets[-1] > most_bytes:
        raise DocumentError(f"{count:,} documents that belong together take more than 2 GiB")
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(texts)))


_COMMA, _SPACE, _QUOTE, _BACKSLASH = map(ord, ', "\\')
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
    if size > most_bytes:  # approximate, because the size includes offsets
        raise DocumentError(f"{count:,} documents that belong together take more than 2 GiB")
    return pc.binary_join_element_wise(*pieces, "")


def written_texts(values: Sequence[JSON]) -> WrittenColumn | None:
    """Return texts as they are written in JSON; None if some have characters that are written otherwise."""
    array = pa.array(values, pa.string())
    if not isinstance(array, pa.StringArray):  # the texts exceed the capacity of a column
        return None
    content = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    if ((content < _SPACE) | (content == _QUOTE) | (content == _BACKSLASH)).any():
        return None
    return WrittenColumn(array)


def write_properties(columns: Columns) -> pa.StringArray:
    """Return a column of the JSON texts of documents, at least one; a document lacks each property of None.

    Raises:
        DocumentError: the texts exceed 2 GiB, or a document has more than `MOST_LEVELS` levels.
    """
    if all(type(None) not in kinds for kinds in columns.kinds):
        return write_columns(columns)
    properties = [_write_property(name, column) for name, column in zip(columns.names, columns.values, strict=True)]
    # Arrow leaves out rows of nulls alone, so an empty text precedes the properties.
    joined = pc.binary_join_element_wise("", *properties, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")


def _write_property(name: str, column: Sequence[JSON]) -> pa.StringArray:
    """Return the JSON text of a property in each document, without braces; null for None."""
    present = [value for value in column if value is not None]
    if not present:
        return pa.nulls(len(column), pa.string())
    texts = pc.utf8_slice_codeunits(write_columns(Columns.of((name,), [present])), 1, -1)
    if len(present) == len(column):
        return texts
    is_absent = np.fromiter((value is None for value in column), np.bool_, len(column))
    return texts.take(pa.array(np.cumsum(~is_absent) - 1, pa.int64(), mask=is_absent))


def _write_scalars(column: Sequence[JSON], end: str) -> pa.StringArray | None:
    """Return the JSON text of each value, followed by `end`; None if texts contain commas, or for other types."""
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
