"""What a verify step expects is a part of what there is; strictly, it is all of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.pointer import MISSING
from derive.testing import Difference, differences

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3}),
        ([1], [1, 2]),
        (1, 1.0),
        (0.1 + 0.2, 0.3),
        (2**70, 2**70),
        (None, None),
        ("a", "a"),
    ],
)
def test_partial_document_has_no_difference(expected: Any, actual: Any) -> None:
    assert differences(expected, actual) == []


@pytest.mark.parametrize(
    ("expected", "actual", "found"),
    [
        ({"a": 1}, {}, [Difference("/a", 1, MISSING)]),
        ({"a": 1, "b": 2}, {"a": 2, "b": 3}, [Difference("/a", 1, 2), Difference("/b", 2, 3)]),
        ({"a/b~": [1, {"c": None}]}, {"a/b~": [1, {"c": 0}]}, [Difference("/a~1b~0/1/c", None, 0)]),
        ([1, 2], [1], [Difference("/1", 2, MISSING)]),
        (True, 1, [Difference("", True, 1)]),
        (0, False, [Difference("", 0, False)]),
        ("1", 1, [Difference("", "1", 1)]),
        (1, 1.0000001, [Difference("", 1, 1.0000001)]),
        (2**70, 2**70 + 1, [Difference("", 2**70, 2**70 + 1)]),
        ({}, [], [Difference("", {}, [])]),
        (None, MISSING, [Difference("", None, MISSING)]),
    ],
)
def test_differences_have_their_location(expected: Any, actual: Any, found: list[Difference]) -> None:
    assert differences(expected, actual) == found


def test_strict_comparison_refuses_further_properties() -> None:
    assert differences({"a": [1]}, {"a": [1, 2], "b": 3}, strict=True) == [
        Difference("/a/1", MISSING, 2),
        Difference("/b", MISSING, 3),
    ]


@given(JSON)
def test_value_equals_itself_strictly(value: Any) -> None:
    assert differences(value, value, strict=True) == []


@given(JSON, JSON)
def test_loose_differences_are_a_subset_of_strict_ones(expected: Any, actual: Any) -> None:
    loose = differences(expected, actual)
    strict = differences(expected, actual, strict=True)
    assert [each for each in loose if each not in strict] == []
