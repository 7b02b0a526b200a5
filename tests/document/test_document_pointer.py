"""JSON pointers: the examples of RFC 6901 and what lies beside them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.pointer import MISSING, compile_pointer, escape, parse_pointer, unescape

RFC6901 = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RFC6901),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_pointers_follow_the_examples_of_the_rfc(pointer: str, value: object) -> None:
    assert compile_pointer(pointer)(RFC6901) == value


@pytest.mark.parametrize(
    ("pointer", "document", "value"),
    [
        ("/a/0", {"a": {"0": "x"}}, "x"),  # a number also names a property
        ("/a/1", {"a": [1]}, MISSING),  # past the end
        ("/a/01", {"a": [1, 2]}, MISSING),  # no leading zeros
        ("/a/-1", {"a": [1, 2]}, MISSING),  # nor signs
        ("/a/²", {"a": [1, 2, 3]}, MISSING),  # nor digits that are not ASCII
        ("/a/b", {"a": "text"}, MISSING),  # through a scalar
        ("/a", {"a": None}, None),  # null is there
        ("/0", ["x"], "x"),
        ("/a", 1, MISSING),
    ],
)
def test_pointers_find_locations(pointer: str, document: object, value: object) -> None:
    assert compile_pointer(pointer)(document) is value


@given(st.text())
def test_an_escaped_name_is_one_token(name: str) -> None:
    assert unescape(escape(name)) == name
    assert parse_pointer(f"/{escape(name)}") == (name,)


def test_a_pointer_begins_with_a_slash() -> None:
    with pytest.raises(ValueError, match="begins with a slash: 'a/b'"):
        parse_pointer("a/b")


def test_missing_marker_stays_one_object_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert repr(MISSING) == "MISSING"
