"""Oids, and the `reg…` types whose texts are names of objects in PostgreSQL's catalogs."""

from __future__ import annotations

import struct

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.statement_context import context_if_any, current_context

_UNSIGNED = struct.Struct(">I")
_MOST = (1 << 32) - 1
_MISSING = {
    Type.REGCLASS: ("42P01", "relation"),
    Type.REGTYPE: ("42704", "type"),
    Type.REGPROC: ("42883", "function"),
    Type.REGNAMESPACE: ("3F000", "schema"),
    Type.REGROLE: ("42704", "role"),
}


def oid_of_text(text: str) -> int:
    """Parse the oid in a text of digits.

    Raises:
        SqlError: 22P02, the text is not a number; 22003, the number is out of range.
    """
    word = text.strip()
    if not word.removeprefix("-").isdecimal() or not word.isascii():
        raise SqlError("22P02", f'invalid input syntax for type oid: "{text}"')
    return oid_of_integer(int(word), text)


def oid_of_integer(number: int, text: str | None = None) -> int:
    """Return the oid of an integer. A negative 32-bit integer stands for the oid with the same bits.

    Raises:
        SqlError: the number is out of range (22003).
    """
    if not -1 << 31 <= number <= _MOST:
        raise SqlError("22003", "OID out of range" if text is None else f'value "{text}" is out of range for type oid')
    return number & _MOST


def registered_of_text(kind: Type, text: str) -> int:
    """Return the oid of an object's name, of a number as text, or of `-`.

    Raises:
        SqlError: 42P01, 42704, 42883 or 3F000, the object does not exist; 0A000, no statement is running.
    """
    word = text.strip()
    if word == "-":
        return 0
    if word.isdecimal() and word.isascii():
        return oid_of_text(word)
    oid = current_context().catalog.oid_of(kind.value, word)
    if oid is None:
        sqlstate, what = _MISSING[kind]
        raise SqlError(sqlstate, f'{what} "{word}" does not exist')
    return oid


def text_of_registered(kind: Type, oid: int) -> str:
    """Return the name of an object; the number of an unknown object; `-` for 0."""
    context = context_if_any()
    name = context.catalog.name_of(kind.value, oid) if oid and context else None
    return name or (str(oid) if oid else "-")


def oid_of_binary(data: bytes) -> int:
    """Read an oid from its binary form."""
    return int(_UNSIGNED.unpack(data)[0])


binary_of_oid = _UNSIGNED.pack
