"""Parameters name fields."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from sqlite_derivation import field

from derive.lambda_sql.parameter import find_projection, parameter_of

FIELDS = [field(name, "string") for name in ("a b", "a-b", "a_b", "a/b", "c d", "with$Dollar", "x-y", "hello, world!")]


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("a/b", "$a$b"),
        ("äëïöü/4-2", "$äëïöü$4_2"),  # letters of any script are canonical
        ("with$Dollar", "$p::(with$Dollar)"),  # a dollar would read as a slash
        ("With/Nesting/and+special-hyphen", "$p::(With/Nesting/and+special-hyphen)"),
        ("hello, world!", "$p::(hello,_world!)"),  # white space would end the parameter
    ],
)
def test_a_field_has_a_canonical_parameter(name: str, parameter: str) -> None:
    assert parameter_of(name) == parameter


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a_b", "a_b"),  # exactly, before `a b` and `a-b`, which would do
        ("a$b", "a/b"),  # nested
        ("c_d", "c d"),  # white space
        ("x_y", "x-y"),  # hyphen
        ("p::(hello,_world!)", "hello, world!"),  # explicit: white space
        ("p::(with$Dollar)", "with$Dollar"),  # explicit: verbatim
        ("p::(x_y)", None),  # explicit: no hyphen
        ("A_b", None),  # case counts
        ("nothing", None),
    ],
)
def test_a_parameter_finds_its_field(name: str, found: str | None) -> None:
    projection = find_projection(name, FIELDS)
    assert (projection.field if projection else None) == found


def test_parameter_search_takes_linear_time() -> None:
    """Law: a search for each of 400 fields executes about twice as many lines as a search for each of 200 fields."""

    def lines(count: int) -> int:
        fields = tuple(field(f"c{number}", "integer") for number in range(count))
        reporting = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal reporting
            reporting += event == "line" and frame.f_code.co_filename.endswith("parameter.py")
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            assert [find_projection(f"c{number}", fields) for number in range(count)] == list(fields)
        finally:
            sys.settrace(before)
        return reporting

    assert lines(400) < 2.2 * lines(200)
