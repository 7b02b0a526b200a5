"""A table of types: their names and numbers in PostgreSQL, and their text and binary representations.

Types that are not in the table are older; the modules that need their properties define them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from derive.algebra.types import Datum, Type
from derive.functions.types import network, time_of_day, uuid


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
    )


INFOS: Mapping[Type, TypeInfo] = {
    Type.UUID: TypeInfo(2950, 2951, "uuid", 16, "U", uuid.uuid_of_text, uuid.text_of_uuid, uuid.uuid_of_binary, bytes),
    Type.TIME: TypeInfo(
        1083,
        1183,
        "time",
        8,
        "D",
        time_of_day.time_of_text,
        time_of_day.text_of_time_of_day,
        time_of_day.time_of_binary,
        time_of_day.binary_of_time,
    ),
    Type.INET: _network(869, 1041, "inet"),
    Type.CIDR: _network(650, 651, "cidr"),
    Type.MACADDR: TypeInfo(
        829, 1040, "macaddr", 6, "U", network.mac_of_text, network.text_of_mac, network.mac_of_binary, bytes
    ),
}
