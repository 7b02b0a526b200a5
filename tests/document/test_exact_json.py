"""JSON text whose integers are exact, however wide."""

from __future__ import annotations

import json
import math
import uuid

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.exact import dump_exact, has_wide_integer, is_too_deep, parse_exact
from derive.document.pointer import JSON
from derive.errors import DocumentError

NARROW, WIDE = 2**64 - 1, 2**64
LONG_TEXT = [{"id": number, "at": "2024-01-01T00:00:00.000000Z"} for number in range(1000)]
INTEGERS = st.integers() | st.integers(-(10**40), 10**40) | st.sampled_from([NARROW, WIDE, -(2**63), -(2**63) - 1])
VALUES: st.SearchStrategy[JSON] = st.recursive(
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("09-, [:.e", max_size=24),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("01a", max_size=22), inner, max_size=3),
    max_leaves=8,
)


def same(left: JSON, right: JSON) -> bool:
    """Equal, and of the same kinds: 1 is not 1.0 here."""
    return repr(left) == repr(right)


@given(VALUES)
def test_written_json_is_read_back(value: JSON) -> None:
    assert same(parse_exact(dump_exact(value)), value)


@given(VALUES, st.integers(0, 3))
def test_long_text_is_parsed_like_a_short_one(value: JSON, shift: int) -> None:
    padded = b"[" + b" " * shift + dump_exact(LONG_TEXT) + b"," + dump_exact(value) + b"]"

    assert same(parse_exact(padded)[1], value)


@given(VALUES)
def test_parser_agrees_with_python(value: JSON) -> None:
    text = dump_exact(value)

    assert same(json.loads(text), parse_exact(text))
    assert has_wide_integer(text) or same(orjson.loads(text), parse_exact(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"18446744073709551615", 18446744073709551615),  # the greatest of 64 bits
        (b"18446744073709551616", 18446744073709551616),
        (b"-9223372036854775808", -9223372036854775808),
        (b"-9223372036854775809", -9223372036854775809),
        (b"1700000000000000000", 1700000000000000000),  # nanoseconds since 1970
        (b'{"a":99999999999999999999}', {"a": 99999999999999999999}),
        (b'{"a" : -99999999999999999999 }', {"a": -99999999999999999999}),
        (b"[99999999999999999999.5]", [1e20]),  # a fraction makes a float
        (b"[99999999999999999999e1]", [1e21]),
        (b"[0.99999999999999999999]", [1.0]),
        (b'"99999999999999999999"', "99999999999999999999"),
        (b'[", 99999999999999999999 ", 1.5]', [", 99999999999999999999 ", 1.5]),  # looks like one, and is a string
        (b"1" + b"0" * 400, 10**400),  # beyond a double
    ],
)
def test_values_are_written_and_parsed(text: bytes, value: JSON) -> None:
    assert same(parse_exact(text), value)


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        (b"[18446744073709551615]", False),
        (b"[18446744073709551616]", True),
        (b"[-9223372036854775808]", False),
        (b"[-9223372036854775809]", True),
        (b'["18446744073709551616"]', False),
        (b"[18446744073709551616.0]", False),
        (b"[1.8446744073709551616]", False),
        (b"[1" + b"0" * 5000 + b"]", True),
    ],
)
@pytest.mark.parametrize("length", [0, 10_000, 10_001, 10_002, 10_003])
def test_wide_integers_are_detected(text: bytes, wide: bool, length: int) -> None:
    assert has_wide_integer(b" " * length + text) is wide
    assert has_wide_integer(text + b"\n" * length) is wide


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[18446744073709551616", "unexpected end of data"),
        (b"[018446744073709551616]", "delimiter"),
        (b'[18446744073709551616, "\\ud800"]', "lone|surrogate"),
        (b'[18446744073709551616, "\xff"]', "utf-8|UTF-8"),
        (b"[18446744073709551616, NaN]", "expected a JSON value"),
        (b"[-Infinity, 18446744073709551616]", "no digit after sign"),
        (b"[18446744073709551616, 1e400]", "infinity"),
        (b"[18446744073709551616, 1e99999999999999999999]", "beyond a double's range: 1e99999999999999999999"),
        (b"[" * 990 + b"18446744073709551616" + b"]" * 990, "nested too deeply"),
        (b"1" + b"0" * 5000, "^an integer has more than 4,300 digits$"),
        (b"{]", "expected"),
    ],
)
def test_invalid_json_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_exact(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"a": WIDE, "b": [NARROW, -WIDE]},
            b'{"a":18446744073709551616,"b":[18446744073709551615,-18446744073709551616]}',
        ),
        ([orjson.Fragment(b"\n"), WIDE], b"[\n,18446744073709551616]"),
        ([0.5, WIDE], b"[0.5,18446744073709551616]"),
    ],
)
def test_texts_are_written_and_parsed(value: JSON, text: bytes) -> None:
    assert dump_exact(value) == text


@pytest.mark.parametrize("value", [{"a": {1}}, [WIDE, object()], {1: 2}])
def test_values_without_json_form_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="not JSON serializable|must be str"):
        dump_exact(value)


@pytest.mark.parametrize("wide", [0, 1])
def test_wide_integer_after_many_uuids_is_detected(wide: int) -> None:
    # Whose digits are scattered enough to be looked at twice.
    many = [{"id": str(uuid.UUID(int=number * 0x1234567890ABCDEF1234567))} for number in range(3000)]
    text = dump_exact([many, NARROW + wide, "12345678901234567"])

    assert has_wide_integer(text) is bool(wide)
    assert parse_exact(text) == [many, NARROW + wide, "12345678901234567"]


def test_a_float_is_never_written_as_an_integer() -> None:
    assert math.isclose(parse_exact(dump_exact([WIDE, 1e300]))[1], 1e300)
    assert type(parse_exact(b"[1e30, 18446744073709551616]")[0]) is float


def nested(levels: int, value: JSON) -> JSON:
    for _ in range(levels):
        value = {"a": value} if levels % 2 else [value]
    return value


@pytest.mark.parametrize("inner", [1, 2**70])
@pytest.mark.parametrize("levels", [251, 300, 901])
def test_a_value_that_is_too_deep_is_reported(levels: int, inner: int) -> None:
    assert is_too_deep(nested(levels, inner))
    assert not is_too_deep(nested(250, inner))
    assert parse_exact(dump_exact(nested(250, inner))) == nested(250, inner)
    with pytest.raises(DocumentError, match="it is nested more than 250 levels deep"):
        dump_exact([nested(levels, inner)] * 4 if levels > 254 else nested(levels + 4, inner))
