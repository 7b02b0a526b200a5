"""Conversion of Load and Store messages into keys and rows: packed tuples become columns of values.

Source: the tuple layer specification of FoundationDB (design/tuple.md). `derive.document.key` packs, and unpacks single
tuples. This module splits many tuples by regular expressions, and decodes a column of elements of one kind at once,
which is several times as fast.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import compress, starmap
from operator import gt, itemgetter
from typing import Protocol, TypeAlias

from connectors.kit.requests import Binding, StoredRows, Value
from derive.errors import ProtocolError
from derive.plural import counted
from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb

Column: TypeAlias = list[Value]

_ELEMENT = (
    rb"(\x02[^\x00]*+(?:\x00\xff[^\x00]*+)*+\x00"
    rb"|[\x00\x14\x26\x27]"
    rb"|[\x13\x15].|[\x12\x16]..|[\x11\x17]...|[\x10\x18].{4}|[\x0f\x19].{5}|[\x0e\x1a].{6}|[\x0d\x1b].{7}|[\x0c\x1c].{8}"
    rb"|\x21.{8}"
    rb"|\x01[^\x00]*+(?:\x00\xff[^\x00]*+)*+\x00)"
)
"""One element, except for integers of more than 64 bits."""

_element = re.compile(_ELEMENT, re.DOTALL).match
_first = itemgetter(0)
_DIGITS, _MOST_DIGITS = re.compile(rb"-?[0-9]+"), 600
"""Integers with more digits than this are encoded as text."""

_SIGN = 0x80
_POSITIVE, _NEGATIVE = b"\0\x80" + bytes(7), b"\0" + b"\xff" * 8
_large_codes = {0x1D: 0x00, 0x0B: 0xFF}
"""Codes of integers of more than 64 bits, and the value that their size is XORed with."""

_NULL, _BYTES, _TEXT, _NATURAL, _INTEGER, _FLOAT, _BOOLEAN = range(7)


def _kinds() -> bytes:
    """Return the kind of element for each code."""
    kinds = bytearray(256)
    kinds[0x00], kinds[0x01], kinds[0x02], kinds[0x21] = _NULL, _BYTES, _TEXT, _FLOAT
    kinds[0x0B:0x14] = bytes((_INTEGER,)) * 9
    kinds[0x14:0x1D] = bytes((_NATURAL,)) * 9
    kinds[0x1D] = _INTEGER
    kinds[0x26] = kinds[0x27] = _BOOLEAN
    return bytes(kinds)


_KIND_OF = _kinds()


def unpack_columns(packed: Sequence[bytes], width: int) -> list[Column]:
    """Return the values of packed tuples, by column.

    Args:
        packed: one or more tuples.
        width: number of elements of each tuple.

    Raises:
        ProtocolError: an item is not a packed tuple with this number of elements.
    """
    if not width:
        if any(packed):
            raise ProtocolError("there are packed values, but no fields")
        return []
    columns = unpack_if_all(packed, width)
    if columns is None:
        rows = [_elements(one, width, index) for index, one in enumerate(packed)]
        columns = [decode_column(elements) for elements in zip(*rows, strict=True)]
    return columns


def unpack_if_all(packed: Sequence[bytes], width: int) -> list[Column] | None:
    """Return the values by column, if all are tuples of `width` elements without large integers; otherwise None.

    Raises:
        ProtocolError: a text is not UTF-8.
    """
    matches = list(map(_row(width), packed))
    if None in matches:
        return None
    rows = map(re.Match.groups, matches)  # type: ignore[arg-type]
    return [decode_column(elements) for elements in zip(*rows, strict=True)]


def unpack_joined(joined: bytes, width: int, count: int) -> list[Column] | None:
    """Return the values by column of `count` concatenated tuples of `width` elements; None for other bytes.

    Raises:
        ProtocolError: a text is not UTF-8.
    """
    rows = re.findall(_pattern(width), joined)
    columns: list[Sequence[bytes]] = [rows] if width == 1 else list(zip(*rows, strict=True))
    if len(rows) != count or sum(sum(map(len, column)) for column in columns) != len(joined):
        return None
    return [decode_column(elements) for elements in columns]


@cache
def _row(width: int) -> Callable[[bytes], re.Match[bytes] | None]:
    return _pattern(width).fullmatch


@cache
def _pattern(width: int) -> re.Pattern[bytes]:
    return re.compile(_ELEMENT * width, re.DOTALL)


def _elements(packed: bytes, width: int, index: int) -> tuple[bytes, ...]:
    """Return the elements of one tuple, which may include large integers."""
    elements: list[bytes] = []
    offset = 0
    while offset < len(packed):
        match = _element(packed, offset)
        end = match.end() if match else _end_of_large(packed, offset)
        if end is None:
            what = f"tuple {index} is not a packed tuple: code {packed[offset]:#04x} at byte {offset} of {len(packed)}"
            raise ProtocolError(what)
        elements.append(packed[offset:end])
        offset = end
    if len(elements) != width:
        raise ProtocolError(f"tuple {index} has {counted(len(elements), 'element')} instead of {width}")
    return tuple(elements)


def _end_of_large(packed: bytes, offset: int) -> int | None:
    if packed[offset] not in _large_codes or offset + 1 == len(packed):
        return None
    end = offset + 2 + (packed[offset + 1] ^ _large_codes[packed[offset]])
    return end if end <= len(packed) else None


def decode_column(elements: Sequence[bytes]) -> Column:
    """Return the values of elements.

    Raises:
        ProtocolError: a text is not UTF-8.
    """
    present = set(map(_KIND_OF.__getitem__, set(map(_first, elements))))
    if len(present) == 1:
        return _DECODERS[present.pop()](elements)
    kinds = list(map(_KIND_OF.__getitem__, map(_first, elements)))
    parts: dict[int, Iterator[Value]] = {
        kind: iter(_DECODERS[kind](list(compress(elements, map(kind.__eq__, kinds))))) for kind in present
    }
    return [next(parts[kind]) for kind in kinds]


def _nulls(elements: Sequence[bytes]) -> Column:
    return [None] * len(elements)


def _booleans(elements: Sequence[bytes]) -> Column:
    return [element == b"\x27" for element in elements]


def _naturals(elements: Sequence[bytes]) -> Column:
    number = int.from_bytes
    return [number(element[1:], "big") for element in elements]


def _integers(elements: Sequence[bytes]) -> Column:
    return [_integer(element) for element in elements]


def _integer(element: bytes) -> int:
    code = element[0]
    number = element[2:] if code in _large_codes else element[1:]
    value = int.from_bytes(number, "big")
    return value if code >= 0x14 else value - ((1 << (8 * len(number))) - 1)


def _floats(elements: Sequence[bytes]) -> Column:
    # The sign bit is inverted, and for negative numbers all bits, so that bytes sort like numbers.
    joined = b"".join(elements)
    if min(joined[1::9]) >= _SIGN:
        mask = _POSITIVE * len(elements)
    else:
        mask = b"".join([_POSITIVE if element[1] >= _SIGN else _NEGATIVE for element in elements])
    bits = int.from_bytes(joined, "big") ^ int.from_bytes(mask, "big")
    return [number for (number,) in struct.iter_unpack(">xd", bits.to_bytes(len(mask), "big"))]


def _texts(elements: Sequence[bytes]) -> Column:
    try:
        # Each element is its code, the text, and a zero byte; there are no other zero bytes.
        texts = b"".join(elements).decode()
    except UnicodeDecodeError:
        return [_text(element) for element in elements]
    return list(texts[1:-1].split("\0\2"))


def _text(element: bytes) -> str:
    try:
        return element[1:-1].replace(b"\0\xff", b"\0").decode()
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"a packed text is not UTF-8: {element[1:-1][:100]!r}") from exc


def _byte_strings(elements: Sequence[bytes]) -> Column:
    texts = [
        element[1:-1].replace(b"\0\xff", b"\0") if b"\0" in element[1:-1] else element[1:-1] for element in elements
    ]
    # An integer that is too large for the encoding is its JSON text.
    return [int(text) if len(text) > _MOST_DIGITS and _DIGITS.fullmatch(text) else text for text in texts]


_DECODERS: tuple[Callable[[Sequence[bytes]], Column], ...] = (
    _nulls,
    _byte_strings,
    _texts,
    _naturals,
    _integers,
    _floats,
    _booleans,
)
"""Decoders by kind."""


class _OfBinding(Protocol):
    @property
    def binding(self) -> int: ...


def binding_of(message: _OfBinding, bindings: Sequence[Binding]) -> Binding:
    """Return the binding of a Load or a Store.

    Raises:
        ProtocolError: there is no binding with this index.
    """
    if message.binding >= len(bindings):
        known = f"the session has {counted(len(bindings), 'binding')}, numbered from 0"
        raise ProtocolError(f"{type(message).__name__} names an unknown binding, {message.binding}: {known}")
    return bindings[message.binding]


def keys_of(load: pb.TransactionRequest.Load, binding: Binding) -> list[tuple[Value, ...]]:
    """Return the keys of a Load.

    Raises:
        ProtocolError: the message is not a valid Load of this binding.
    """
    if binding.delta_updates:
        raise ProtocolError(f"Load names {_name(binding)}, which has delta updates")
    if not load.packed_keys:
        raise ProtocolError("Load has no keys")
    arena = load.arena
    _check_end(load.packed_keys, arena, "key")
    columns = _joined(load.packed_keys, arena, len(binding.keys))
    if columns is None:
        packed = [arena[key.begin : key.end] for key in load.packed_keys]
        columns = _unpack(packed, len(binding.keys), binding)
    return list(zip(*columns, strict=True))


def rows_of(store: pb.TransactionRequest.Store, binding: Binding) -> StoredRows:
    """Return the rows of a Store.

    Raises:
        ProtocolError: the message is not a valid Store of this binding.
    """
    count = len(store.packed_keys)
    if not count:
        raise ProtocolError("Store has no keys")
    lengths = [len(store.packed_values), len(store.docs_json), len(store.exists), len(store.delete) or count]
    if lengths != [count] * 4:
        names = ("values", "documents", "exists", "delete")
        counts = ", ".join(f"{name} {length}" for length, name in zip(lengths, names, strict=True))
        raise ProtocolError(f"the lists of Store are not parallel: keys {count}, {counts}")
    arena = store.arena
    _check_end(store.packed_keys, arena, "key")
    _check_end(store.packed_values, arena, "value")
    columns = _columns(store, arena, binding)
    return StoredRows(
        key_columns=columns[: len(binding.keys)],
        value_columns=columns[len(binding.keys) :],
        documents=_documents(store.docs_json, arena),
        exists=list(store.exists),
        deleted=list(store.delete) if store.delete else [False] * count,
    )


def _columns(store: pb.TransactionRequest.Store, arena: bytes, binding: Binding) -> list[list[Value]]:
    """Return the columns of keys and values. If each key and value are adjacent, both are unpacked as one tuple."""
    width = len(binding.keys) + len(binding.values)
    keys, values = store.packed_keys, store.packed_values
    if keys[0].end == values[0].begin and [key.end for key in keys] == [value.begin for value in values]:
        joined = [arena[key.begin : value.end] for key, value in zip(keys, values, strict=True)]
        columns = unpack_if_all(joined, width)
        if columns is not None:
            return columns
    elif binding.values:
        key_columns = _joined(keys, arena, len(binding.keys))
        value_columns = key_columns and _joined(values, arena, len(binding.values))
        if key_columns and value_columns:
            return key_columns + value_columns
    packed = [
        arena[key.begin : key.end] + arena[value.begin : value.end] for key, value in zip(keys, values, strict=True)
    ]
    return _unpack(packed, width, binding)


def _joined(slices: Sequence[flow_pb2.Slice], arena: bytes, width: int) -> list[list[Value]] | None:
    """Return the columns of tuples that are consecutive in the arena, without slices; None for other tuples."""
    begins, ends = [one.begin for one in slices], [one.end for one in slices]
    if begins[1:] != ends[:-1]:
        return None  # the bytes in between could look like tuples
    return unpack_joined(arena[begins[0] : ends[-1]], width, len(begins))


def _unpack(packed: list[bytes], width: int, binding: Binding) -> list[list[Value]]:
    try:
        return unpack_columns(packed, width)
    except ProtocolError as error:
        raise ProtocolError(f"{_name(binding)} has invalid keys or values: {error.message}") from error


def _documents(slices: Sequence[flow_pb2.Slice], arena: bytes) -> list[bytes]:
    # Unlike a truncated tuple, a truncated document may look valid.
    bounds = [(document.begin, document.end) for document in slices]
    if any(starmap(gt, bounds)) or max(map(itemgetter(1), bounds)) > len(arena):
        raise ProtocolError(f"a slice of a document lies outside its arena of {counted(len(arena), 'byte')}")
    return [arena[begin:end] for begin, end in bounds]


def _check_end(slices: Sequence[flow_pb2.Slice], arena: bytes, what: str) -> None:
    if slices[-1].end > len(arena):
        raise ProtocolError(f"a slice of a {what} lies outside its arena of {counted(len(arena), 'byte')}")


def _name(binding: Binding) -> str:
    return f"binding '{'.'.join(binding.resource_path) or binding.collection.name}'"
