"""Documents as columns: what is made of them is what is made of the documents."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from column_values import columns
from hypothesis import given
from hypothesis import strategies as st

from derive.document.columns import Columns, are_finite
from derive.document.key import compile_keys, pack, packed_key
from derive.document.key_columns import KeyColumns, pack_components
from derive.errors import DocumentError


@given(columns("a", "b", "c"), st.data())
def test_column_slices_equal_document_slices(some: Columns, data: st.DataObject) -> None:
    documents = some.documents()
    numbers = data.draw(st.lists(st.integers(0, len(some) - 1), max_size=4))
    begin, end = sorted(data.draw(st.tuples(st.integers(0, len(some)), st.integers(0, len(some)))))

    assert len(documents) == len(some)
    assert some.take(np.array(numbers, dtype=int)).documents() == [documents[number] for number in numbers]
    assert some.slice(begin, end).documents() == documents[begin:end]


def test_values_of_one_property_are_replaced() -> None:
    some = Columns.of(("a", "b"), [[1, 2], ["x", "y"]]).replace(0, [True, None])

    assert some.documents() == [{"a": True, "b": "x"}, {"a": None, "b": "y"}]
    assert some.kinds == (frozenset({bool, type(None)}), frozenset({str}))


@pytest.mark.parametrize(
    ("values", "is_finite"),
    [
        ([1.0, 2, -3.5], True),
        ([None, 0.5, "x"], True),
        ([1.0, float("inf")], False),
        ([float("inf"), 1.0, float("-inf")], False),
        ([None, float("nan")], False),
        ([1e308, 1e308], False),  # their sum is not, and that is all that is known
        ([10**400, 0.5], False),
    ],
)
def test_are_finite_detects_infinite_numbers(values: list[object], is_finite: bool) -> None:
    assert are_finite(values, frozenset(map(type, values))) is is_finite


@given(columns("a", "b", "c"))
def test_documents_with_the_same_properties_become_columns(some: Columns) -> None:
    if len(some):
        made = Columns.of_documents(some.documents())
        assert made is not None
        assert made == Columns(some.names, tuple(map(list, some.values)), some.kinds)


@pytest.mark.parametrize(
    "documents",
    [[{}], [{"a": 1}, {"a": 1, "b": 2}], [{"a": 1, "b": 2}, {"a": 1}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]],
)
def test_documents_with_different_properties_do_not_become_columns(documents: list[dict[str, object]]) -> None:
    assert Columns.of_documents(documents) is None


POINTERS = ["/a", "/b", "/c", "/a/x", "/b/0", "/missing"]


@given(columns("a", "b", "c"), st.lists(st.sampled_from(POINTERS), max_size=3))
def test_keys_of_columns_equal_keys_of_documents(some: Columns, pointers: list[str]) -> None:
    defaults = ["none", 7, None][: len(pointers)]

    packed = KeyColumns(pointers, defaults).pack(some)

    assert packed.to_pylist() == compile_keys(pointers, defaults)(some.documents())


@given(columns("a", "b", "c"), st.lists(st.sampled_from(POINTERS), max_size=3))
def test_keys_reported_distinct_are_distinct(some: Columns, pointers: list[str]) -> None:
    keys = KeyColumns(pointers, ["none", 7, None][: len(pointers)])

    if keys.are_distinct(some):
        packed = keys.pack(some).to_pylist()
        assert len(set(packed)) == len(packed)


@pytest.mark.parametrize(
    ("values", "are_distinct"),
    [
        (["a", "b", ""], True),
        (["a", "b", "a"], False),
        ([1, 2**63 - 1, -(2**63)], True),
        ([1, 2, 2], False),
        ([1, 2**63], False),
        ([1, 2.0], False),
        ([1, None], False),
        ([True, False], False),
    ],
)
def test_distinct_values_give_distinct_keys(values: list[object], are_distinct: bool) -> None:
    assert KeyColumns(["/a"], [None]).are_distinct(Columns.of(("a",), [values])) is are_distinct
    assert KeyColumns(["/b", "/a"], ["b", None]).are_distinct(Columns.of(("a",), [values])) is are_distinct


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        ([0, 255, 256], [b"\x14", b"\x15\xff", b"\x16\x01\x00"]),
        ([-1, -255, -256], [b"\x13\xfe", b"\x13\x00", b"\x12\xfe\xff"]),
        ([2**63 - 1, -(2**63)], [b"\x1c\x7f" + b"\xff" * 7, b"\x0c\x7f" + b"\xff" * 7]),
        ([2**64], [b"\x1d\x09\x01" + b"\x00" * 8]),
        (["a", "ä"], [b"\x02a\0", b"\x02\xc3\xa4\0"]),
        (["a\0b", ""], [b"\x02a\0\xffb\0", b"\x02\0"]),
        ([True, 1], [b"\x27", b"\x15\x01"]),
    ],
)
def test_columns_are_packed(values: list[object], packed: list[bytes]) -> None:
    assert KeyColumns(["/a"], [None]).pack(Columns.of(("a",), [values])).to_pylist() == packed


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=6, max_size=6)
INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300), min_size=6, max_size=6)


@given(st.lists(TEXTS | INTEGERS, max_size=3), st.integers(0, 5))
def test_keys_of_arrays_equal_keys_of_lists(components: list[list[str] | list[int]], begin: int) -> None:
    arrays = [pa.array(values).slice(begin) for values in components]
    lists = [values[begin:] for values in components]

    assert pack_components(arrays, 6 - begin).to_pylist() == pack_components(lists, 6 - begin).to_pylist()
    assert pack_components(lists, 6 - begin).to_pylist() == [
        pack([values[row] for values in lists]) for row in range(6 - begin)
    ]


@given(st.lists(st.floats(allow_nan=False) | st.integers(-300, 300).map(float), min_size=1, max_size=6))
def test_keys_of_floats_equal_keys_of_their_values(values: list[float]) -> None:
    """Also of floats that equal integers, which are packed as integers."""
    assert pack_components([values], len(values)).to_pylist() == [packed_key([value]) for value in values]


def test_integer_too_wide_for_a_key_is_refused() -> None:
    with pytest.raises(DocumentError, match="an integer of 256 bytes cannot be part of a key"):
        KeyColumns(["/a"], [None]).pack(Columns.of(("a",), [[1, 1 << 255 * 8]]))
