"""Pack keys and values of columns: one step packs a component of many keys if its values are simple.

The bytes equal those of `derive.document.key`, which packs all other components; except that 1.0 as a value stays a
float, while a key's component is packed as the integer that it equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.columns import Columns, Kinds, WrittenColumn, spare_pandas
from derive.document.key import pack_column, pack_value
from derive.document.pointer import JSON, MISSING, parse_pointer

spare_pandas()  # must precede the first scalar

Values: TypeAlias = Sequence[JSON] | pa.Array
"""Values of a component; an array has only texts or only integers of 64 bits, without nulls."""

_TEXT, _END = pa.scalar(b"\x02"), pa.scalar(b"\0")
_EMPTY = pa.scalar(b"")
_TEXTS, _INTEGERS, _FLOATS = frozenset({str}), frozenset({int}), frozenset({float})
_I64 = 1 << 63
_ZERO = 0x14
"""Code of the integer 0; the code of another integer is higher or lower by its size in bytes."""


class KeyColumns:
    """The keys of documents in columns.

    Args:
        pointers: locations of the key's components.
        defaults: values of the components for documents that lack them.
    """

    def __init__(self, pointers: Sequence[str], defaults: Sequence[JSON]) -> None:
        self._components = [(parse_pointer(item), default) for item, default in zip(pointers, defaults, strict=True)]

    def pack(self, columns: Columns) -> pa.BinaryArray:
        """Return packed keys.

        Raises:
            DocumentError: an integer is too large for the encoding.
        """
        return pack_columns([_values(tokens, default, columns) for tokens, default in self._components], len(columns))

    def are_distinct(self, columns: Columns) -> bool:
        """Return true if certainly all keys can be packed, and are distinct."""
        values = []
        for tokens, default in self._components:
            column, kinds = _values(tokens, default, columns)
            is_packable = kinds == _TEXTS or (kinds == _INTEGERS and min(column) >= -_I64 and max(column) < _I64)
            if not is_packable:
                return False
            values.append(column)
        return len(set(values[0] if len(values) == 1 else zip(*values, strict=True))) == len(columns)


def pack_components(components: Sequence[Values], count: int) -> pa.BinaryArray:
    """Pack the keys of `count` documents from the values of each component.

    Raises:
        DocumentError: an integer is too large for the encoding.
    """
    return pack_columns([(values, _kinds_of(values)) for values in components], count)


def _kinds_of(values: Values) -> Kinds:
    if isinstance(values, pa.Array):
        return _TEXTS if pa.types.is_string(values.type) else _INTEGERS
    return frozenset(map(type, values))


def pack_columns(components: Sequence[tuple[Values, Kinds]], count: int) -> pa.BinaryArray:
    """Pack the keys of `count` documents from the values of each component, and their types.

    Raises:
        DocumentError: an integer is too large for the encoding.
    """
    pieces = [piece for values, kinds in components for piece in _pieces(values, kinds)]
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, _EMPTY) if pieces else pa.array([b""] * count, pa.binary())


def _values(tokens: tuple[str, ...], default: JSON, columns: Columns) -> tuple[Sequence[JSON], Kinds]:
    """Return the values of a component, and their types."""
    values, kinds = columns.at(tokens)
    if type(MISSING) not in kinds:
        return values, kinds
    values = [default if value is MISSING else value for value in values]
    return values, frozenset(map(type, values))


def _pieces(values: Values, kinds: Kinds) -> list[pa.Array | pa.Scalar]:
    """Return the pieces that are joined to the packed values."""
    if type(values) is WrittenColumn:
        kinds, values = values.kinds, values.packable()
    if kinds == _TEXTS:
        texts = values if isinstance(values, pa.Array) else pa.array(values, pa.string())
        if isinstance(texts, pa.StringArray) and np.frombuffer(texts.buffers()[2] or b"", np.uint8).all():
            return [_TEXT, texts.cast(pa.binary()), _END]
    packed = pack_integers(values) if kinds == _INTEGERS else _pack_floats_of_keys(values) if kinds == _FLOATS else None
    if packed is not None:
        return [packed]
    listed: list[JSON] = values.to_pylist() if isinstance(values, pa.Array) else list(values)
    return [pa.array(pack_column(listed), pa.binary())]


def pack_integers(values: Values) -> pa.BinaryArray | None:
    """Pack integers; return None if one exceeds 64 bits."""
    try:
        numbers = np.array(values, dtype=np.int64)
    except OverflowError:
        return None
    least, most = int(numbers.min()), int(numbers.max())
    size = _size_of(most)
    if least > 0 and _size_of(least) == size:
        cells = np.empty((len(numbers), 1 + size), dtype=np.uint8)
        cells[:, 0] = _ZERO + size
        cells[:, 1:] = _bytes_of(numbers)[:, 8 - size :]
        return _binary(cells, np.arange(len(numbers) + 1) * (1 + size))
    return _pack_unlike(numbers)


def _size_of(number: int) -> int:
    return (number.bit_length() + 7) // 8


def _bytes_of(numbers: np.ndarray) -> np.ndarray:
    """Return the eight bytes of each integer, the most significant one first."""
    content: np.ndarray = numbers.astype(f">{numbers.dtype.str[1:]}").view(np.uint8).reshape(-1, 8)
    return content


def _binary(content: np.ndarray, offsets: np.ndarray) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _pack_unlike(numbers: np.ndarray) -> pa.BinaryArray:
    """Pack integers of different sizes."""
    # A negative integer is packed as its ones' complement: its bytes are those of the integer minus one.
    is_negative = numbers < 0
    bits = numbers.view(np.uint64) - is_negative
    magnitudes = np.where(is_negative, ~bits, bits)
    sizes = np.zeros(len(numbers), dtype=np.int64)
    for size in range(8):
        sizes += magnitudes > np.uint64((1 << 8 * size) - 1)
    starts = 8 - sizes
    cells = np.empty((len(numbers), 9), dtype=np.uint8)
    cells[:, 1:] = _bytes_of(bits)
    cells[np.arange(len(numbers)), starts] = _ZERO + np.where(is_negative, -sizes, sizes)
    offsets = np.zeros(len(numbers) + 1, dtype=np.int64)
    np.cumsum(sizes + 1, out=offsets[1:])
    return _binary(cells[np.arange(9) >= starts[:, np.newaxis]], offsets)


_NOTHING = pa.scalar(b"")
_NULL = pa.scalar(b"\0")
_FLOAT, _FALSE, _TRUE = 0x21, 0x26, 0x27
_SIGN = np.uint64(1 << 63)


def pack_array(values: pa.Array) -> pa.BinaryArray:
    """Pack each value of an array of texts, integers, floats or booleans, including nulls."""
    packed = _packed_values(values.fill_null(_filling(values.type)) if values.null_count else values)
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


def _packed_values(values: pa.Array) -> pa.BinaryArray:
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


def _pack_floats_of_keys(numbers: Values) -> pa.BinaryArray | None:
    """Pack floats as components of keys: as integers, if they equal integers; None if an integer exceeds 64 bits."""
    values = np.array(numbers, dtype=np.float64)
    is_integer = np.isfinite(values) & (np.trunc(values) == values)
    integers, floats = values[is_integer], values[~is_integer]
    if len(integers) == 0:
        return _pack_floats(floats)
    if np.abs(integers).max() >= _I64:
        return None
    packed = pack_integers(integers.astype(np.int64))
    if packed is None or len(floats) == 0:
        return packed
    places = np.where(is_integer, np.cumsum(is_integer), len(integers) + np.cumsum(~is_integer)) - 1
    return pa.concat_arrays([packed, _pack_floats(floats)]).take(pa.array(places))


def _fixed(cells: np.ndarray) -> pa.BinaryArray:
    """Return an array of binary values of equal length, one per row of `cells`."""
    count, size = cells.shape
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(cells)])
