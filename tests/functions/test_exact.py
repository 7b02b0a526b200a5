"""Sums of doubles, and how they are rounded."""

from __future__ import annotations

import pytest

from derive.functions.aggregates.accumulator import SCALE, rounded_quotient


@pytest.mark.parametrize(
    ("numerator", "denominator", "nearest"),
    [
        (1, 3, 0.3333333333333333),
        (2, 6, 0.3333333333333333),
        (-7, 2, -3.5),
        (0, 1 << SCALE, 0.0),
        (1, 1 << SCALE, 5e-324),
        (1, 3 << SCALE, 0.0),
        (2, 3 << SCALE, 5e-324),
        ((1 << 53) + 1, 1, 9007199254740992.0),  # half way, so it is the even one
        ((1 << 54) + 3, 1 << 1, 9007199254740994.0),
        (17976931348623157 * 10**292 << SCALE, 1 << SCALE, 1.7976931348623157e308),
        (10**309, 1, float("inf")),
        (-(10**309) << SCALE, 1 << SCALE, float("-inf")),
    ],
)
def test_fractions_are_rounded_to_the_nearest_double(numerator: int, denominator: int, nearest: float) -> None:
    """Fractions need not be in lowest terms."""
    assert rounded_quotient(numerator, denominator) == nearest
