"""One table of all properties of a type: its names, and how its data are read, written, ordered and converted; oids.

`INFOS` has the scalar types that PostgreSQL has, too; `INFO_OF` has every type.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

from derive.algebra.types import ARRAYS, Datum, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.statement_context import context_if_any, current_context
from derive.functions.types import datetime, formats, jsonb, network, numbers, single, timetz
from derive.functions.types.array import array_of, compared_intervals, elements_of
from derive.functions.types.formats import binary_of_numeric, read_binary

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


_UUID_SIZE = 16
_UUID = re.compile(r"\{(?P<braced>(?:[0-9a-f]{4}-?){7}[0-9a-f]{4})\}|(?P<plain>(?:[0-9a-f]{4}-?){7}[0-9a-f]{4})", re.I)


def uuid_of_text(text: str) -> bytes:
    """Return the UUID of a text: hexadecimal digits, with hyphens after any four of them, perhaps in braces.

    Raises:
        SqlError: the text is not a UUID (22P02).
    """
    match = _UUID.fullmatch(text)
    if match is None:
        raise SqlError("22P02", f'invalid input syntax for type uuid: "{text}"')
    return bytes.fromhex((match["braced"] or match["plain"]).replace("-", ""))


def text_of_uuid(datum: bytes) -> str:
    """Return a UUID as PostgreSQL shows it."""
    digits = datum.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def uuid_of_binary(data: bytes) -> bytes:
    """Return the datum of a UUID in binary representation.

    Raises:
        SqlError: the bytes are invalid (22P03).
    """
    if len(data) != _UUID_SIZE:
        raise SqlError("22P03", "incorrect binary data format for type uuid")
    return bytes(data)


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A type.

    Attributes:
        oid: PostgreSQL's number of the type.
        array: PostgreSQL's number of the type's array type.
        name: `typname`.
        size: bytes of a value; -1 if that varies.
        category: `typcategory`.
        of_text: function that parses a datum from text.
        text_of: function that formats a datum as text.
        of_binary: function that parses PostgreSQL's binary representation.
        binary_of: function that writes PostgreSQL's binary representation.
        is_preferred: whether the type is preferred within its category.
        decode: returns the value that functions work with for a datum; None if that is the datum. JSON is cached for a
            while, since queries read many fields of one document; nothing may change it. The value of an array is a
            tuple of data.
        encode: returns the datum of the value of a function; None if that is the value. Functions of jsonb return data
            themselves, because None is NULL.
        is_text: whether the datum is the text.
        sort_key: function from a datum to bytes that sort as the values do; None if the data sort so. Equal values have
            equal keys, and only these.
        has_equal_data: whether equal values have equal data.
        compared_bytes: number of bytes at the begin of a datum that are compared, because equal values may have several
            data; None if all are compared.
    """

    oid: int
    array: int
    name: str
    size: int
    category: str
    of_text: Callable[[str], Datum]
    text_of: Callable[[Any], str]
    of_binary: Callable[[bytes], Datum]
    binary_of: Callable[[Any], bytes]
    is_preferred: bool = False
    decode: Callable[[Any], Any] | None = None
    encode: Callable[[Any], Datum] | None = None
    is_text: bool = False
    sort_key: Callable[[Any], bytes] | None = None
    has_equal_data: bool = True
    compared_bytes: int | None = None

    @property
    def comparison_key(self) -> Callable[[Any], Any] | None:
        """Return the function from data to keys that are equal for equal values, and sort so; None for the data."""
        if self.compared_bytes is None:
            return self.sort_key
        return itemgetter(slice(self.compared_bytes))


def _network(oid: int, array: int, kind: network.AddressType) -> TypeInfo:
    return TypeInfo(
        oid,
        array,
        kind,
        -1,
        "I",
        partial(network.address_of_text, kind),
        partial(network.text_of_address, kind),
        partial(network.address_of_binary, kind),
        partial(network.binary_of_address, kind),
        is_preferred=kind == "inet",
        decode=network.address_of,
        encode=network.address_datum,
    )


def _integer(kind: Type, oid: int, array: int, name: str, size: int) -> TypeInfo:
    of_binary, binary_of = formats.integer_format(size)
    return TypeInfo(oid, array, name, size, "N", partial(formats.integer_of_text, kind), str, of_binary, binary_of)


def _registered(kind: Type, oid: int, array: int) -> TypeInfo:
    return TypeInfo(
        oid,
        array,
        kind.value,
        4,
        "N",
        partial(registered_of_text, kind),
        partial(text_of_registered, kind),
        oid_of_binary,
        binary_of_oid,
    )


def _array(element: Type, info: TypeInfo) -> TypeInfo:
    """Return the type of arrays of a type."""
    return TypeInfo(
        info.array,
        0,
        f"_{info.name}",
        -1,
        "A",
        partial(formats.array_of_text, element, info.of_text),
        partial(formats.text_of_array, element, info.text_of),
        partial(formats.array_of_binary, element, info.oid, info.of_binary),
        partial(formats.binary_of_array, element, info.oid, info.binary_of),
        decode=partial(elements_of, element),
        encode=partial(array_of, element),
        sort_key=None if info.compared_bytes is None else compared_intervals,
        has_equal_data=info.compared_bytes is None,
    )


