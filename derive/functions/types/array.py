"""Data of arrays: bytes in PostgreSQL's order of arrays, canonical for equal arrays.

Arrays are compared element by element; NULL comes after all values, and an array after its prefixes. Each element
therefore consists of a byte for its kind, and bytes that sort as values do. The bytes of one value never begin the
bytes of another value. A byte below all kinds ends the elements.

Arrays of equal elements are compared by their number of dimensions, and then by the size of each. An array of several
dimensions therefore has, after the end of its elements, the number of dimensions, the sizes, and the number again.
An array of one dimension has nothing there, so that its last byte differs.

Equal intervals may have several data. An array of intervals has the compared bytes of all elements first, then its
dimensions, and then the remaining bytes of each element.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from derive.algebra.types import PLAIN_BYTES, Datum, Type
from derive.functions.types.datetime import TOTAL_BYTES
from derive.functions.types.jsonb import jsonb_key

Elements: TypeAlias = tuple[Datum, ...]
"""The elements of an array, row by row: a datum each, None for NULL."""

Sizes: TypeAlias = tuple[int, ...]
"""The sizes of the dimensions of an array; none if the array is empty."""

MOST_DIMENSIONS = 6
"""Maximum number of dimensions of an array, as in PostgreSQL."""

EMPTY = b"\x01"
"""The array without elements, of any type."""

END, _VALUE, _NULL = b"\x01\x02\x03"
"""The byte after the elements, and the bytes before an element."""
_ZERO, _ESCAPED_ZERO, _END_OF_BYTES = b"\0", b"\0\xff", b"\0\0"
_BIAS = 1 << 63
_COMPLEMENT = (1 << 64) - 1
_NAN = _COMPLEMENT
_UNSIGNED = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")


def _of_integer(number: int) -> bytes:
    return _UNSIGNED.pack(number + _BIAS)


def _to_integer(data: bytes) -> int:
    return int(_UNSIGNED.unpack(data)[0]) - _BIAS


def _of_double(datum: float | str) -> bytes:
    if isinstance(datum, str):
        return _UNSIGNED.pack(_NAN)
    bits: int = _UNSIGNED.unpack(_DOUBLE.pack(datum))[0]
    return _UNSIGNED.pack(bits ^ _COMPLEMENT if bits & _BIAS else bits | _BIAS)


def _to_double(data: bytes) -> float | str:
    bits: int = _UNSIGNED.unpack(data)[0]
    if bits == _NAN:
        return "NaN"
    return float(_DOUBLE.unpack(_UNSIGNED.pack(bits ^ _BIAS if bits & _BIAS else bits ^ _COMPLEMENT))[0])


def _escaped(data: bytes) -> bytes:
    return data.replace(_ZERO, _ESCAPED_ZERO) + _END_OF_BYTES


def _of_text(text: str) -> bytes:
    return _escaped(text.encode())


_TEXTS = {Type.TEXT, Type.JSONB}
_FLOATS = {Type.REAL, Type.DOUBLE}


def _of_jsonb(datum: str) -> bytes:
    """Return bytes that sort as JSON values do, followed by the datum."""
    return _escaped(jsonb_key(datum)) + _of_text(datum)


def _packing(kind: Type) -> Callable[[Any], bytes]:
    if kind is Type.JSONB:
        return _of_jsonb
    if kind in _FLOATS:
        return _of_double
    return _escaped if kind in PLAIN_BYTES else _of_text if kind in _TEXTS else _of_integer


def array_of(kind: Type, elements: Iterable[Datum], sizes: Sizes = ()) -> bytes:
    """Return the datum of an array.

    Args:
        kind: type of its elements.
        elements: data of its elements.
        sizes: sizes of several dimensions, each at least 1, whose product is the number of elements; other sizes are
            those of one dimension.
    """
    dimensions = _of_sizes(sizes) if len(sizes) > 1 else b""
    if kind is Type.INTERVAL:
        return _of_intervals(elements, dimensions)
    pack = _packing(kind)
    parts = bytearray()
    for datum in elements:
        if datum is None:
            parts.append(_NULL)
        else:
            parts.append(_VALUE)
            parts += pack(datum)
    parts.append(END)
    return bytes(parts + dimensions)


def _of_sizes(sizes: Sizes) -> bytes:
    count = bytes((len(sizes),))
    return count + struct.pack(f">{len(sizes)}I", *sizes) + count


def sizes_of(kind: Type, datum: bytes) -> Sizes:
    """Return the sizes of an array of several dimensions; no sizes for another array.

    Args:
        kind: type of its elements.
        datum: datum of the array.
    """
    if kind is Type.INTERVAL:
        datum = compared_intervals(datum)
    count = datum[-1]
    return () if count == END else struct.unpack(f">{count}I", datum[-1 - 4 * count : -1])


_REMAINING_BYTES = 8
"""Number of bytes of an interval that are not compared."""


def _of_intervals(elements: Iterable[Datum], dimensions: bytes) -> bytes:
    compared, remaining = bytearray(), bytearray()
    for datum in elements:
        if datum is None:
            compared.append(_NULL)
        else:
            assert isinstance(datum, bytes)
            compared.append(_VALUE)
            compared += datum[:TOTAL_BYTES]
            remaining += datum[TOTAL_BYTES:]
    compared.append(END)
    return bytes(compared + dimensions + remaining)


def _intervals_of(datum: bytes) -> Elements:
    elements: list[Datum] = []
    at, rest = 0, len(compared_intervals(datum))
    while datum[at] != END:
        at += 1
        if datum[at - 1] == _NULL:
            elements.append(None)
            continue
        elements.append(datum[at : at + TOTAL_BYTES] + datum[rest : rest + _REMAINING_BYTES])
        at, rest = at + TOTAL_BYTES, rest + _REMAINING_BYTES
    return tuple(elements)


def compared_intervals(datum: bytes) -> bytes:
    """Return the part of an array of intervals that equal arrays share, and that sorts as the arrays do."""
    at, values = 0, 0
    while datum[at] != END:
        is_value = datum[at] == _VALUE
        at, values = at + 1 + TOTAL_BYTES * is_value, values + is_value
    return datum[: len(datum) - _REMAINING_BYTES * values]


@lru_cache(maxsize=64)
def elements_of(kind: Type, datum: bytes) -> Elements:
    """Return the elements of an array.

    Args:
        kind: type of its elements.
        datum: datum of the array.
    """
    if kind is Type.INTERVAL:
        return _intervals_of(datum)
    elements: list[Datum] = []
    at = 0
    is_fixed = kind not in PLAIN_BYTES and kind not in _TEXTS
    unpack: Callable[[bytes], Datum] = _to_double if kind in _FLOATS else _to_integer
    while datum[at] != END:
        at += 1
        if datum[at - 1] == _NULL:
            elements.append(None)
        elif is_fixed:
            elements.append(unpack(datum[at : at + 8]))
            at += 8
        else:
            if kind is Type.JSONB:
                at = _end_of_bytes(datum, at) + len(_END_OF_BYTES)
            end = _end_of_bytes(datum, at)
            data = datum[at:end].replace(_ESCAPED_ZERO, _ZERO)
            elements.append(data.decode() if kind in _TEXTS else data)
            at = end + len(_END_OF_BYTES)
    return tuple(elements)


def _end_of_bytes(datum: bytes, begin: int) -> int:
    """Return the index of the terminating zero: one that is not escaped."""
    at = datum.index(_ZERO, begin)
    while datum[at + 1]:
        at = datum.index(_ZERO, at + 2)
    return at


Nested: TypeAlias = "list[Nested] | Any"
"""The elements of an array as a list of lists for each dimension but the last."""


def nested(elements: Sequence[Any], sizes: Sizes) -> list[Nested]:
    """Return elements as lists of lists.

    Args:
        elements: the elements.
        sizes: the sizes of several dimensions; no sizes for one dimension.

    >>> nested([1, 2, 3, 4, 5, 6], (2, 3))
    [[1, 2, 3], [4, 5, 6]]
    """
    rows = list(elements)
    for size in reversed(sizes[1:]):
        rows = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    return rows


def nested_values(kind: Type, datum: bytes, convert: Callable[[Any], Any]) -> list[Nested]:
    """Return the values of an array as lists of lists; None for NULL.

    Args:
        kind: type of its elements.
        datum: datum of the array.
        convert: returns the value of an element.
    """
    values = [None if item is None else convert(item) for item in elements_of(kind, datum)]
    sizes = sizes_of(kind, datum)
    return nested(values, sizes) if sizes else values


def array_of_nested(kind: Type, values: Sequence[Nested], convert: Callable[[Any], Datum]) -> bytes:
    """Return the datum of an array of values that are no lists, as `nested_values` returns them."""
    sizes: Sizes = (len(values),)
    while values and isinstance(values[0], list):
        values = [value for row in values for value in row]
        sizes = (*sizes, len(values) // math.prod(sizes))
    return array_of(kind, [None if value is None else convert(value) for value in values], sizes)
