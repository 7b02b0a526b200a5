"""Exact sums of doubles: integers times powers of two, which are rounded once, when a result is read.

So a sum depends neither on the order in which values come nor on values that were taken away again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

SCALE = 1074
"""Every finite double is an integer times 2**-1074, every product of two one times 2**-2148."""

_MANTISSA = 1 << 53


def units_of(number: float) -> int:
    """How many 2**-1074 a finite number is."""
    fraction, exponent = math.frexp(number)
    mantissa, shift = int(fraction * _MANTISSA), exponent - 53 + SCALE
    return mantissa << shift if shift >= 0 else mantissa >> -shift


def add_mantissa(mantissas: dict[int, int], number: float, weight: int) -> None:
    """Add a finite number, so many times, to sums of mantissas by exponent, which are small integers."""
    fraction, exponent = math.frexp(number)
    mantissas[exponent] = mantissas.get(exponent, 0) + int(fraction * _MANTISSA) * weight


def units_of_mantissas(mantissas: Mapping[int, int]) -> int:
    """How many 2**-1074 sums of mantissas are together."""
    units = 0
    for exponent, mantissa in mantissas.items():
        shift = exponent - 53 + SCALE
        units += mantissa << shift if shift >= 0 else mantissa >> -shift
    return units


def packed(units: int) -> bytes:
    """An integer of any size in few bytes: how many bytes of zeros it ends with (2 bytes), and the rest."""
    if not units:
        return b""
    zeros = ((units & -units).bit_length() - 1) // 8
    rest = units >> 8 * zeros
    return zeros.to_bytes(2, "little") + rest.to_bytes(rest.bit_length() // 8 + 1, "little", signed=True)


def unpacked(data: bytes) -> int:
    """The integer that was packed."""
    return int.from_bytes(data[2:], "little", signed=True) << 8 * int.from_bytes(data[:2], "little") if data else 0


def rounded_double(number: Fraction) -> float:
    """The nearest double, which is infinite for what is too large."""
    return rounded_quotient(number.numerator, number.denominator)


def rounded_quotient(numerator: int, denominator: int) -> float:
    """The double that is nearest to a fraction, which need not be in lowest terms, with a positive denominator."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf
