"""Requests with many keys and documents, written to the wire from Arrow columns without work per document.

The bytes are a `TransactionRequest` as protobuf writes it, except that the numbers of slices always have four bytes.
Every reader of protobuf accepts this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

ARENA_BYTES = 4 << 20
"""Approximate maximum bytes of keys, values and documents in a message; a longer document has its own message."""

MOST_ROWS = 2_500
"""Maximum number of documents of one message."""

_LOAD, _STORE = 2, 4
_ARENA, _KEYS, _VALUES, _DOCUMENTS, _EXISTS, _DELETE = 2, 3, 4, 5, 6, 7
_SLICE_BYTES = 12


def write_loads(binding: int, keys: pa.BinaryArray) -> Iterator[bytes]:
    """Yield `Load` requests of packed keys."""
    for begin, end in _parts([keys]):
        yield _request(_LOAD, binding, [(_KEYS, keys.slice(begin, end - begin))])


def write_stores(
    binding: int,
    keys: pa.BinaryArray,
    values: pa.BinaryArray,
    texts: pa.StringArray,
    exists: np.ndarray,
    deleted: np.ndarray | None = None,
) -> Iterator[bytes]:
    """Yield `Store` requests of documents.

    Args:
        binding: index of the binding.
        keys: packed keys.
        values: packed values.
        texts: the documents.
        exists: for each key, whether the endpoint has a document.
        deleted: for each key, whether the document is to be deleted; None for no deletion.
    """
    for begin, end in _parts([keys, values, texts]):
        columns = [(_KEYS, keys), (_VALUES, values), (_DOCUMENTS, texts)]
        parts = [(number, column.slice(begin, end - begin)) for number, column in columns]
        flags = _field(_EXISTS, exists[begin:end].astype(np.uint8).tobytes())
        if deleted is not None and deleted[begin:end].any():
            flags += _field(_DELETE, deleted[begin:end].astype(np.uint8).tobytes())
        yield _request(_STORE, binding, parts, flags)


def _request(kind: int, binding: int, columns: Sequence[tuple[int, pa.Array]], flags: bytes = b"") -> bytes:
    arenas, slices = [], []
    begin = 0
    for number, column in columns:
        offsets = _offsets(column)
        content = column.buffers()[2]
        arenas.append(b"" if content is None else content[int(offsets[0]) : int(offsets[-1])].to_pybytes())
        slices.append(_slices(number, offsets - offsets[0] + begin))
        begin += len(arenas[-1])
    index = b"\x08" + _varint(binding) if binding else b""
    return _field(kind, b"".join([index, _field(_ARENA, b"".join(arenas)), *slices, flags]))


def _offsets(column: pa.Array) -> np.ndarray:
    """Return the offset of each value in its buffer, and the end of the last one."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return offsets.astype(np.int64)


def _parts(columns: Sequence[pa.Array]) -> Iterator[tuple[int, int]]:
    """Yield the range of rows of each message."""
    ends = np.sum([_offsets(column)[1:] - _offsets(column)[0] for column in columns], axis=0)
    begin, count = 0, len(columns[0])
    while begin < count:
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + ARENA_BYTES, side="right"))
        end = min(max(end, begin + 1), begin + MOST_ROWS)
        yield begin, end
        begin = end


def _slices(number: int, offsets: np.ndarray) -> bytes:
    """Return a repeated field of adjacent slices."""
    cells = np.empty((len(offsets) - 1, _SLICE_BYTES), dtype=np.uint8)
    cells[:, 0] = number << 3 | 2
    cells[:, 1] = _SLICE_BYTES - 2
    for tag, column, numbers in ((0x08, 2, offsets[:-1]), (0x10, 7, offsets[1:])):
        cells[:, column] = tag
        for byte in range(4):
            cells[:, column + 1 + byte] = (numbers >> (7 * byte) & 0x7F) | (0x80 if byte < 3 else 0)
    return cells.tobytes()


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
