"""Rows become documents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_derivation import field, publish

from connectors.derive_sqlite.row import compile_layout, compile_row
from derive.errors import LambdaError
from derive.protocol.specs import ProjectionSpec


@pytest.mark.parametrize(
    ("sql", "document"),
    [
        ("SELECT 1 AS x, 'a' AS y", {"x": 1, "y": "a"}),
        ("SELECT $id * 10, 2.5", {"$id * 10": 30, "2.5": 2.5}),  # without a name, the text is the name
        ("SELECT NULL AS x", {"x": None}),  # null is published
        ("SELECT '[1,{\"a\":2}]' AS x", {"x": [1, {"a": 2}]}),
        ("SELECT '{\"a\":[]}' AS x", {"x": {"a": []}}),
        ("SELECT '{not json}' AS x, '[' AS y, '[}' AS z", {"x": "{not json}", "y": "[", "z": "[}"}),
        ("SELECT '17' AS x, 'null' AS y, '' AS z", {"x": "17", "y": "null", "z": ""}),  # only objects and arrays
        ("SELECT x'6869' AS x", {"x": "aGk="}),
        ("SELECT 9e999 AS x, -9e999 AS y", {"x": "Infinity", "y": "-Infinity"}),
        ("SELECT 1 = 1 AS x", {"x": 1}),  # SQLite has no booleans
        ("SELECT json_object('a', 1, 'b', json('true'))", {"a": 1, "b": True}),
        ("SELECT '{\"a\":1}' AS JSON_doc", {"a": 1}),
        ("SELECT 1 AS x, '{\"a\":1}' AS json_doc", {"x": 1, "json_doc": {"a": 1}}),  # two columns: no document
        ("SELECT $id -- the id\n, $sender /* who */ -- it was", {"id": 3, "sender": "al"}),
    ],
)
def test_a_row_becomes_a_document(sql: str, document: dict[str, Any]) -> None:
    assert publish(sql, {"id": 3, "sender": "al", "amount": 1}) == [document]


def test_unchanged_parameter_becomes_the_property_of_its_field() -> None:
    fields = field("a/b", "integer"), field("my-field", "string")
    assert publish("SELECT $a$b, $my_field", {"a": {"b": 1}, "my-field": "v"}, *fields) == [{"a/b": 1, "my-field": "v"}]


@pytest.mark.parametrize(
    ("types", "value", "sql", "published"),
    [
        (["boolean"], True, "SELECT $flag", {"flag": True}),
        (["boolean"], False, "SELECT $flag", {"flag": False}),
        (["boolean", "null"], None, "SELECT $flag", {"flag": None}),
        (["boolean", "integer"], True, "SELECT $flag", {"flag": 1}),  # it might have been the number
        (["boolean"], True, "SELECT NOT $flag AS flag", {"flag": 0}),  # computed
        (["boolean"], True, "SELECT $flag AS flag", {"flag": 1}),  # renamed
        (["string"], '{"a":1}', "SELECT $flag", {"flag": '{"a":1}'}),  # where only text can be, it stays text
        (["null", "string"], "[1]", "SELECT $flag", {"flag": "[1]"}),
        (["string", "integer"], "[1]", "SELECT $flag", {"flag": "[1]"}),
        (["array", "string"], "[1]", "SELECT $flag", {"flag": [1]}),  # it might have been the array
        (["array", "string"], [1], "SELECT $flag", {"flag": [1]}),
        (["string"], "[1]", "SELECT $flag AS flag", {"flag": [1]}),  # renamed
        (["string"], "[1]", "SELECT $flag || '' AS flag", {"flag": [1]}),  # computed
    ],
)
def test_unchanged_values_keep_the_type_of_their_location(
    types: list[str], value: Any, sql: str, published: dict[str, Any]
) -> None:
    made = publish(sql, {"flag": value}, field("flag", *types))
    assert made == [published]
    assert type(made[0]["flag"]) is type(published["flag"])


@pytest.mark.parametrize(
    ("projection", "value", "published"),
    [
        (field("x", "string", content_encoding="base64"), "aGk=", "aGk="),
        (field("x", "string", content_encoding="base64"), "[1]", "[1]"),  # no base64
        (field("x", "string", format="number"), "Infinity", "Infinity"),
        (field("x", "string", format="number"), "[1]", "[1]"),
        (field("x", "string", format="number"), "1.5", 1.5),
        (field("x", "string", format="integer"), "17", 17),
        (field("x", "string", default=([1],)), None, None),
    ],
)
def test_a_string_of_a_format_is_passed_through(projection: ProjectionSpec, value: Any, published: Any) -> None:
    assert publish("SELECT $x", {"x": value}, projection) == [{"x": published}]


def test_array_default_stays_an_array() -> None:
    assert publish("SELECT $x", {}, field("x", "string", default=([1],))) == [{"x": [1]}]


@given(
    st.sampled_from([["string"], ["string", "null"], ["string", "integer", "boolean"]]),
    st.text() | st.sampled_from(["[", "{}", "[1]", '{"a": [1]}', "[1", "null", "NaN", "\0[]"]),
)
def test_text_of_a_scalar_location_is_published_unchanged(types: list[str], text: str) -> None:
    assert publish("SELECT $x, 1 AS n", {"x": text}, field("x", *types)) == [{"x": text, "n": 1}]


TEXTS = st.sampled_from(
    [
        "[]",
        "{}",
        '{"a":[1]}',
        "[1,2.5]",
        "[18446744073709551616]",
        "[1",
        "[1] ",
        " [1]",
        "[}",
        "",
        "x",
        "17",
        "[" * 250 + "]" * 250,
    ]
)


@given(
    st.lists(TEXTS.filter(lambda text: text[:1] in "[{" and len(text) > 1) | TEXTS, min_size=1, max_size=4)
    | st.lists(st.sampled_from([None, 1, 0, 2.5, 1e999, b"x", "[1]", "a"]), min_size=1, max_size=4)
)
def test_rows_as_columns_are_converted_like_single_rows(values: list[Any]) -> None:
    fields = field("flag", "boolean", default=([1],)), field("text", "string"), field("any", "string", "array")
    parameters = {f"${each.field}": each for each in fields}
    columns = ["$flag", "$text", "$any", "computed"]
    layout, make = compile_layout(columns, parameters), compile_row(columns, parameters)
    assert layout is not None
    try:
        rows = [make([value] * 4) for value in values]
    except LambdaError as error:
        with pytest.raises(LambdaError, match=error.message):
            layout.columns([values] * 4)
    else:
        assert repr(layout.columns([values] * 4).documents()) == repr(rows)


@pytest.mark.parametrize("value", ["[1]", "7", "x", None, 3, b"{}x"])
def test_a_document_column_must_hold_an_object(value: Any) -> None:
    with pytest.raises(LambdaError, match="must hold an object, which is the document"):
        compile_row(["json"], {})((value,))
