"""Packed tuples into columns: what was packed comes out, of whatever kinds, and nothing else is taken."""

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kit.batch import unpack_columns
from connectors.kit.requests import Value
from derive.document.key import pack
from derive.document.key_columns import pack_values
from derive.errors import ProtocolError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 255, 256, 2**32 - 1, 2**63, 2**64 - 1, 2**64, -1, -255, -256, -(2**64) + 1, -(2**64), 10**600]),
    st.floats(allow_nan=False),
    st.text(),
    st.text("\0\1\2\xff"),
    st.binary(),
    st.text("\0\xfe\xff").map(lambda text: text.encode("latin-1")),
)


def identical(values: list[list[Value]]) -> list[list[tuple[type, str]]]:
    """Values so that 1, 1.0 and True are not the same, nor are 0.0 and -0.0."""
    return [[(type(value), repr(value)) for value in row] for row in values]


@given(st.integers(1, 5).flatmap(lambda width: st.lists(st.lists(SCALARS, min_size=width, max_size=width), min_size=1)))
def test_unpacked_tuples_equal_packed_ones(rows: list[list[Value]]) -> None:
    packed = [fdb.tuple.pack(tuple(row)) for row in rows]

    columns = unpack_columns(packed, len(rows[0]))

    assert identical(columns) == identical([list(column) for column in zip(*rows, strict=True)])


@pytest.mark.parametrize(
    "column",
    [
        ["a", "", "\2", "x\0y", "ü", "\0", "😀"],
        ["a", "b", ""],
        [0, 1, 255, 256, 65535, 65536, 2**32, 2**64 - 1],
        [-1, 0, 1, -256, -(2**64) + 1],
        [2**64, -(2**64), 2**500],
        [0.0, 1.5, -1.5, -0.0, 1e308, float("inf"), float("-inf")],
        [True, False],
        [None, None],
        [None, "a", None, "b"],
        [None, 1, 1.5, "x", b"{}", True],
        [b"{}", b"\0\0", b"[1]", b""],
    ],
)
def test_columns_of_one_or_several_kinds_are_decoded(column: list[Value]) -> None:
    packed = [fdb.tuple.pack((value, "key")) for value in column]

    first, second = unpack_columns(packed, 2)

    assert identical([first]) == identical([column])
    assert second == ["key"] * len(column)


def test_objects_and_arrays_are_decoded_as_text() -> None:
    assert unpack_columns([pack([{"a": [1]}, [None]])], 2) == [[b'{"a":[1]}'], [b"[null]"]]


def test_tuples_without_fields_are_decoded() -> None:
    assert unpack_columns([b"", b""], 0) == []
    with pytest.raises(ProtocolError, match="there are packed values, but no fields"):
        unpack_columns([b"", b"\x14"], 0)


@pytest.mark.parametrize(
    ("packed", "error"),
    [
        (b"", "tuple 1 has 0 elements instead of 2"),
        (b"\x14", "tuple 1 has 1 element instead of 2"),
        (b"\x14\x14\x14", "tuple 1 has 3 elements instead of 2"),
        (b"\x14\x02abc", "tuple 1 is not a packed tuple: code 0x02 at byte 1 of 5"),
        (b"\x14\x02abc\x00\xff", "tuple 1 is not a packed tuple: code 0x02 at byte 1 of 7"),
        (b"\x14\x17\x01", "tuple 1 is not a packed tuple: code 0x17 at byte 1 of 3"),
        (b"\x14\x21\x01", "tuple 1 is not a packed tuple: code 0x21 at byte 1 of 3"),
        (b"\xff", "tuple 1 is not a packed tuple: code 0xff at byte 0 of 1"),
        (b"\x14\x1d", "tuple 1 is not a packed tuple: code 0x1d at byte 1 of 2"),
        (b"\x14\x1d\x09\x01", "tuple 1 is not a packed tuple: code 0x1d at byte 1 of 4"),
        (b"\x14\x02\xc3\x28\x00", "a packed text is not UTF-8: b'\\xc3('"),
    ],
)
def test_invalid_tuples_are_refused(packed: bytes, error: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        unpack_columns([pack([1, "a"]), packed], 2)

    assert caught.value.message == error


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=4), st.integers(1, 3))
def test_garbage_bytes_raise_an_error_or_decode(packed: list[bytes], width: int) -> None:
    try:
        columns = unpack_columns(packed, width)
    except ProtocolError:
        return
    assert [len(column) for column in columns] == [len(packed)] * width


@given(st.lists(st.integers(-(10**4299), 10**4299) | st.integers(-(2**2060), 2**2060) | st.text(), min_size=1))
def test_values_may_have_integers_of_any_size(values: list[Value]) -> None:
    """Packed values are unpacked, also where the encoding has no integer of the size."""
    packed = pack_values(values).to_pylist()

    assert identical(unpack_columns(packed, 1)) == identical([values])
