"""JSON with comments and trailing commas."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.derive_typescript.loader import parse_jsonc, plain_json

# Text, and what it holds.
TEXTS = [
    ('{"a": 1}', {"a": 1}),
    ('// one\n{"a": /* two */ 1, // three\n}', {"a": 1}),
    ('{"a": [1, 2,],}', {"a": [1, 2]}),
    ('{"a": "// no /* comment */,}"}', {"a": "// no /* comment */,}"}),
    ('{"a": "\\"//"}', {"a": '"//'}),
    ("\ufeff{}", {}),
    ("{", None),
    ("", None),
    ("/* open {}", None),
]


@pytest.mark.parametrize(("text", "value"), TEXTS)
def test_comments_and_trailing_commas_are_removed(text: str, value: object) -> None:
    assert parse_jsonc(text) == value


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_plain_json_stays_as_it_is(value: object) -> None:
    text = json.dumps(value)
    assert plain_json(text) == text
    assert parse_jsonc(text) == value
