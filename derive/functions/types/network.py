"""Network addresses: `inet`, `cidr` and `macaddr` as text, as data, and in PostgreSQL's binary format.

The data of addresses sort in PostgreSQL's order: by family, by the network's bits, by their number, and by
the whole address. A datum therefore consists of a byte for the family, the network's address, its number of bits and
the address.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from derive.errors import SqlError

AddressType: TypeAlias = Literal["inet", "cidr"]

_SIZES = {4: 4, 6: 16}
_FAMILIES = {4: 2, 6: 3}
"""Numbers of address families in PostgreSQL's binary format."""
_VERSIONS = {number: version for version, number in _FAMILIES.items()}
_V4 = re.compile(r"(\d+(?:\.\d+)*)(?:/(\d+))?", re.ASCII)
_HEXADECIMAL_V4 = re.compile(r"0[xX]([0-9a-fA-F]+)(?:/(\d+))?", re.ASCII)
_V6 = re.compile(r"([0-9a-fA-F:]*:[0-9a-fA-F:.]*)(?:/(0|[1-9]\d*))?", re.ASCII)
_MOST_DIGITS = 9
_TOO_LARGE = 256
_ANY_OCTET = r"\s*([+-]?(?:0[xX])?[0-9a-fA-F]++)"
_SHORT_OCTET = r"\s*((?>[+-][0-9a-fA-F]|[0-9a-fA-F]{1,2}+))"
_MAC_FORMS = tuple(
    re.compile(separator.join([octet * count] * (6 // count)) + r"\s*", re.ASCII)
    for octet, count, separator in (
        (_ANY_OCTET, 1, ":"),
        (_ANY_OCTET, 1, "-"),
        (_SHORT_OCTET, 3, ":"),
        (_SHORT_OCTET, 3, "-"),
        (_SHORT_OCTET, 2, r"\."),
        (_SHORT_OCTET, 2, "-"),
        (_SHORT_OCTET, 6, ""),
    )
)
"""The formats of MAC addresses that PostgreSQL reads by `sscanf`, in its order."""
_MAC_SIZE = 6


@dataclass(frozen=True, slots=True)
class Address:
    """An address and its network.

    Attributes:
        version: 4 or 6.
        number: the address as an integer.
        bits: number of the network's bits.
    """

    version: int
    number: int
    bits: int

    @property
    def width(self) -> int:
        """Return the number of bits of an address of this version."""
        return 8 * _SIZES[self.version]

    @property
    def host_mask(self) -> int:
        """Return a mask of the bits that are not the network's."""
        return (1 << self.width - self.bits) - 1

    @property
    def network(self) -> Address:
        """Return the network itself."""
        return Address(self.version, self.number & ~self.host_mask, self.bits)

    def contains(self, other: Address) -> bool:
        """Return whether another network equals this one or is within it."""
        if self.version != other.version or self.bits > other.bits:
            return False
        return (self.number ^ other.number) >> (self.width - self.bits) == 0


def address_datum(address: Address) -> bytes:
    """Return the datum of an address."""
    size = _SIZES[address.version]
    network = address.network.number.to_bytes(size)
    return bytes((address.version,)) + network + bytes((address.bits,)) + address.number.to_bytes(size)


def address_of(datum: bytes) -> Address:
    """Return the address of a datum."""
    size = _SIZES[datum[0]]
    return Address(datum[0], int.from_bytes(datum[size + 2 :]), datum[size + 1])


def address_of_text(kind: AddressType, text: str) -> bytes:
    """Parse an address into its datum.

    Raises:
        SqlError: the address is malformed, or a `cidr` has host bits that are not zero (22P02).
    """
    address = _v6(text) if ":" in text else _v4(kind, text)
    if address is None:
        raise SqlError("22P02", f'invalid input syntax for type {kind}: "{text}"')
    if kind == "cidr" and address.number & address.host_mask:
        detail = "Value has bits set to right of mask."
        raise SqlError("22P02", f'invalid cidr value: "{text}"', detail=detail)
    return address_datum(address)


def _v4(kind: AddressType, text: str) -> Address | None:
    match = (_HEXADECIMAL_V4.fullmatch(text) if kind == "cidr" else None) or _V4.fullmatch(text)
    if match is None:
        return None
    octets = (
        list(bytes.fromhex(match[1] + "0" * (len(match[1]) % 2))) if match.re is _HEXADECIMAL_V4 else _octets(match[1])
    )
    if not 1 <= len(octets) <= 4 or max(octets) > 255:
        return None
    if match[2] is None:
        if kind == "inet" and len(octets) < 4:
            return None
        bits = 32 if kind == "inet" else _classful_bits(octets)
    else:
        bits = int(match[2]) if len(match[2]) <= _MOST_DIGITS else _TOO_LARGE
    if bits > 32 or (kind == "inet" and bits // 8 > len(octets)):
        return None
    return Address(4, int.from_bytes(bytes(octets).ljust(4, b"\0")), bits)


def _octets(text: str) -> list[int]:
    return [int(part) if len(part) <= _MOST_DIGITS else _TOO_LARGE for part in text.split(".")]


def _classful_bits(octets: list[int]) -> int:
    """Return the default number of network bits: the bits of the network's class, or of all octets."""
    first = octets[0]
    bits = 32 if first >= 240 else 8 if first >= 224 else 24 if first >= 192 else 16 if first >= 128 else 8
    bits = max(bits, 8 * len(octets))
    return 4 if bits == 8 and first == 224 else bits


def _v6(text: str) -> Address | None:
    match = _V6.fullmatch(text)
    if match is None or len(match[2] or "") > _MOST_DIGITS:
        return None
    bits = int(match[2] or 128)
    if bits > 128:
        return None
    try:
        return Address(6, int(ipaddress.IPv6Address(match[1])), bits)
    except ValueError:
        return None


def text_of_address(kind: AddressType, datum: bytes) -> str:
    """Format an address as PostgreSQL does: without the number of bits for a complete `inet` address."""
    address = address_of(datum)
    host = host_of(address)
    return host if kind == "inet" and address.bits == address.width else f"{host}/{address.bits}"


def host_of(address: Address) -> str:
    """Format an address without the number of bits."""
    return _shown_v4(address.number) if address.version == 4 else _shown_v6(address.number)


def full_text_of(address: Address) -> str:
    """Format an address with its number of bits, the result of a cast to text."""
    return f"{host_of(address)}/{address.bits}"


def _shown_v4(number: int) -> str:
    return ".".join(map(str, number.to_bytes(4)))


def _shown_v6(number: int) -> str:
    words = [number >> 16 * (7 - index) & 0xFFFF for index in range(8)]
    begin, length = _longest_zeros(words)
    if begin == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        return ("::" if length != 5 else "::ffff:") + _shown_v4(number & 0xFFFFFFFF)
    shown = [f"{word:x}" for word in words]
    if length < 2:
        return ":".join(shown)
    return f"{':'.join(shown[:begin])}::{':'.join(shown[begin + length :])}"


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    """Return the start and the length of the first of the longest runs of zeros."""
    best, begin = (0, 0), None
    for index, word in enumerate([*words, 1]):
        if word == 0 and begin is None:
            begin = index
        elif word and begin is not None:
            if index - begin > best[1]:
                best = begin, index - begin
            begin = None
    return best


def binary_of_address(kind: AddressType, datum: bytes) -> bytes:
    """Return an address in PostgreSQL's binary format."""
    address = address_of(datum)
    size = _SIZES[address.version]
    head = bytes((_FAMILIES[address.version], address.bits, kind == "cidr", size))
    return head + address.number.to_bytes(size)


def address_of_binary(kind: AddressType, data: bytes) -> bytes:
    """Return the datum of an address in binary format.

    Raises:
        SqlError: the bytes are malformed (22P03).
    """
    version = _VERSIONS.get(data[0]) if len(data) >= 4 else None
    if version is None or data[1] > 8 * _SIZES[version] or data[3] != _SIZES[version] or len(data) != 4 + data[3]:
        raise SqlError("22P03", f'invalid external "{kind}" value')
    address = Address(version, int.from_bytes(data[4:]), data[1])
    if kind == "cidr" and address.number & address.host_mask:
        detail = "Value has bits set to right of mask."
        raise SqlError("22P03", 'invalid external "cidr" value', detail=detail)
    return address_datum(address)


def mac_of_text(text: str) -> bytes:
    """Parse a MAC address into six bytes.

    Raises:
        SqlError: 22P02, the text is malformed; 22003, an octet is too large.
    """
    for form in _MAC_FORMS:
        match = form.fullmatch(text)
        if match:
            octets = [int(digits, 16) for digits in match.groups()]
            if not 0 <= min(octets) <= max(octets) <= 255:
                raise SqlError("22003", f'invalid octet value in "macaddr" value: "{text}"')
            return bytes(octets)
    raise SqlError("22P02", f'invalid input syntax for type macaddr: "{text}"')


def text_of_mac(datum: bytes) -> str:
    """Format a MAC address as PostgreSQL does."""
    return datum.hex(":")


def mac_of_binary(data: bytes) -> bytes:
    """Return the datum of a MAC address in binary format.

    Raises:
        SqlError: the bytes are malformed (22P03).
    """
    if len(data) != _MAC_SIZE:
        raise SqlError("22P03", "incorrect binary data format for type macaddr")
    return bytes(data)
