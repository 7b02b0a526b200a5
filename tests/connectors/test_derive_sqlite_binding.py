"""Values reach SQLite as their types and the schema have it."""

from __future__ import annotations

from operator import length_hint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_derivation import CLOCK, field

from derive.document.pointer import MISSING, compile_pointer
from derive.lambda_sql.parameter import Binding, compile_columns, compile_getter, mentioned_projections
from derive.protocol.specs import ProjectionSpec

S = "string"


@pytest.mark.parametrize(
    ("projection", "document", "value"),
    [
        (field("x", S), {"x": "text"}, "text"),
        (field("x", "null"), {"x": None}, None),
        (field("x", "boolean"), {"x": True}, 1),
        (field("x", "integer"), {"x": 7}, 7),
        (field("x", "fractional"), {"x": 0.5}, 0.5),
        # An integer beyond 64 bits is the double that it is equal to, where numbers may have fractions
        (field("x", "fractional", "integer"), {"x": 10**19}, 1e19),
        (field("x", "fractional", "integer", must=True), {"x": -(10**19)}, -1e19),
        (field("x", "fractional", "integer"), {"x": 10**19 + 1}, 10**19 + 1),
        (field("x", "fractional", "integer"), {"x": 10**400}, 10**400),
        (field("x", "fractional", "integer", S, format="number"), {"x": 10**19}, 1e19),
        (field("x", "fractional", "integer"), {"x": 7}, 7),
        (field("x", "fractional", "null"), {"x": None}, None),
        (field("x", "integer"), {"x": 10**19}, 10**19),
        (field("x", "array"), {"x": [1, {"a": "ä"}]}, '[1,{"a":"ä"}]'),  # JSON text
        (field("x", "object"), {"x": {}}, "{}"),
        (field("x", S), {}, None),  # missing
        (field("x", S, default=("none",)), {}, "none"),  # missing, with a default
        (field("x", S, "null", default=("none",)), {"x": None}, None),  # null is not missing
        (field("x", "array", default=([],)), {}, "[]"),
        (field("x", S, default=([1],)), {}, "[1]"),  # a default of another type than the schema's
        (field("x", S, format="integer"), {"x": "-12"}, -12),
        (field("x", S, format="integer"), {"x": "9223372036854775808"}, "9223372036854775808"),  # beyond 64 bits
        (field("x", S, format="integer"), {"x": "-12.00"}, -12),
        (field("x", S, format="integer"), {"x": "12."}, "12."),
        (field("x", S, format="integer"), {"x": "1_0"}, "1_0"),  # not a number outside Python
        (field("x", S, format="integer"), {"x": "9" * 5000}, "9" * 5000),
        (field("x", S, "integer", format="integer"), {"x": 12}, 12),
        (field("x", S, format="number"), {"x": "1e3"}, 1000.0),
        (field("x", S, format="number"), {"x": "-Infinity"}, float("-inf")),
        (field("x", S, format="number"), {"x": "NaN"}, "NaN"),  # SQLite has none
        (field("x", S, content_encoding="base64"), {"x": "aGk="}, b"hi"),
        (field("x", S, content_encoding="base64"), {"x": "no, sir"}, "no, sir"),
        (field("a/b", S), {"a": {"b": "nested"}}, "nested"),
        (field("a/0", "integer"), {"a": [5]}, 5),  # item of a tuple
        (field("a/b", S, default=("none",)), {"a": 3}, "none"),  # the way there is not an object
        (field("flow_document", "object", pointer=""), {"x": [1]}, '{"x":[1]}'),
        (field("flow_published_at", S, pointer="/_meta/uuid"), {}, "2023-11-14T22:13:20.123456Z"),
        (field("it's", S, must=True), {"it's": "quoted"}, "quoted"),
        (field("a~1b", S, must=True), {"a/b": "escaped"}, "escaped"),
    ],
)
def test_field_is_converted_to_an_sqlite_value(
    projection: ProjectionSpec, document: dict[str, Any], value: object
) -> None:
    binding = Binding([projection])
    bound = next(binding.feed([document], [CLOCK]))
    assert bound == (value,)
    assert type(bound[0]) is type(value) or value == 1


