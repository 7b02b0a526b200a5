"""Packed values of columns are those of each value by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.key import pack
from derive.document.key_columns import join_columns, pack_array, pack_values

TEXTS = st.text(st.sampled_from("ab\0ä\U0001f600"), max_size=4)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300)
FLOATS = st.floats(allow_nan=False) | st.sampled_from([1.0, -0.0])


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.string(), TEXTS), (pa.int64(), LONGS), (pa.float64(), FLOATS), (pa.bool_(), st.booleans())],
    ids=["texts", "integers", "floats", "booleans"],
)
def test_arrays_are_packed_like_single_values(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    @given(st.lists(st.none() | values, max_size=6), st.integers(0, 2))
    def check(listed: list[Any], begin: int) -> None:
        array = pa.array(listed, kind).slice(begin)
        assert pack_array(array).to_pylist() == [pack((value,)) for value in listed[begin:]]

    check()


def test_values_without_a_column_are_packed_one_by_one() -> None:
    assert pack_values([{"a": 1}, 1.0, None]).to_pylist() == [b'\x01{"a":1}\0', pack((1.0,)), b"\0"]


def test_join_columns_concatenates_fields() -> None:
    columns = [pa.array([b"a", b"b"], pa.binary()), pa.array([b"1", b""], pa.binary())]
    assert join_columns(columns, 2).to_pylist() == [b"a1", b"b"]
    assert join_columns([], 2).to_pylist() == [b"", b""]
