"""One table of all that is known of a type: how PostgreSQL calls it, and how its values are read and written.

Types that are not here are older than this table; each module has what it needs of them.
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
        oid: the number by which PostgreSQL calls the type.
        array: the number of the type of its arrays.
        name: `typname`.
        size: bytes of a value; -1 if that varies.
        category: `typcategory`.
        of_text: reads a datum as people write it.
        text_of: writes a datum.
        of_binary: reads PostgreSQL's binary form.
        binary_of: writes it.
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