def test_binding_without_parameters_is_an_empty_tuple_for_each_document() -> None:
    assert list(Binding([]).feed([{}, {"x": 1}], [1, 2])) == [(), ()]


FIELDS = [
    field("a", "integer", must=True),
    field("b", S, must=True),
    field("c", S, "null"),
    field("d", "integer", default=(3,)),
    field("e", "array", "object"),
    field("f", S, format="integer"),
    field("g/h", "integer"),
    field("n", "integer", "fractional"),
    field("m", "integer", "fractional", must=True),
]
NUMBERS = st.integers() | st.floats(allow_nan=False) | st.integers(63, 80).map(lambda bits: 2**bits)
DOCUMENTS = st.fixed_dictionaries(
    {"a": st.integers(), "b": st.text(), "m": NUMBERS},
    optional={
        "c": st.none() | st.text(),
        "n": NUMBERS,
        "d": st.integers(),
        "e": st.lists(st.integers(-(2**63), 2**64 - 1)) | st.dictionaries(st.text(), st.booleans()),
        "f": st.integers().map(str) | st.text(),
        "g": st.dictionaries(st.just("h"), st.integers()),
    },
)


@given(st.lists(st.sampled_from(FIELDS)), st.lists(DOCUMENTS, max_size=5))
def test_compiled_binding_equals_single_getters(fields: list[ProjectionSpec], documents: list[dict[str, Any]]) -> None:
    binding = Binding(fields)
    getters = [compile_getter(each) for each in fields]
    expected = [tuple(get(document, CLOCK) for get in getters) for document in documents]
    assert list(binding.feed(documents, [CLOCK] * len(documents))) == expected
    assert [binding.values(document, CLOCK) for document in documents] == expected


COLUMNS = [
    *(item for item in FIELDS if item.field != "e"),
    field("i", S, default=([1],)),
    field("j", S, content_encoding="base64"),
    field("flow_published_at", S, pointer="/_meta/uuid"),
]


@given(st.lists(st.sampled_from(COLUMNS)), st.lists(DOCUMENTS, max_size=5))
def test_binding_of_columns_equals_binding_of_documents(
    fields: list[ProjectionSpec], documents: list[dict[str, Any]]
) -> None:
    names = list({item.field for item in fields if item.pointer != "/_meta/uuid"})
    by_name = {item.field: item for item in fields}
    columns = [
        [
            (by_name[name].default or (None,))[0] if value is MISSING else value
            for value in map(compile_pointer(by_name[name].pointer), documents)
        ]
        for name in names
    ]
    clocks = list(range(CLOCK, CLOCK + len(documents)))

    feed, left = compile_columns(fields, names).feed(columns, clocks)

    expected = list(Binding(fields).feed(documents, clocks))
    for number, values in enumerate(expected, start=1):
        assert next(feed) == values
        assert length_hint(left) == len(documents) - number
    assert next(feed, None) is None


def test_parameters_are_known_without_preparing_sql() -> None:
    fields = [field(name, S) for name in ("a", "b c", "d/e", "naïve", "x\U0001f600", "it's", "other")]
    sql = "SELECT $a, :b_c, @d$e /* $naïve */, '$x\U0001f600', $p::(it's), $nothing, $a FROM t -- $"

    assert [item.field for item in mentioned_projections(sql, fields)] == [
        "a",
        "b c",
        "d/e",
        "naïve",
        "x\U0001f600",
        "it's",
    ]


@pytest.mark.parametrize("sql", ["SELECT '$('||$a||')' AS a;", "SELECT ':('||$a||')';", "-- $(\nSELECT '#'||$a||')';"])
def test_parameter_is_found_after_a_text_that_looks_like_one(sql: str) -> None:
    assert [item.field for item in mentioned_projections(sql, [field("a", S)])] == ["a"]
