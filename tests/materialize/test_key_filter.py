"""What is known of keys is never that one is absent which was stored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from derive.document.key import pack
from derive.materialize.grouped import KeyFilter, LastStored

NUMBERS = st.sets(st.integers(0, 40))


def keys(numbers: set[int]) -> pa.BinaryArray:
    return pa.array([pack((number,)) for number in sorted(numbers)], pa.binary())


def stored(known: KeyFilter, numbers: set[int]) -> None:
    array = keys(numbers)
    known.store(LastStored(array, pa.array(["{}"] * len(array), pa.string()), np.zeros(len(array), dtype=np.bool_)))


@given(st.lists(NUMBERS, max_size=4), NUMBERS, st.booleans(), st.sampled_from([None, b"", pack((20,))]))
def test_key_filter_keeps_stored_keys(
    transactions: list[set[int]], asked: set[int], is_empty: bool, largest: bytes | None
) -> None:
    known = KeyFilter(largest, is_empty=is_empty)
    for numbers in transactions:
        stored(known, numbers)
    may_be = dict(zip(sorted(asked), known.may_be_there(keys(asked)).tolist(), strict=True))
    assert all(may_be[number] for number in asked & set().union(*transactions))
    if not is_empty and largest is None:
        assert all(may_be.values())


def test_key_filter_reports_keys_above_the_largest_key_as_new() -> None:
    known = KeyFilter(pack((20,)))
    assert known.may_be_there(keys({5, 20, 21, 300})).tolist() == [True, True, False, False]
    stored(known, {30})
    assert known.may_be_there(keys({25, 31})).tolist() == [True, False]


def test_key_filter_skips_loads_for_absent_keys() -> None:
    known = KeyFilter(is_empty=True)
    for begin in range(0, 40_000, 10_000):
        stored(known, set(range(begin, begin + 10_000, 2)))
    absent = known.may_be_there(keys(set(range(1, 40_000, 2))))
    assert absent.mean() < 0.05
