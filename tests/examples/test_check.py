"""The demo's check finds whatever is not as it should be."""

from __future__ import annotations

import pytest
from example_script import import_script

check = import_script("check.py")
EXPECTED = {("a", 1): {"k": "a", "n": 1, "value": 1.5}, ("b", 2): {"k": "b", "n": 2, "value": 2}}
RIGHT = [{"k": "b", "n": 2, "value": 2}, {"k": "a", "n": 1, "value": 1.5}]
# What is found, and what is told of it.
WRONG = [
    (
        [RIGHT[0], {**RIGHT[1], "value": 1.25}],
        ['["a", 1] is {"k": "a", "n": 1, "value": 1.25} and should be {"k": "a", "n": 1, "value": 1.5}'],
    ),
    (RIGHT[:1], ['["a", 1] is missing: {"k": "a", "n": 1, "value": 1.5}']),
    ([*RIGHT, {"k": "c", "n": 3}], ['["c", 3] should not be there: {"k": "c", "n": 3}']),
    ([*RIGHT, RIGHT[0]], ['["b", 2] should not be there: {"k": "b", "n": 2, "value": 2}']),
]


def test_right_documents_have_no_differences() -> None:
    assert check.differences(RIGHT, EXPECTED, "k", "n") == []
    assert check.differences([{"k": "a"}], {"a": {"k": "a"}}, "k") == []


@pytest.mark.parametrize(("found", "reported"), WRONG)
def test_wrong_documents_are_reported(found: list[dict[str, object]], reported: list[str]) -> None:
    assert check.differences(found, EXPECTED, "k", "n") == reported
