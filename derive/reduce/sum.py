"""The `sum` strategy: integers and decimal strings are exact, and floating-point numbers must stay finite."""

from __future__ import annotations

import decimal
import math
import re

from derive.document.pointer import JSON, MISSING
from derive.reduce.reducer import ReductionFailed

_DECIMAL = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_GREATEST_EXPONENT = 6144
_EXACT = decimal.Context(
    prec=4 * _GREATEST_EXPONENT,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.Inexact, decimal.Overflow],
)
_EXPECTED = "'sum' strategy expects numbers"
_OVERFLOW = "'sum' resulted in numeric overflow"


def reduce_sum(left: JSON, right: JSON, full: bool) -> JSON:
    """Return the sum of two numbers; the later one unchanged if there is no earlier one.

    The sum of two integers is an integer of any size, and that of an integer and a floating-point number is a
    floating-point number. A decimal string (`"10.25"`, `"-3e2"`) makes the sum a decimal string with all digits. Its
    exponent is limited to that of IEEE 754's decimal128.

    Raises:
        ReductionFailed: a value is not a number, or the sum is out of range.
    """
    if left is MISSING:
        reduce_sum(0, right, full)
        return right
    kinds = type(left), type(right)
    if kinds == (int, int):
        return left + right
    if not all(kind is int or kind is float or kind is str for kind in kinds):
        raise ReductionFailed(_EXPECTED, left, right)
    if str in kinds:
        return _exact_sum(left, right)
    try:
        total = left + right
    except OverflowError:
        total = math.inf
    if not math.isfinite(total):
        raise ReductionFailed(_OVERFLOW, left, right)
    return total


def _exact_sum(left: JSON, right: JSON) -> str:
    for value in (left, right):
        if type(value) is str and not _DECIMAL.fullmatch(value):
            raise ReductionFailed(_EXPECTED, left, right)
    try:
        terms = [decimal.Decimal(value) for value in (left, right)]
        for term in terms:
            if abs(term.adjusted()) > _GREATEST_EXPONENT or abs(int(term.as_tuple().exponent)) > _GREATEST_EXPONENT:
                raise ReductionFailed(_OVERFLOW, left, right)
        # The added 0 avoids positive exponents and a negative zero, so that sums do not depend on the order.
        return format(_EXACT.add(_EXACT.add(terms[0], decimal.Decimal(0)), terms[1]), "f")
    except (decimal.DecimalException, ValueError):
        raise ReductionFailed(_OVERFLOW, left, right) from None
