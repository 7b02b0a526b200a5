"""Packed keys: FoundationDB's own tuple layer is the oracle."""

from __future__ import annotations

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.key import compare, compile_key, compile_keys, pack, show_key, unpack
from derive.errors import DocumentError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 300), 1 << 300),
    st.integers(-300, 300),
    st.text(st.characters(exclude_categories=["Cs"])),
)


@given(st.lists(SCALARS | st.floats(allow_nan=False)))
def test_pack_equals_foundationdb(values: list[object]) -> None:
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
def test_key_of_a_document_is_packed(document: object, packed: bytes) -> None:
    assert compile_key(["/a", "/b/c"], [None, "default"])(document) == packed


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (0, b"\x14"),
        (255, b"\x15\xff"),
        (256, b"\x16\x01\x00"),
        (-1, b"\x13\xfe"),
        (2**32, b"\x19\x01\x00\x00\x00\x00"),
        ("a\0b", b"\x02a\0\xffb\0"),
        ([1, "x"], b'\x01[1,"x"]\0'),  # arrays and objects go as their JSON text
        ([2**64], b"\x01[18446744073709551616]\0"),  # whose integers are exact
    ],
)
def test_values_are_packed(value: object, packed: bytes) -> None:
    assert pack([value]) == packed


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), SCALARS | st.floats(allow_nan=False)))
def test_keys_of_one_two_and_more_pointers_agree(document: dict[str, object]) -> None:
    first, second, both, three = (
        compile_key(pointers, ["none"] * len(pointers))(document)
        for pointers in (["/a"], ["/b"], ["/a", "/b"], ["/a", "/b", "/c"])
    )

    assert both == first + second
    assert three.startswith(both)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), SCALARS | st.floats(allow_nan=False)), max_size=5))
def test_keys_of_many_documents_equal_keys_of_single_documents(documents: list[dict[str, object]]) -> None:
    pointers, defaults = ["/a", "/b"], ["none", 1]

    assert compile_keys(pointers, defaults)(documents) == [compile_key(pointers, defaults)(each) for each in documents]
    assert compile_keys([], [])(documents) == [b""] * len(documents)
    assert compile_keys(["/a"], ["none"])(documents) == [pack([_integral(each.get("a", "none"))]) for each in documents]


def _integral(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def test_integer_of_more_than_255_bytes_is_refused_in_a_key() -> None:
    with pytest.raises(DocumentError, match="an integer of 256 bytes cannot be part of a key: the limit is 255 bytes"):
        pack([1 << 255 * 8])


@pytest.mark.parametrize("packed", [b"\x30", b"\x02a\x00\xfe", b"\x0a"])
def test_invalid_packed_keys_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="not a packed key: code 0x"):
        unpack(packed)


def test_unpack_returns_packed_values() -> None:
    values = (None, "a\0b", "\0", 1.5, -1.5, 2**200, -(2**200), True, False, b"[1]")

    assert unpack(pack(values[:-1]) + pack([[1]])) == values


def test_a_key_is_shown_as_json() -> None:
    assert show_key(pack(["a", 1, None, True])) == '["a",1,null,true]'
    assert show_key(pack([2**70, [1]])) == "[1180591620717411303424,[1]]"
    assert show_key(pack(["x" * 1_000_000])) == '["' + "x" * 198 + "…"