INFOS: Mapping[Type, TypeInfo] = {
    Type.BOOLEAN: TypeInfo(
        16,
        1000,
        "bool",
        1,
        "B",
        formats.boolean_of_text,
        lambda datum: "t" if datum else "f",
        formats.boolean_of_binary,
        lambda datum: b"\x01" if datum else b"\0",
        is_preferred=True,
        encode=int,
    ),
    Type.BYTEA: TypeInfo(
        17, 1001, "bytea", -1, "U", formats.bytea_of_text, lambda datum: f"\\x{datum.hex()}", bytes, bytes
    ),
    Type.SMALLINT: _integer(Type.SMALLINT, 21, 1005, "int2", 2),
    Type.INTEGER: _integer(Type.INTEGER, 23, 1007, "int4", 4),
    Type.BIGINT: _integer(Type.BIGINT, 20, 1016, "int8", 8),
    Type.TEXT: TypeInfo(
        25, 1009, "text", -1, "S", str, str, formats.text_of_binary, str.encode, is_preferred=True, is_text=True
    ),
    Type.REAL: TypeInfo(
        700,
        1021,
        "float4",
        4,
        "N",
        single.datum_of_text,
        single.text_of,
        single.of_binary,
        single.binary_of,
        decode=numbers.float_of,
        encode=single.single_datum,
    ),
    Type.DOUBLE: TypeInfo(
        701,
        1022,
        "float8",
        8,
        "N",
        lambda text: numbers.double_datum(numbers.double_of_text(text)),
        lambda datum: numbers.text_of_double(numbers.float_of(datum)),
        formats.double_of_binary,
        formats.binary_of_double,
        is_preferred=True,
        decode=numbers.float_of,
        encode=numbers.double_datum,
    ),
    Type.NUMERIC: TypeInfo(
        1700,
        1231,
        "numeric",
        -1,
        "N",
        lambda text: numbers.numeric_of_plain(text) or numbers.numeric_of(formats.numeric_of_text(text)),
        lambda datum: numbers.text_of_numeric(numbers.decimal_of(datum)),
        formats.numeric_of_binary,
        formats.binary_of_numeric,
        decode=numbers.decimal_of,
        encode=numbers.numeric_of,
    ),
    Type.DATE: TypeInfo(
        1082,
        1182,
        "date",
        4,
        "D",
        datetime.date_of_text,
        datetime.text_of_date,
        formats.date_of_binary,
        formats.binary_of_date,
    ),
    Type.TIMESTAMP: TypeInfo(
        1114,
        1115,
        "timestamp",
        8,
        "D",
        partial(datetime.timestamp_of_text, has_zone=False),
        datetime.text_of_timestamp,
        formats.timestamp_of_binary,
        formats.binary_of_timestamp,
    ),
    Type.TIMESTAMPTZ: TypeInfo(
        1184,
        1185,
        "timestamptz",
        8,
        "D",
        partial(datetime.timestamp_of_text, has_zone=True),
        lambda datum: datetime.text_of_timestamp(datum, "+00"),
        formats.timestamp_of_binary,
        formats.binary_of_timestamp,
        is_preferred=True,
    ),
    Type.INTERVAL: TypeInfo(
        1186,
        1187,
        "interval",
        16,
        "T",
        lambda text: datetime.interval_datum(datetime.interval_of_text(text)),
        lambda datum: datetime.text_of_interval(datetime.interval_of(datum)),
        formats.interval_of_binary,
        formats.binary_of_interval,
        is_preferred=True,
        decode=datetime.interval_of,
        encode=datetime.interval_datum,
        has_equal_data=False,
        compared_bytes=datetime.TOTAL_BYTES,
    ),
    Type.JSONB: TypeInfo(
        3802,
        3807,
        "jsonb",
        -1,
        "U",
        jsonb.jsonb_of_text,
        str,
        formats.jsonb_of_binary,
        formats.binary_of_jsonb,
        decode=lru_cache(maxsize=16)(jsonb.parsed_json),
        is_text=True,
        sort_key=jsonb.jsonb_key,
    ),
    Type.UUID: TypeInfo(2950, 2951, "uuid", 16, "U", uuid_of_text, text_of_uuid, uuid_of_binary, bytes),
    Type.TIME: TypeInfo(
        1083,
        1183,
        "time",
        8,
        "D",
        datetime.time_of_text,
        datetime.text_of_time_of_day,
        datetime.time_of_binary,
        datetime.binary_of_time,
    ),
    Type.TIMETZ: TypeInfo(
        1266,
        1270,
        "timetz",
        12,
        "D",
        timetz.datum_of_text,
        timetz.text_of,
        timetz.of_binary,
        timetz.binary_of,
        decode=timetz.value_of,
        encode=timetz.datum_of,
    ),
    Type.INET: _network(869, 1041, "inet"),
    Type.CIDR: _network(650, 651, "cidr"),
    Type.MACADDR: TypeInfo(
        829, 1040, "macaddr", 6, "U", network.mac_of_text, network.text_of_mac, network.mac_of_binary, bytes
    ),
    Type.OID: TypeInfo(26, 1028, "oid", 4, "N", oid_of_text, str, oid_of_binary, binary_of_oid),
    Type.REGPROC: _registered(Type.REGPROC, 24, 1008),
    Type.REGCLASS: _registered(Type.REGCLASS, 2205, 2210),
    Type.REGTYPE: _registered(Type.REGTYPE, 2206, 2211),
    Type.REGNAMESPACE: _registered(Type.REGNAMESPACE, 4089, 4090),
    Type.REGROLE: _registered(Type.REGROLE, 4096, 4097),
}

