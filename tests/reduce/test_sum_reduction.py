"""The `sum` strategy: exact, or an error."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import ReductionError
from derive.reduce.combiner import Combiner

SUM = Combiner({"reduce": {"strategy": "sum"}})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([168, 2**64 - 33], 2**64 + 135),  # exact beyond 64 bits
        ([-(2**63), 1], 1 - 2**63),
        ([1, 0.5], 1.5),
        (["1", 0], "1"),  # a string makes the result one
        ([1, "2"], "3"),
        (["0.1", "0.2"], "0.3"),
        (["1.50"], "1.50"),  # all digits
        (["1.50", "-0.5"], "1.00"),
        (["99999999999999999999.99", "0.01"], "100000000000000000000.00"),
        (["1e3", 2**80], "1208925819614629174707176"),
        (["1e-3", "-1E+1"], "-9.999"),
        (["-0", "-0"], "0"),
        (["1e3"], "1e3"),  # nothing is added
        (["1", 0.1], "1.1000000000000000055511151231257827021181583404541015625"),  # all of 0.1, as it is
    ],
)
def test_numbers_are_summed(values: list[Any], expected: Any) -> None:
    found = SUM.full(values)

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "'sum' strategy expects numbers, having values LHS: 1, RHS: null"),
        ([True], "expects numbers, having values LHS: 0, RHS: true"),
        (["x" * 300], 'RHS: "x{199}…$'),
        (["one"], "expects numbers"),
        (["1", "0x1"], "expects numbers"),
        (["NaN"], "expects numbers"),  # of the format `number`, but not to be added
        (["1", [2]], "expects numbers"),
        ([1e308, 1e308], "'sum' resulted in numeric overflow"),
        ([10**309, 0.5], "'sum' resulted in numeric overflow"),
        (["1e6145"], "'sum' resulted in numeric overflow"),
        (["1e-6145"], "'sum' resulted in numeric overflow"),
        (["1e" + "9" * 30], "'sum' resulted in numeric overflow"),
    ],
)
def test_values_without_a_sum_are_refused(values: list[Any], message: str) -> None:
    with pytest.raises(ReductionError, match=message):
        SUM.full(values)


@given(st.lists(st.decimals(-(10**30), 10**30, places=9), min_size=1, max_size=6))
def test_decimal_strings_add_up_exactly(values: list[Decimal]) -> None:
    texts = [format(each, "f") for each in values]

    assert Fraction(SUM.full(texts)) == sum(map(Fraction, texts))
