"""JSON arrays as columns: values are those that a parser finds, and texts those that are written of them."""

from __future__ import annotations

import numpy as np
import pytest
from column_values import KINDS
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.module_kit.published import read_column
from derive.document.columns import WrittenColumn, kinds_of
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON

ARRAYS = st.sampled_from(KINDS).flatmap(lambda kind: st.lists(st.lists(kind, min_size=1), min_size=1, max_size=3))


@given(ARRAYS)
def test_columns_of_arrays_hold_their_values(arrays: list[list[JSON]]) -> None:
    values = [value for array in arrays for value in array]

    column = read_column([dump_exact(array) for array in arrays], len(values))

    assert repr(list(column)) == repr(values)
    assert kinds_of(column) == frozenset(map(type, values))
    if isinstance(column, WrittenColumn) and column.numbers is not None:
        assert column.numbers.to_pylist() == [dump_exact(value).decode() for value in values]


@given(st.text(st.sampled_from('019.-,"a\\ n[]'), max_size=9), st.integers(1, 4))
@example("1.2.3", 1)
@example('"","",""', 3)
@example('","', 1)
@example('","",', 2)
def test_arrays_of_a_wrong_length_are_refused(inside: str, count: int) -> None:
    text = f"[{inside}]".encode()
    try:
        values = parse_exact(text)
    except ValueError:
        values = []
    if len(values) != count:
        with pytest.raises(ValueError, match=r"."):
            read_column([text], count)
        return
    column = read_column([text], count)
    assert repr(list(column)) == repr(values)
    if isinstance(column, WrittenColumn) and column.numbers is not None:
        assert column.numbers.to_pylist() == [dump_exact(value).decode() for value in values]


@pytest.mark.parametrize(
    "text",
    [
        '["a"]', '["a","","b c"]', '["\u00e4\U0001f600\u2028\u007f"]', "[0]", "[-7,0.5,-0.25,123456789012345]",
        "[0.001]", "[4503599627370495.5]",
    ],
)  # fmt: skip
def test_simple_columns_are_read_without_parsing(text: str) -> None:
    values = parse_exact(text.encode())
    assert isinstance(read_column([text.encode()], len(values)), WrittenColumn)


@pytest.mark.parametrize(
    "text",
    [
        '["a,b"]', '["\\n"]', '["a",1]', "[null]", "[true]", "[[1]]", "[{}]", "[-0]", "[1.0]", "[1e21]", "[1e-7]",
        "[0.00001]", "[1234567890123456]", "[123456789012345678901]", "[1,null]",
    ],
)  # fmt: skip
def test_other_columns_are_parsed(text: str) -> None:
    values = parse_exact(text.encode())
    assert repr(read_column([text.encode()], len(values))) == repr(values)


@pytest.mark.parametrize("text", [b'["\xff"]', b'["\x01"]', b"{}", b"7", b"[1]]", b"[01]", b"[1.]", b"[.5]", b"[-]"])
def test_invalid_json_is_refused_by_the_column_reader(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_column([text], 1)


def test_column_slices_equal_list_slices() -> None:
    column = read_column([b"[1,2.5]", b"[3]"], 3)

    assert isinstance(column, WrittenColumn)
    assert list(column[1:]) == [2.5, 3]
    assert list(column.take(np.array([2, 0]))) == [3, 1]
    assert column[1:2].kinds == {float}
    assert column.take(np.array([2, 0])).kinds == {int}
    assert (column[0], type(column[0])) == (1, int)