INFO_OF: Mapping[Type, TypeInfo] = {
    **INFOS,
    Type.MZ_TIMESTAMP: replace(_integer(Type.MZ_TIMESTAMP, 20, 0, "int8", 8), category="U"),
    Type.UNKNOWN: replace(INFOS[Type.TEXT], category="X", is_preferred=False),
    **{kind: _array(kind.element, INFOS[kind.element]) for kind in ARRAYS if kind.element},
}
"""The properties of every type. Clients see an `mz_timestamp` as a bigint, and a value without a type as text."""


DECODERS: Mapping[Type, Callable[[Any], Any]] = {kind: info.decode for kind, info in INFO_OF.items() if info.decode}
"""Functions that return the Python value of a datum, for types whose values are not their data."""

ENCODERS: Mapping[Type, Callable[[Any], Datum]] = {kind: info.encode for kind, info in INFO_OF.items() if info.encode}
"""Functions that return the datum of a Python value, for types whose values are not their data."""


def datum_of_text(kind: Type, text: str) -> Datum:
    """Parse a text, as clients write values of the type, into a datum.

    Raises:
        SqlError: 22003, 22007, 22008, …: the text is invalid for the type (22P02).
    """
    return INFO_OF[kind].of_text(text)


def text_of(kind: Type, datum: Datum) -> str:
    """Return the text of a datum other than NULL, as clients receive it; booleans are `t` and `f`."""
    return INFO_OF[kind].text_of(datum)


def text_function(kind: Type, modifier: TypeModifier | None = None) -> Callable[[Any], str]:
    """Return `text_of` for one type and its modifier, for many data."""
    if modifier is not None and modifier.zone:
        return _zoned(kind, datetime.zone_named(modifier.zone))
    text = INFO_OF[kind].text_of
    return text if modifier is None else lambda datum: modifier.shown(text(datum))


def _zoned(kind: Type, zone: datetime.Zone) -> Callable[[Any], str]:
    """Return the function from timestamps with time zone, or arrays of them, to their texts in a zone."""

    def text(datum: int) -> str:
        return datetime.text_in_zone(datum, zone)

    return text if kind.element is None else partial(formats.text_of_array, Type.TIMESTAMPTZ, text)


ZONED = frozenset({Type.TIMESTAMPTZ, Type.TIMESTAMPTZ_ARRAY})
"""Types whose texts depend on the time zone of the session."""
READ_IN_ZONE = ZONED | {Type.TIMETZ, Type.TIMETZ_ARRAY}
"""Types whose values depend on the time zone of the session, if their texts name none."""


def datum_in_zone(kind: Type, text: str, zone: str) -> Datum:
    """Parse a timestamp or time with time zone, or an array of them; without a zone it is a local time of `zone`.

    Raises:
        SqlError: the text is malformed, or out of range (22007 or 22008).
    """
    element = kind.element or kind
    of_text: Callable[[str], Datum] = (
        partial(timetz.datum_of_text, zone=datetime.zone_named(zone))
        if element is Type.TIMETZ
        else partial(datetime.timestamp_of_text, has_zone=True, zone=datetime.zone_named(zone))
    )
    return of_text(text) if kind.element is None else formats.array_of_text(element, of_text, text)


def binary_function(kind: Type, modifier: TypeModifier | None = None) -> Callable[[Any], bytes]:
    """Return the function from data of a type, other than NULL, to their binary representation."""
    if modifier and kind is Type.NUMERIC:
        return lambda datum: binary_of_numeric(datum, max(modifier.scale, 0))
    if modifier and kind is Type.NUMERIC_ARRAY:
        write = binary_function(Type.NUMERIC, modifier)
        return partial(formats.binary_of_array, Type.NUMERIC, INFOS[Type.NUMERIC].oid, write)
    if modifier and kind is Type.TEXT:
        return lambda datum: modifier.shown(datum).encode()
    return INFO_OF[kind].binary_of


def datum_of_binary(kind: Type, data: bytes) -> Datum:
    """Return the datum that a client sent in binary representation.

    Raises:
        SqlError: 22P03, the bytes are invalid for the type; 22021, text is not UTF-8, or contains a NUL.
    """
    return read_binary(kind, INFO_OF[kind].of_binary, data)
