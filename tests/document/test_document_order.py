"""Document order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from derive.document.key import compare, order_key
from derive.document.pointer import MISSING

ASCENDING = [
    MISSING,
    None,
    False,
    True,
    -(2**70),
    -1.5,
    0,
    1,
    2**53,
    2**53 + 1,  # which as a float is 2**53: integers are not rounded to compare them
    1e300,
    "",
    "Z",
    "a",
    "é",
    "\U0001f600",
    [],
    [1],
    [1, 0],
    [2],
    {},
    {"a": 1},
    {"a": 1, "b": 0},
    {"a": 2},
    {"b": 0},
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def test_documents_are_ordered_by_kind_and_value() -> None:
    for before, after in pairwise(ASCENDING):
        assert (compare(before, after), compare(after, before), compare(before, before)) == (-1, 1, 0)


def test_order_key_sorts_as_compare() -> None:
    descending = ASCENDING[::-1]

    assert sorted(descending, key=order_key) == ASCENDING


def test_integer_equals_its_float() -> None:
    assert compare(1, 1.0) == 0
    assert compare(2**53 + 1, float(2**53)) == 1


@given(VALUES, VALUES, VALUES)
def test_document_order_is_total(a: object, b: object, c: object) -> None:
    assert compare(a, b) == -compare(b, a)
    assert not (compare(a, b) <= 0 and compare(b, c) <= 0) or compare(a, c) <= 0
