"""Arrays as texts."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import SqlError
from derive.sql.pg_types import elements_of, literal_of


@pytest.mark.parametrize(
    ("literal", "elements"),
    [
        ("{}", []),
        ("{1,2}", ["1", "2"]),
        ('{a,"b c",NULL,"NULL",""}', ["a", "b c", None, "NULL", ""]),
        ('{"a\\\\b","c\\"d"}', ["a\\b", 'c"d']),
    ],
)
def test_arrays_are_written_as_postgresql_does(literal: str, elements: list[str | None]) -> None:
    assert elements_of(literal) == elements
    assert literal_of(elements) == literal


def test_vectors_have_spaces() -> None:
    assert elements_of("1 2 3") == ["1", "2", "3"]
    assert elements_of("") == []


@given(st.lists(st.none() | st.text(), max_size=4))
def test_arrays_are_read_as_they_are_written(elements: list[str | None]) -> None:
    assert elements_of(literal_of(elements)) == elements


@given(st.text(max_size=12))
def test_what_is_read_as_an_array_can_be_written(text: str) -> None:
    with suppress(SqlError):
        elements = elements_of(f"{{{text}}}")
        assert elements_of(literal_of(elements)) == elements


@pytest.mark.parametrize("text", ["a", "{1", "{}1", '{"a"b}'])
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(SqlError, match="malformed array literal"):
        elements_of(text)
