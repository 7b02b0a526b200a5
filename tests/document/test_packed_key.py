"""Packed keys: FoundationDB's own tuple layer is the oracle."""

from __future__ import annotations

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.key import compile_key, pack, unpack
from derive.document.order import compare

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 300), 1 << 300),
    st.integers(-300, 300),
    st.text(st.characters(exclude_categories=["Cs"])),
)


@given(st.lists(SCALARS | st.floats(allow_nan=False)))
def test_pack_is_foundationdbs(values: list[object]) -> None:
    assert pack(values) == fdb.tuple.pack(tuple(values))


@given(st.lists(SCALARS))
def test_unpack_reverses_pack(values: list[object]) -> None:
    assert unpack(pack(values)) == tuple(values)


@given(st.sampled_from([st.integers(), st.text(st.characters(exclude_categories=["Cs"])), st.booleans()]), st.data())
def test_packed_values_of_one_type_sort_as_documents_do(kind: st.SearchStrategy[object], data: st.DataObject) -> None:
    left, right = data.draw(kind), data.draw(kind)

    assert (pack([left]) > pack([right])) - (pack([left]) < pack([right])) == compare(left, right)


@pytest.mark.parametrize(
    ("document", "packed"),
    [
        ({"a": 1, "b": {"c": "x"}}, pack([1, "x"])),
        ({"a": 1.0, "b": {"c": "x"}}, pack([1, "x"])),  # 1.0 is the integer 1
        ({"b": {}}, pack([None, "default"])),  # what is missing has its default
        ({"a": None, "b": {"c": None}}, pack([None, None])),  # null is not missing
    ],
)
def test_a_documents_key(document: object, packed: bytes) -> None:
    assert compile_key(["/a", "/b/c"], [None, "default"])(document) == packed
