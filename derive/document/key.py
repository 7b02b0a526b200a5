"""Document order, and packed keys, whose bytes sort like the values.

Source: the tuple layer specification of FoundationDB (design/tuple.md). Every document's key is packed. For speed, this
    module packs the four kinds of scalars that a key may have; tests compare the bytes with those of `fdb.tuple`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cmp_to_key
from operator import add
from typing import Any

import orjson

from derive.document.exact import dump_exact
from derive.document.pointer import JSON, MISSING, compile_pointer, parse_pointer
from derive.errors import DocumentError

_RANKS = {type(None): 1, bool: 2, int: 3, float: 3, str: 4, list: 5, dict: 6}


def compare(left: JSON, right: JSON) -> int:
    """Return -1, 0 or 1 as `left` sorts before, with or after `right`; a missing value sorts first.

    Numbers compare by value, whether integers or not; strings by code points; arrays item by item; objects as their
    sorted (name, value) pairs.
    """
    kind = type(left)
    if kind is type(right) and (kind is int or kind is str or kind is float):  # by far the most frequent case
        return int(left > right) - int(left < right)
    rank_left, rank_right = _rank(left), _rank(right)
    if rank_left != rank_right:
        return -1 if rank_left < rank_right else 1
    if rank_left == 5:
        return _compare_all(left, right)
    if rank_left == 6:
        return _compare_all(_pairs(left), _pairs(right))
    if rank_left < 2:
        return 0
    return int(left > right) - int(left < right)


def order_key(value: JSON) -> Any:
    """Return the sort key of a value: `sorted(values, key=order_key)` is in document order."""
    return _ORDER_KEY(value)


def _rank(value: JSON) -> int:
    return 0 if value is MISSING else _RANKS[type(value)]


def _pairs(value: JSON) -> list[list[JSON]]:
    return [[name, value[name]] for name in sorted(value)]


def _compare_all(left: list[JSON], right: list[JSON]) -> int:
    for each_left, each_right in zip(left, right, strict=False):
        ordering = compare(each_left, each_right)
        if ordering:
            return ordering
    return (len(left) > len(right)) - (len(left) < len(right))


_ORDER_KEY = cmp_to_key(compare)


_NULL, _BYTES, _STRING, _INT_ZERO, _DOUBLE, _FALSE, _TRUE = 0x00, 0x01, 0x02, 0x14, 0x21, 0x26, 0x27
_SMALL = (b"\x14", b"\x15", b"\x16", b"\x17", b"\x18")
"""Codes of positive integers of up to four bytes, by their size."""

_MOST_BYTES = 255
_SHOWN = 200
"""Largest size of an integer in the encoding, bytes."""


def pack(values: Sequence[JSON]) -> bytes:
    """Pack values one after the other; arrays and objects are packed as their JSON text.

    >>> show_key(pack(["a", 1, None]))
    '["a",1,null]'

    Raises:
        DocumentError: an integer is too large for the encoding.
    """
    return b"".join(map(_pack, values))


def pack_value(value: JSON) -> bytes:
    """Pack a value outside keys; an integer that is too large for the encoding is packed as its JSON text."""
    if type(value) is int and value.bit_length() > 8 * _MOST_BYTES:
        return b"\x01" + dump_exact(value) + b"\0"
    return _pack(value)


def _pack(value: JSON) -> bytes:
    kind = type(value)
    if kind is str:
        return _pack_text(value)
    if kind is int:
        return _pack_int(value)
    if value is None:
        return b"\0"
    if kind is bool:
        return b"\x27" if value else b"\x26"
    if kind is float:
        return _pack_float(value)
    return b"\x01" + dump_exact(value).replace(b"\0", b"\0\xff") + b"\0"


def _pack_text(value: str) -> bytes:
    if "\0" not in value:
        return f"\x02{value}\0".encode()
    return b"\x02" + value.encode().replace(b"\0", b"\0\xff") + b"\0"


def _pack_int(value: int) -> bytes:
    if 0 < value < 0x1_0000_0000:
        size = (value.bit_length() + 7) // 8
        return _SMALL[size] + value.to_bytes(size, "big")
    if value == 0:
        return b"\x14"
    size = (value.bit_length() + 7) // 8
    if size > _MOST_BYTES:
        raise DocumentError(f"an integer of {size} bytes cannot be part of a key: the limit is {_MOST_BYTES} bytes")
    if value > 0:
        code = bytes((0x14 + size,)) if size <= 8 else bytes((0x1D, size))
        return code + value.to_bytes(size, "big")
    code = bytes((0x14 - size,)) if size <= 8 else bytes((0x0B, size ^ 0xFF))
    return code + (value + (1 << (8 * size)) - 1).to_bytes(size, "big")


def _pack_float(value: float) -> bytes:
    bits = struct.pack(">d", value)
    flipped = bytes(byte ^ 0xFF for byte in bits) if bits[0] & 0x80 else bytes((bits[0] ^ 0x80,)) + bits[1:]
    return b"\x21" + flipped


def unpack(packed: bytes) -> tuple[JSON, ...]:
    """Return the values of a packed key; arrays and objects are the bytes of their JSON text."""
    values: list[JSON] = []
    offset = 0
    while offset < len(packed):
        value, offset = _unpack(packed, offset)
        values.append(value)
    return tuple(values)


def _unpack(packed: bytes, offset: int) -> tuple[JSON, int]:
    code = packed[offset]
    offset += 1
    if code == _NULL:
        return None, offset
    if code in (_FALSE, _TRUE):
        return code == _TRUE, offset
    if code in (_BYTES, _STRING):
        end = packed.index(b"\0", offset)
        while packed[end + 1 : end + 2] == b"\xff":
            end = packed.index(b"\0", end + 2)
        text = packed[offset:end].replace(b"\0\xff", b"\0")
        return text.decode() if code == _STRING else text, end + 1
    if code == _DOUBLE:
        bits = packed[offset : offset + 8]
        raw = bytes((bits[0] ^ 0x80,)) + bits[1:] if bits[0] & 0x80 else bytes(byte ^ 0xFF for byte in bits)
        return struct.unpack(">d", raw)[0], offset + 8
    return _unpack_int(packed, code, offset)


def _unpack_int(packed: bytes, code: int, offset: int) -> tuple[int, int]:
    if code == 0x1D:
        size, offset = packed[offset], offset + 1
    elif code == 0x0B:
        size, offset = packed[offset] ^ 0xFF, offset + 1
    elif 0x0C <= code <= 0x1C:
        size = abs(code - _INT_ZERO)
    else:
        raise ValueError(f"not a packed key: code {code:#x} at byte {offset - 1}")
    number = int.from_bytes(packed[offset : offset + size], "big")
    if code < _INT_ZERO:
        number -= (1 << (8 * size)) - 1
    return number, offset + size


def show_key(packed: bytes) -> str:
    """Return a packed key as JSON for messages, truncated if it is long."""
    values = [orjson.Fragment(component) if isinstance(component, bytes) else component for component in unpack(packed)]
    text = dump_exact(values).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def compile_key(pointers: Sequence[str], defaults: Sequence[JSON]) -> Callable[[JSON], bytes]:
    """Return a function from a document to its packed key; `compile_keys` is for many documents."""
    pack_all = compile_keys(pointers, defaults)
    return lambda document: pack_all([document])[0]


def compile_keys(pointers: Sequence[str], defaults: Sequence[JSON]) -> Callable[[Sequence[JSON]], list[bytes]]:
    """Return a function from documents to their packed keys.

    The function packs one component at a time, so that checks are per column instead of per value. It raises a
    `DocumentError` if an integer is too large for the encoding.

    Args:
        pointers: locations of the key's components.
        defaults: values of the components for documents that lack them.
    """
    columns = [_compile_column(pointer, default) for pointer, default in zip(pointers, defaults, strict=True)]

    def pack_all(documents: Sequence[JSON]) -> list[bytes]:
        packed = [b""] * len(documents)
        for column in columns:
            packed = list(map(add, packed, pack_column(column(documents))))
        return packed

    return pack_all


def absent_fields(pointers: Sequence[str], defaults: Sequence[JSON], document: JSON) -> list[str]:
    """Return the fields of a key, by their pointers, that a document lacks; a field with a default is never absent."""
    fields = zip(pointers, defaults, strict=True)
    return [pointer for pointer, default in fields if default is None and compile_pointer(pointer)(document) is MISSING]


def key_errors(
    pack_all: Callable[[Sequence[JSON]], list[bytes]], documents: Sequence[JSON]
) -> Iterator[tuple[int, DocumentError]]:
    """Yield the index and the error of each document whose key cannot be packed.

    Args:
        pack_all: a function of `compile_keys`.
        documents: the documents.
    """
    for index, document in enumerate(documents):
        try:
            pack_all([document])
        except DocumentError as exc:
            yield index, exc


def _compile_column(pointer: str, default: JSON) -> Callable[[Sequence[JSON]], list[JSON]]:
    tokens = parse_pointer(pointer)
    if len(tokens) == 1:
        (name,) = tokens
        return lambda documents: [document.get(name, default) for document in documents]
    get = compile_pointer(pointer)

    def column(documents: Sequence[JSON]) -> list[JSON]:
        return [default if value is MISSING else value for value in map(get, documents)]

    return column


def pack_column(values: Sequence[JSON]) -> list[bytes]:
    """Pack the values of one component of many keys.

    Raises:
        DocumentError: an integer is too large for the encoding.
    """
    kinds = set(map(type, values))
    if kinds == {str}:
        return list(map(_pack_text, values))
    if kinds == {int}:
        return list(map(_pack_int, values))
    return [_pack(_integral(value)) for value in values]


def packed_key(values: Sequence[JSON]) -> bytes:
    """Return the packed key with these components.

    Raises:
        DocumentError: an integer is too large for the encoding.
    """
    return b"".join(pack_column([value])[0] for value in values)


def _integral(value: JSON) -> JSON:
    # 1.0 equals the integer 1: both spellings are one key.
    return int(value) if type(value) is float and value.is_integer() else value
