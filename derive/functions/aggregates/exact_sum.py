"""Exact sums of doubles: integers times powers of two, rounded once, when the result is read.

So a sum depends neither on the order of values nor on values that were subtracted again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

SCALE = 1074
"""Every finite double is an integer times 2**-1074, every product of two one times 2**-2148."""

_MANTISSA = 1 << 53


def units_of(number: float) -> int:
    """Return a finite number in units of 2**-1074."""
    fraction, exponent = math.frexp(number)
    mantissa, shift = int(fraction * _MANTISSA), exponent - 53 + SCALE
    return mantissa << shift if shift >= 0 else mantissa >> -shift


def add_mantissa(mantissas: dict[int, int], number: float, weight: int) -> None:
    """Add a finite number with a weight to sums of mantissas by exponent, which are small integers."""
    fraction, exponent = math.frexp(number)
    mantissas[exponent] = mantissas.get(exponent, 0) + int(fraction * _MANTISSA) * weight


def units_of_mantissas(mantissas: Mapping[int, int]) -> int:
    """Return the total of sums of mantissas in units of 2**-1074."""
    units = 0
    for exponent, mantissa in mantissas.items():
        shift = exponent - 53 + SCALE
        units += mantissa << shift if shift >= 0 else mantissa >> -shift
    return units


def packed(units: int) -> bytes:
    """Pack an integer of any size into few bytes: the number of trailing zero bytes (2 bytes), and the rest."""
    if not units:
        return b""
    zeros = ((units & -units).bit_length() - 1) // 8
    rest = units >> 8 * zeros
    return zeros.to_bytes(2, "little") + rest.to_bytes(rest.bit_length() // 8 + 1, "little", signed=True)


def unpacked(data: bytes) -> int:
    """Return a packed integer."""
    return int.from_bytes(data[2:], "little", signed=True) << 8 * int.from_bytes(data[:2], "little") if data else 0


def rounded_double(number: Fraction) -> float:
    """Return the nearest double, which is infinite for large numbers."""
    return rounded_quotient(number.numerator, number.denominator)


def rounded_quotient(numerator: int, denominator: int) -> float:
    """Return the double nearest to a fraction with a positive denominator, which need not be in lowest terms."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf
