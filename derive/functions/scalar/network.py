"""Functions of `inet`, `cidr` and `macaddr`."""

from __future__ import annotations

from dataclasses import replace

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.types.network import Address, full_text_of, host_of

FUNCTIONS = Functions()

_A, _N, _I, _T, _B = Type.INET, Type.CIDR, Type.INTEGER, Type.TEXT, Type.BOOLEAN


def _netmask(address: Address) -> Address:
    return Address(address.version, (1 << address.width) - 1 & ~address.host_mask, address.width)


def _host_mask(address: Address) -> Address:
    return Address(address.version, address.host_mask, address.width)


def _broadcast(address: Address) -> Address:
    return replace(address, number=address.number | address.host_mask)


def _with_bits(address: Address, bits: int) -> Address:
    bits = address.width if bits == -1 else bits
    if not 0 <= bits <= address.width:
        raise SqlError("22023", f"invalid mask length: {bits}")
    return replace(address, bits=bits)


def _abbreviated(address: Address) -> str:
    return host_of(address) if address.bits == address.width else full_text_of(address)


def _is_within(address: Address, other: Address) -> bool:
    return other.bits < address.bits and other.contains(address)


def _advanced(address: Address, count: int) -> Address:
    number = address.number + count
    if not 0 <= number < 1 << address.width:
        raise SqlError("22003", "result is out of range")
    return replace(address, number=number)


def _distance(address: Address, other: Address) -> int:
    if address.version != other.version:
        raise SqlError("22023", "cannot subtract inet values of different sizes")
    distance = address.number - other.number
    if not -1 << 63 <= distance < 1 << 63:
        raise SqlError("22003", "result is out of range")
    return distance


def _add() -> None:
    define = FUNCTIONS.define
    define("host", (_A,), _T, can_fail=False)(host_of)
    define("text", (_A,), _T, can_fail=False)(full_text_of)
    define("abbrev", (_A,), _T, can_fail=False)(_abbreviated)
    define("family", (_A,), _I, can_fail=False)(lambda address: address.version)
    define("masklen", (_A,), _I, can_fail=False)(lambda address: address.bits)
    define("netmask", (_A,), _A, can_fail=False)(_netmask)
    define("hostmask", (_A,), _A, can_fail=False)(_host_mask)
    define("network", (_A,), _N, can_fail=False)(lambda address: address.network)
    define("broadcast", (_A,), _A, can_fail=False)(_broadcast)
    define("inet_same_family", (_A, _A), _B, can_fail=False)(lambda one, other: one.version == other.version)
    define("set_masklen", (_A, _I), _A)(_with_bits)
    define("set_masklen", (_N, _I), _N)(lambda address, bits: _with_bits(address, bits).network)
    define("+", (_A, Type.BIGINT), _A, word="advanced")(_advanced)
    define("+", (Type.BIGINT, _A), _A, word="advanced")(lambda count, address: _advanced(address, count))
    define("-", (_A, Type.BIGINT), _A, word="moved_back")(lambda address, count: _advanced(address, -count))
    both = (_A, _A)
    define("-", both, Type.BIGINT, word="distance")(_distance)
    define("<<", both, _B, word="within", can_fail=False)(_is_within)
    define("<<=", both, _B, word="within_or_equal", can_fail=False)(lambda one, other: other.contains(one))
    define(">>", both, _B, word="around", can_fail=False)(lambda one, other: _is_within(other, one))
    define(">>=", both, _B, word="around_or_equal", can_fail=False)(lambda one, other: one.contains(other))
    overlap = lambda one, other: one.contains(other) or other.contains(one)  # noqa: E731
    define("&&", both, _B, word="overlap", can_fail=False)(overlap)
    define("trunc", (Type.MACADDR,), Type.MACADDR, can_fail=False)(lambda mac: mac[:3] + b"\0\0\0")


_add()
