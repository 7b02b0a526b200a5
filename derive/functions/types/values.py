"""Data of any type as text, in PostgreSQL's binary form, and as the Python values that functions work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from derive.algebra.type_modifier import TypeModifier
from derive.algebra.types import Datum, Type
from derive.functions.types.binary_format import binary_of_numeric, read_binary
from derive.functions.types.type_info import INFO_OF

DECODERS: Mapping[Type, Callable[[Any], Any]] = {kind: info.decode for kind, info in INFO_OF.items() if info.decode}
"""Functions that return the Python value of a datum, for types whose values are not their data."""

ENCODERS: Mapping[Type, Callable[[Any], Datum]] = {kind: info.encode for kind, info in INFO_OF.items() if info.encode}
"""Functions that return the datum of a Python value, for types whose values are not their data."""


def datum_of_text(kind: Type, text: str) -> Datum:
    """Return the datum of a text, as clients write values of the type.

    Raises:
        SqlError: 22P02, 22003, 22007, 22008, …: the text is invalid for the type.
    """
    return INFO_OF[kind].of_text(text)


def text_of(kind: Type, datum: Datum) -> str:
    """Return the text of a datum other than NULL, as clients receive it; booleans are `t` and `f`."""
    return INFO_OF[kind].text_of(datum)


def text_function(kind: Type, modifier: TypeModifier | None = None) -> Callable[[Any], str]:
    """Return `text_of` for one type and its modifier, for many data."""
    text = INFO_OF[kind].text_of
    return text if modifier is None else lambda datum: modifier.shown(text(datum))


def binary_of(kind: Type, datum: Datum) -> bytes:
    """Return a datum other than NULL in binary representation."""
    return INFO_OF[kind].binary_of(datum)


def binary_function(kind: Type, modifier: TypeModifier | None = None) -> Callable[[Any], bytes]:
    """Return `binary_of` for one type and its modifier, for many data."""
    if modifier and kind is Type.NUMERIC:
        return lambda datum: binary_of_numeric(datum, max(modifier.scale, 0))
    if modifier and kind is Type.TEXT:
        return lambda datum: modifier.shown(datum).encode()
    return INFO_OF[kind].binary_of


def datum_of_binary(kind: Type, data: bytes) -> Datum:
    """Return the datum that a client sent in binary representation.

    Raises:
        SqlError: 22P03, the bytes are invalid for the type; 22021, text is not UTF-8, or contains a NUL.
    """
    return read_binary(kind, INFO_OF[kind].of_binary, data)
