"""Pack values of columns: one step packs a scalar field of many documents.

The bytes equal those of `pack` in `derive.document.key`, except that 1.0 stays a float here: a key's component is
packed as the integer that it equals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.key import pack_value
from derive.document.key_columns import pack_integers
from derive.document.pointer import JSON

_TEXT, _END, _NOTHING = pa.scalar(b"\x02"), pa.scalar(b"\0"), pa.scalar(b"")
_NULL = pa.scalar(b"\0")
_FLOAT, _FALSE, _TRUE = 0x21, 0x26, 0x27
_SIGN = np.uint64(1 << 63)


def pack_array(values: pa.Array) -> pa.BinaryArray:
    """Pack each value of an array of texts, integers, floats or booleans, including nulls."""
    packed = _packed(values.fill_null(_filling(values.type)) if values.null_count else values)
    return pc.if_else(values.is_valid(), packed, _NULL) if values.null_count else packed


def pack_values(values: Sequence[JSON]) -> pa.BinaryArray:
    """Pack JSON values; an integer that is too large for the encoding is packed as its JSON text."""
    return pa.array([pack_value(value) for value in values], pa.binary())


def join_columns(columns: Sequence[pa.BinaryArray], count: int) -> pa.BinaryArray:
    """Concatenate the packed fields of `count` documents, row by row."""
    if not columns:
        return pa.array([b""] * count, pa.binary())
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, _NOTHING)


def _filling(kind: pa.DataType) -> pa.Scalar:
    """Return a value to replace nulls."""
    if pa.types.is_boolean(kind):
        return pa.scalar(False)
    return pa.scalar("" if pa.types.is_string(kind) else 0, kind)


def _packed(values: pa.Array) -> pa.BinaryArray:
    kind = values.type
    if pa.types.is_string(kind):
        content = values.cast(pa.binary())
        if not np.frombuffer(values.buffers()[2] or b"", np.uint8).all():
            content = pc.replace_substring(content, b"\0", b"\0\xff")
        return pc.binary_join_element_wise(_TEXT, content, _END, _NOTHING)
    if pa.types.is_floating(kind):
        return _pack_floats(values.to_numpy())
    if pa.types.is_boolean(kind):
        cells = np.where(values.to_numpy(zero_copy_only=False), _TRUE, _FALSE).astype(np.uint8)
        return _fixed(cells.reshape(-1, 1))
    packed = pack_integers(values) if len(values) else pa.array([], pa.binary())
    assert packed is not None
    return packed


def _pack_floats(values: np.ndarray) -> pa.BinaryArray:
    bits = np.ascontiguousarray(values).view(np.uint64)
    flipped = np.where(bits & _SIGN, ~bits, bits ^ _SIGN)
    cells = np.empty((len(values), 9), dtype=np.uint8)
    cells[:, 0] = _FLOAT
    cells[:, 1:] = flipped.astype(">u8").view(np.uint8).reshape(-1, 8)
    return _fixed(cells)


def _fixed(cells: np.ndarray) -> pa.BinaryArray:
    """Return an array of binary values of equal length, one per row of `cells`."""
    count, size = cells.shape
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(cells)])
