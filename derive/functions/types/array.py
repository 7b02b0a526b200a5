"""Data of one-dimensional arrays: bytes in PostgreSQL's order of arrays, canonical for equal arrays.

Arrays are compared element by element; NULL comes after all values, and an array after its prefixes. Each element
therefore consists of a byte for its kind, and bytes that sort as values do. The bytes of one value never begin the
bytes of another value. A byte below all kinds ends the array.

Equal intervals may have several data. An array of intervals has the compared bytes of all elements first, and after its
end the remaining bytes of each.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from derive.algebra.types import PLAIN_BYTES, Datum, Type
from derive.errors import SqlError
from derive.functions.types.datetime import TOTAL_BYTES
from derive.functions.types.jsonb import jsonb_key

Elements: TypeAlias = tuple[Datum, ...]
"""The elements of an array: a datum each, None for NULL."""

EMPTY = b"\x01"
"""The array without elements, of any type."""

_END, _VALUE, _NULL = b"\x01\x02\x03"
_ZERO, _ESCAPED_ZERO, _END_OF_BYTES = b"\0", b"\0\xff", b"\0\0"
_BIAS = 1 << 63
_COMPLEMENT = (1 << 64) - 1
_NAN = _COMPLEMENT
_UNSIGNED = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")

_ELEMENT = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"\s*|((?:[^"\\{},]|\\.)+))([,}])', re.DOTALL | re.ASCII)
_QUOTED = re.compile(r'(?i:null)\Z|\Z|.*[{},"\\\s]', re.DOTALL | re.ASCII)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_BOUNDS = re.compile(r"\s*(?:\[\s*[+-]?\d+\s*(?::\s*[+-]?\d+\s*)?\]\s*)+=", re.ASCII)


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


def array_of(kind: Type, elements: Iterable[Datum]) -> bytes:
    """Return the datum of an array.

    Args:
        kind: type of its elements.
        elements: data of its elements.
    """
    if kind is Type.INTERVAL:
        return _of_intervals(elements)
    pack = _packing(kind)
    parts = bytearray()
    for datum in elements:
        if datum is None:
            parts.append(_NULL)
        else:
            parts.append(_VALUE)
            parts += pack(datum)
    parts.append(_END)
    return bytes(parts)


_REMAINING_BYTES = 8
"""Number of bytes of an interval that are not compared."""


def _of_intervals(elements: Iterable[Datum]) -> bytes:
    compared, remaining = bytearray(), bytearray()
    for datum in elements:
        if datum is None:
            compared.append(_NULL)
        else:
            assert isinstance(datum, bytes)
            compared.append(_VALUE)
            compared += datum[:TOTAL_BYTES]
            remaining += datum[TOTAL_BYTES:]
    compared.append(_END)
    return bytes(compared + remaining)


def _intervals_of(datum: bytes) -> Elements:
    elements: list[Datum] = []
    at, rest = 0, len(compared_intervals(datum))
    while datum[at] != _END:
        at += 1
        if datum[at - 1] == _NULL:
            elements.append(None)
            continue
        elements.append(datum[at : at + TOTAL_BYTES] + datum[rest : rest + _REMAINING_BYTES])
        at, rest = at + TOTAL_BYTES, rest + _REMAINING_BYTES
    return tuple(elements)


def compared_intervals(datum: bytes) -> bytes:
    """Return the part of an array of intervals that equal arrays share, and that sorts as the arrays do."""
    at = 0
    while datum[at] != _END:
        at += 1 + (TOTAL_BYTES if datum[at] == _VALUE else 0)
    return datum[: at + 1]


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
    while datum[at] != _END:
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


@lru_cache(maxsize=256)
def texts_of_literal(text: str) -> tuple[str | None, ...]:
    """Parse an array literal such as `{1,"a b",NULL}` into the texts of its elements; None for NULL.

    Raises:
        SqlError: 22P02, the literal is malformed; 0A000, the literal has several dimensions, or bounds.
    """
    body = text.strip(" \t\n\r\v\f")
    if _BOUNDS.match(body):
        raise SqlError("0A000", f'bounds of arrays are not supported: "{text}"', hint="Arrays begin with 1.")
    if not body.startswith("{"):
        detail = 'Array value must start with "{" or dimension information.'
        raise SqlError("22P02", f'malformed array literal: "{text}"', detail=detail)
    if re.fullmatch(r"\{\s*\}", body, re.ASCII):
        return ()
    if re.match(r"\{\s*\{", body, re.ASCII):
        raise SqlError("0A000", f'arrays of several dimensions are not supported: "{text}"', hint="Use jsonb.")
    at, texts = 1, list[str | None]()
    while True:
        match = _ELEMENT.match(body, at)
        if match is None:
            raise SqlError("22P02", f'malformed array literal: "{text}"')
        quoted, plain, end = match.groups()
        texts.append(_unquoted(plain, text) if quoted is None else _ESCAPE.sub(r"\1", quoted))
        at = match.end()
        if end == "}":
            break
    if at != len(body):
        raise SqlError("22P02", f'malformed array literal: "{text}"', detail="Junk after closing right brace.")
    return tuple(texts)


def _unquoted(plain: str, text: str) -> str | None:
    # An escaped space belongs to the element, wherever it stands.
    word = re.match(r"\s*((?:\\.|[^\\])*?)\s*\Z", plain, re.DOTALL | re.ASCII)
    if word is None or not word[1]:
        raise SqlError("22P02", f'malformed array literal: "{text}"')
    return None if word[1].upper() == "NULL" else _ESCAPE.sub(r"\1", word[1])


def literal_of_texts(texts: Sequence[str | None]) -> str:
    """Format an array literal, as `texts_of_literal` reads it and PostgreSQL writes it."""
    return "{" + ",".join("NULL" if text is None else _quoted(text) for text in texts) + "}"


def _quoted(text: str) -> str:
    if not _QUOTED.match(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
