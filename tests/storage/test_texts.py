"""Documents as columns of JSON text: parsed, written, and made from columns of values."""

from __future__ import annotations

import orjson
import pytest
from column_values import FLOATS, INTEGERS, TEXTS, columns
from hypothesis import given
from hypothesis import strategies as st

from derive.document.columns import Columns
from derive.document.exact import dump_exact
from derive.errors import DocumentError
from derive.position import Position
from derive.protocol.specs import CollectionSpec, ProjectionSpec
from derive.storage.segments.columns import compile_column_fields, compile_fields
from derive.storage.segments.partition import compile_column_labels, compile_labels
from derive.storage.segments.texts import parse_texts, write_columns, write_texts

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
# What would look like the border between two documents, if texts were not escaped.
BORDERS = st.sampled_from(["\n", ",\n,", '",\n,"', "\\n", "\r\n"])


@given(st.lists(st.dictionaries(st.text() | BORDERS, VALUES | BORDERS, max_size=3), max_size=6))
def test_documents_are_written_one_by_one_and_read_back(documents: list[dict[str, object]]) -> None:
    column = write_texts(documents)
    column.validate(full=True)

    assert column.to_pylist() == [dump_exact(each).decode() for each in documents]
    assert parse_texts(column) == documents


def test_a_column_that_is_too_large_is_refused() -> None:
    assert write_texts([{"a": "12345"}], most_bytes=20).to_pylist() == ['{"a":"12345"}']
    with pytest.raises(DocumentError, match="3 documents that belong together take more than 2 GiB"):
        write_texts([{"a": "12345"}] * 3, most_bytes=20)


def test_a_document_that_is_too_deep_is_refused() -> None:
    deepest = orjson.loads('{"a":' * 250 + "1" + "}" * 250)

    assert parse_texts(write_texts([deepest])) == [deepest]
    with pytest.raises(DocumentError, match="nested more than 250 levels deep"):
        write_texts([{}, {"a": deepest}])


@given(columns("a", 'b"', "ä,", ""))
def test_texts_of_columns_equal_texts_of_documents(some: Columns) -> None:
    column = write_columns(some)
    column.validate(full=True)

    assert column.to_pylist() == write_texts(some.documents()).to_pylist()


def test_texts_have_the_properties_in_order() -> None:
    some = Columns.of(("b", "a", "c"), [[1, 2.5], ["x", 'y",'], [None, [1, {"d": True}]]])

    assert write_columns(some).to_pylist() == ['{"b":1,"a":"x","c":null}', '{"b":2.5,"a":"y\\",","c":[1,{"d":true}]}']
    assert write_columns(some.slice(0, 0)).to_pylist() == []


def test_texts_beyond_a_columns_capacity_are_divided() -> None:
    some = Columns.of(("a",), [["12345"] * 3])

    assert len(write_columns(some, most_bytes=100)) == 3
    with pytest.raises(DocumentError, match="3 documents that belong together take more than 2 GiB"):
        write_columns(some, most_bytes=20)


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_documents_are_limited_in_depth() -> None:
    deepest, deeper = (Columns.of(("a",), [[nested(levels)]]) for levels in (249, 252))

    assert write_columns(deepest).to_pylist() == write_texts(deepest.documents()).to_pylist()
    with pytest.raises(DocumentError, match="nested more than 250 levels deep"):
        write_texts(deeper.documents())
    with pytest.raises(DocumentError, match="nested more than 250 levels deep"):
        write_columns(deeper)


def collection(*pointers: str, default: tuple[object, ...] = ()) -> CollectionSpec:
    partitions = tuple(
        ProjectionSpec(pointer[1:], pointer, frozenset({"string"}), "may", is_partition=True, default=default)
        for pointer in pointers
    )
    return CollectionSpec("c/out", ("/id",), (0,), True, True, partitions, Position("flow.yaml", 1))


@given(
    columns("a", "b", kinds=[TEXTS, INTEGERS | st.booleans(), st.none() | TEXTS, FLOATS]),
    st.lists(st.sampled_from(["/a", "/b", "/a/x"]), max_size=2, unique=True),
    st.sampled_from([(), ("none",), (1,)]),
)
def test_labels_of_columns_equal_labels_of_documents(
    some: Columns, pointers: list[str], default: tuple[object, ...]
) -> None:
    spec = collection(*pointers, default=default)

    assert compile_column_labels(spec)(some) == compile_labels(spec)(some.documents()).to_pylist()


FIELDS = tuple(
    ProjectionSpec(pointer[1:], pointer, frozenset(types), "may")
    for pointer, types in {
        "/a": ["string"],
        "/a/x": ["integer"],
        "/b": ["integer", "null"],
        "/c": ["integer", "fractional"],
    }.items()
)


@given(columns("a", "b", "c"))
def test_typed_columns_of_columns_equal_typed_columns_of_documents(some: Columns) -> None:
    spec = CollectionSpec("c/out", ("/id",), (0,), True, True, FIELDS, Position("flow.yaml", 1))
    typed, expected = compile_column_fields(spec)(some), compile_fields(spec)(some.documents())

    assert typed is not None
    assert expected is not None
    assert typed.type == expected.type
    assert repr(typed.to_pylist()) == repr(expected.to_pylist())


def test_label_is_a_json_array_of_values() -> None:
    labels = compile_column_labels(collection("/a", "/b", default=("none",)))

    assert labels(Columns.of(("a",), [["x", "y", "x"]])) == ['["x","none"]', '["y","none"]', '["x","none"]']
    assert labels(Columns.of(("a",), [[1]])) == ['[1,"none"]']
