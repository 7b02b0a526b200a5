"""Values on the wire: encoding and decoding of data as text or binary, by the client's types."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from derive.algebra.types import Datum, Row, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.scalar.text import fields_of_record
from derive.functions.types.array_literal import literal_of_texts, texts_of_literal
from derive.functions.types.encodings import CLIENT
from derive.functions.types.numbers import text_of_double
from derive.functions.types.pg_type import PG_TYPES, type_of_oid
from derive.functions.types.type_info import (
    INFO_OF,
    READ_IN_ZONE,
    binary_function,
    datum_in_zone,
    datum_of_binary,
    datum_of_text,
    text_function,
    text_of,
)
from derive.sql.pgwire.messages import decode
from derive.sql.results import ResultColumn

Encoder: TypeAlias = Callable[[Datum], bytes]
"""A function that encodes a datum; the datum is not NULL."""

_NULL = b"\xff\xff\xff\xff"
_OID, _JSON, _TEXT, _RECORD, _RECORDS = 26, 114, 25, 2249, 2287
_length, _count = struct.Struct("!i").pack, struct.Struct("!h").pack
_unsigned = struct.Struct("!I")

_INTEGERS = {20: struct.Struct("!q"), 21: struct.Struct("!h"), 23: struct.Struct("!i")}
"""Binary layouts of integers, by oid."""
_PLAIN_INTEGERS = {Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.MZ_TIMESTAMP}


def encoder_of(column: ResultColumn, form: int) -> Encoder:
    """Return the encoder of a column.

    Args:
        column: the column.
        form: 0 for text, 1 for binary.

    Raises:
        SqlError: the client's encoding is not UTF-8, and the column has texts within binary values (0A000).
    """
    encode = _binary_encoder(column) if form else _text_encoder(column.type, column.modifier)
    encoding = CLIENT.get()
    if encoding.is_utf8 or column.type in _PLAIN_INTEGERS or column.type is Type.DOUBLE:
        return encode
    if form and (column.type.element is Type.TEXT or column.oid in {_RECORD, _RECORDS}):
        what = f"arrays of texts and rows in binary are not supported with the client encoding {encoding.name}"
        raise SqlError("0A000", what, hint="Ask for texts, or SET client_encoding = 'UTF8'.")
    is_text = not form or INFO_OF[column.type].is_text or column.oid == _JSON
    return (lambda datum: encoding.recode(encode(datum))) if is_text else encode


def data_rows(rows: Sequence[Row], encoders: Sequence[Encoder]) -> bytes:
    """Return rows as DataRow messages."""
    parts: list[bytes] = []
    count = _count(len(encoders))
    for row in rows:
        at = len(parts)
        parts += (b"D", b"", count)
        size = 6
        for datum, encode in zip(row, encoders, strict=True):
            if datum is None:
                parts.append(_NULL)
                size += 4
            else:
                data = encode(datum)
                parts += (_length(len(data)), data)
                size += 4 + len(data)
        parts[at + 1] = _length(size)
    return b"".join(parts)


def argument_of(oid: int, form: int, data: bytes | None, zone: str | None = None) -> Datum:
    """Return the datum of an argument.

    Args:
        oid: oid of its type.
        form: 0 for text, 1 for binary.
        data: bytes from the client; None for NULL.
        zone: time zone of a timestamp's text without a zone; None for UTC.

    Raises:
        SqlError: the value is invalid; or it is binary, and its type is unknown (0A000).
    """
    if data is None:
        return None
    kind = type_of_oid(oid) or Type.TEXT
    if form and oid and oid not in PG_TYPES:
        hint = "Send the argument as text, and cast it: $1::text."
        raise SqlError("0A000", f"arguments of the type with OID {oid} are not supported in binary form", hint=hint)
    if not form and zone is not None and kind in READ_IN_ZONE:
        return datum_in_zone(kind, decode(data), zone)
    if not form:
        return datum_of_text(kind, decode(data))
    try:
        return _datum_of_binary(oid, kind, data)
    except (struct.error, ValueError) as exc:
        name = PG_TYPES[oid].name if oid in PG_TYPES else str(oid)
        raise SqlError("22P03", f"incorrect binary data format for an argument of type {name}") from exc


def decoder_of(oid: int, form: int, zone: str | None) -> Callable[[bytes], Datum]:
    """Return a function that decodes arguments of one type and format; the arguments are not NULL."""
    layout = _INTEGERS.get(oid) if form else None
    if layout is None:
        return partial(argument_of, oid, form, zone=zone)
    unpack, size = layout.unpack, layout.size

    def integer(data: bytes) -> Datum:
        return int(unpack(data)[0]) if len(data) == size else argument_of(oid, form, data)

    return integer


def _text_encoder(kind: Type, modifier: TypeModifier | None) -> Encoder:
    if kind is Type.TEXT and modifier is None:
        return _utf8
    if kind in _PLAIN_INTEGERS:
        return _ascii
    if kind is Type.DOUBLE and modifier is None:
        return _double
    text = text_function(kind, modifier)
    return lambda datum: text(datum).encode()


def _binary_encoder(column: ResultColumn) -> Encoder:
    oid, kind = column.oid, column.type
    pg_type = PG_TYPES.get(oid)
    if pg_type and pg_type.element and not kind.element:
        return _array_encoder(pg_type.element)
    if oid == _OID:
        return _unsigned.pack
    if oid == _JSON:
        return _utf8
    if oid == _RECORD:
        return _record
    # The client's type may be narrower than the data's type: for example `integer` for a bigint.
    sent = pg_type.type if pg_type and kind in _PLAIN_INTEGERS and pg_type.type in _PLAIN_INTEGERS else kind
    return binary_function(sent, column.modifier)


def _datum_of_binary(oid: int, kind: Type, data: bytes) -> Datum:
    pg_type = PG_TYPES.get(oid)
    if pg_type and pg_type.element and not kind.element:
        return _array_text(data)
    if oid == _OID:
        return int(_unsigned.unpack(data)[0])
    if oid == _JSON:
        return datum_of_text(Type.JSONB, decode(data))
    return decode(data) if kind is Type.TEXT else datum_of_binary(kind, data)


def _ascii(datum: Datum) -> bytes:
    return str(datum).encode("ascii")


def _double(datum: Datum) -> bytes:
    return text_of_double(float(datum or 0)).encode("ascii")


def _utf8(datum: Datum) -> bytes:
    return str(datum).encode()


def _record(datum: Datum) -> bytes:
    """Return a row, which is its text here, with its columns as texts."""
    fields = fields_of_record(str(datum))
    parts = [struct.pack("!i", len(fields))]
    for field in fields:
        data = None if field is None else field.encode()
        parts += (_unsigned.pack(_TEXT), *((_NULL,) if data is None else (_length(len(data)), data)))
    return b"".join(parts)


# Arrays of types that only pg_catalog has; these data are texts such as {1,2}.


def _array_encoder(element: int) -> Encoder:
    pg_type = PG_TYPES[element]
    column = ResultColumn("", pg_type.type, element)
    encode = encoder_of(column, 1)

    def encoded(datum: Datum) -> bytes:
        elements, sizes = texts_of_literal(str(datum))
        if not elements:
            return struct.pack("!iiI", 0, 0, element)
        sizes = sizes or (len(elements),)
        parts = [struct.pack("!iiI", len(sizes), int(None in elements), element)]
        parts += (struct.pack("!ii", size, 1) for size in sizes)
        for text in elements:
            data = None if text is None else encode(datum_of_text(pg_type.type, text))
            parts += (_NULL,) if data is None else (_length(len(data)), data)
        return b"".join(parts)

    return encoded


def _array_text(data: bytes) -> str:
    dimensions, _, element = struct.unpack_from("!iiI", data)
    if dimensions == 0:
        return "{}"
    if dimensions != 1:
        raise ValueError(dimensions)
    at, elements = 20, list[str | None]()
    for _ in range(struct.unpack_from("!i", data, 12)[0]):
        size = struct.unpack_from("!i", data, at)[0]
        at += 4
        if size == -1:
            elements.append(None)
            continue
        if size < 0 or at + size > len(data):
            raise ValueError(size)
        datum = argument_of(element, 1, data[at : at + size])
        elements.append(text_of(type_of_oid(element) or Type.TEXT, datum))
        at += size
    return literal_of_texts(elements)
