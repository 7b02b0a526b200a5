"""Typed columns: reading by columns equals reading by document, whatever the documents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.exact import dump_exact
from derive.document.key import pack
from derive.document.pointer import JSON, MISSING, compile_pointer
from derive.position import Position
from derive.protocol.specs import CollectionSpec, Document, ProjectionSpec
from derive.storage.segments.columns import (
    LOOK,
    NULL,
    OTHER_NUMBER,
    Kind,
    TypedColumn,
    decode,
    encode,
    pack_codes,
    typed_columns,
    unpack_codes,
    wrong_values,
)
from derive.storage.segments.fold import copy_rows
from derive.storage.segments.reader import Selection, all_columns, read_sorted
from derive.storage.segments.rows import ReadRows, WrittenRows
from derive.storage.segments.texts import write_texts
from derive.storage.segments.writer import SegmentWriter, WriteSizes
from derive.time.positions import Segment, SourceRead

AT = Position("flow.yaml", 1, 1)
TYPES: dict[str, frozenset[str]] = {
    "string": frozenset({"string"}),
    "integer": frozenset({"integer"}),
    "number": frozenset({"integer", "fractional"}),
    "boolean": frozenset({"boolean"}),
    "nullable": frozenset({"integer", "null"}),
    "several": frozenset({"integer", "string"}),
    "object": frozenset({"object"}),
}
NAMES = ("a", "b", "A", "doc", "Clock", "a.b", "flow_exact", "flow_exact.a", "nested", "n\0ul", "名", "partition")

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**400]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e15, 2.0**63, -(2.0**63), 1e300, 5e-324]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.sampled_from(["", "\0", "a\0b", "null", "é", "\U0001f600", "1"]),
)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from(["x", "0"]), SCALARS, max_size=2)


def projection(name: str, pointer: str, types: frozenset[str], **more: Any) -> ProjectionSpec:
    return ProjectionSpec(name, pointer, types, **more)


def collection(projections: Sequence[ProjectionSpec]) -> CollectionSpec:
    return CollectionSpec("c/events", ("/k",), (MISSING,), True, True, tuple(projections), AT)


@st.composite
def collections(draw: st.DrawFn) -> CollectionSpec:
    """A collection with fields at the top and below, of any types."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    pointers = st.sampled_from(["/nested/x", "/nested/0", *("/" + name for name in NAMES)])
    kinds = st.sampled_from(list(TYPES.values()))
    return collection([projection(name, draw(pointers), draw(kinds)) for name in names])


DOCUMENTS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=12)


def write(root: Path, spec: CollectionSpec, name: str, documents: Sequence[Document], row_group: int) -> list[Segment]:
    """Segments of documents, whose clocks are their numbers."""
    writer = SegmentWriter(root, spec, name, WriteSizes(row_group=row_group))
    for begin in range(0, len(documents), 3):
        some = documents[begin : begin + 3]
        clocks = np.arange(begin, begin + len(some))
        keys = [pack([clock]) for clock in clocks.tolist()]
        writer.write(WrittenRows.of(clocks, np.zeros(len(some), np.int32), keys, write_texts(some), ["[]"] * len(some)))
    return writer.close()


def values_of(rows: ReadRows, columns: Sequence[TypedColumn], place: int, default: JSON) -> list[JSON]:
    """What one place of rows stands for."""
    fields = rows.fields
    assert fields is not None
    codes = unpack_codes(fields.field(len(columns)))
    get = compile_pointer(columns[place].pointer)

    def look(numbers: list[int]) -> list[JSON]:
        return [get(document) for document in rows.take(numbers).documents()]

    return decode(fields.field(place), None if codes is None else codes[:, place], default, look)


def shown(values: Sequence[JSON]) -> list[tuple[type, str]]:
    """Values told apart by type and sign."""
    return [(type(value), "" if value is MISSING else dump_exact(value).decode()) for value in values]


def by_document(documents: Sequence[Document], pointer: str, default: JSON) -> list[JSON]:
    return [default if value is MISSING else value for value in map(compile_pointer(pointer), documents)]


def texts_of(parts: Iterable[ReadRows]) -> list[str | None]:
    return [text for rows in parts for text in rows.texts.to_pylist()]


@given(collections(), collections(), DOCUMENTS, st.integers(1, 5), st.sampled_from([None, 7, "", MISSING]))
def test_reading_by_columns_equals_reading_by_document(
    written: CollectionSpec, read: CollectionSpec, documents: list[Document], row_group: int, default: JSON
) -> None:
    columns = typed_columns(read)
    selection = Selection(tuple(column.kind for column in columns), {0: columns}, has_documents=False)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        segments = write(root, written, "one", documents, row_group)
        copied = SegmentWriter(root, read, "two")
        copy_rows(root, read, copied, SourceRead(0, 0, 0, 100, tuple(segments)), "[]")
        for source in (SourceRead(0, 0, 0, 100, tuple(some)) for some in (segments, copied.close())):
            parts = list(read_sorted(root, [source], most_rows=3, selection=selection))
            values = [
                [value for rows in parts for value in values_of(rows, columns, place, default)]
                for place in range(len(columns))
            ]
            assert [shown(column) for column in values] == [
                shown(by_document(documents, column.pointer, default)) for column in columns
            ]
            assert texts_of(read_sorted(root, [source])) == write_texts(documents).to_pylist()
            assert texts_of(read_sorted(root, [source], selection=all_columns(read))) == texts_of(
                read_sorted(root, [source])
            )


@given(st.lists(VALUES | st.just(MISSING), max_size=20), st.sampled_from(["string", "integer", "number", "boolean"]))
def test_column_and_codes_determine_the_values(values: list[JSON], kind: Kind) -> None:
    array, codes = encode(kind, values)

    assert array.type == TypedColumn("a", "/a", kind).type
    assert shown(decode(array, codes, MISSING, lambda rows: [values[row] for row in rows])) == shown(values)


COLUMNS: list[tuple[Kind, list[JSON], list[JSON], list[int]]] = [
    ("string", ["a", MISSING, ""], ["a", None, ""], [0, 0, 0]),
    ("string", ["a", None, 1], ["a", None, None], [0, NULL, LOOK]),
    ("integer", [1, MISSING, None, 1.0, -0.0], [1, None, None, 1, 0], [0, 0, NULL, OTHER_NUMBER, LOOK]),
    ("integer", [2**63 - 1, 2**63, 2.0**62, 2.0**63, True], [2**63 - 1, None, 2**62, None, None], [0, 3, 2, 3, 3]),
    ("number", [0.5, MISSING, None, 1, -0.0], [0.5, None, None, 1.0, -0.0], [0, 0, NULL, OTHER_NUMBER, 0]),
    ("number", [20, 5.5], [20.0, 5.5], [OTHER_NUMBER, 0]),
    ("number", [2**53, 2**53 + 2, 2**70], [2.0**53, 2.0**53 + 2, None], [OTHER_NUMBER, LOOK, LOOK]),
    ("boolean", [True, MISSING, None, 0], [True, None, None, None], [0, 0, NULL, LOOK]),
]


@pytest.mark.parametrize(("kind", "values", "held", "codes"), COLUMNS)
def test_typed_column_has_a_code_for_each_value_that_its_array_lacks(
    kind: Kind, values: list[JSON], held: list[JSON], codes: list[int]
) -> None:
    array, reported = encode(kind, values)

    assert shown(array.to_pylist()) == shown(held)
    assert ([0] * len(values) if reported is None else reported.tolist()) == codes


def test_codes_are_packed_only_if_present() -> None:
    packed = pack_codes([None, np.array([0, 2, 0, 1], np.uint8)], 4)

    assert packed.to_pylist() == [None, b"\0\2", None, b"\0\1"]
    assert pack_codes([None, np.zeros(2, np.uint8)], 2).to_pylist() == [None, None]
    for some in (packed, packed.slice(1), packed.slice(1, 1)):
        codes = unpack_codes(some)
        assert codes is not None
        assert codes.tolist() == [list(text or b"\0\0") for text in some.to_pylist()]
    assert unpack_codes(packed.slice(0, 1)) is None


def test_scalar_fields_have_columns() -> None:
    spec = collection(
        [
            projection("a", "/a", TYPES["integer"]),
            projection("A", "/A", TYPES["integer"]),
            projection("Doc", "/Doc", TYPES["string"]),
            projection("b", "/b", TYPES["nullable"]),
            projection("c/d", "/c/d", frozenset({"fractional", "null"})),
            projection("e", "/e", TYPES["several"]),
            projection("f", "/f", TYPES["object"]),
            projection("g", "/g", TYPES["string"], is_partition=True),
            projection("at", "/_meta/uuid", TYPES["string"]),
            projection("all", "", TYPES["string"]),
            projection("", "/", TYPES["string"]),
            projection("h", "/h", TYPES["boolean"]),
        ]
    )

    assert typed_columns(spec) == (
        TypedColumn("a", "/a", "integer"),
        TypedColumn("b", "/b", "integer"),
        TypedColumn("c/d", "/c/d", "number"),
        TypedColumn("h", "/h", "boolean"),
    )
    many = collection([projection(str(number), f"/{number}", TYPES["integer"]) for number in range(150)])
    assert len(typed_columns(many)) == 100


def test_other_readers_have_columns_of_numbers_and_texts(tmp_path: Path) -> None:
    spec = collection([projection("id", "/id", TYPES["integer"]), projection("amount", "/amount", TYPES["number"])])
    documents: list[Document] = [{"id": 1, "amount": 0.5}, {"id": 2, "amount": 3}, {"amount": 7.5}]

    (segment,) = write(tmp_path, spec, "one", documents, 10)

    table = pq.read_table(tmp_path / segment.path)
    assert table.schema.names == ["clock", "seq", "diff", "key", "doc", "id", "amount", "flow_exact"]
    assert table.schema.types[5:] == [pa.int64(), pa.float64(), pa.binary()]
    assert table.select(["id", "amount"]).to_pylist() == [
        {"id": 1, "amount": 0.5},
        {"id": 2, "amount": 3.0},
        {"id": None, "amount": 7.5},
    ]
    assert table.column("flow_exact").to_pylist() == [None, b"\0\2", None]
    metadata = pq.read_metadata(tmp_path / segment.path)
    statistics = metadata.row_group(0).column(6).statistics
    assert (statistics.min, statistics.max, statistics.null_count) == (0.5, 7.5, 0)


def test_only_documents_that_a_column_marks_are_read(tmp_path: Path) -> None:
    spec = collection([projection("id", "/id", TYPES["integer"]), projection("amount", "/amount", TYPES["number"])])
    documents: list[Document] = [{"id": 1, "amount": 2**60}, {"id": 2**60, "amount": 3}, {"id": 2**70, "amount": 7.5}]
    segments = write(tmp_path, spec, "one", documents, 10)
    selection = Selection(("integer",), {0: [TypedColumn("id", "/id", "integer")]}, has_documents=False)

    (rows,) = read_sorted(tmp_path, [SourceRead(0, 0, 0, 10, tuple(segments))], selection=selection)

    assert rows.texts.to_pylist() == [None, None, '{"id":1180591620717411303424,"amount":7.5}']


@given(collections(), collections(), DOCUMENTS, st.integers(1, 5))
def test_written_and_copied_columns_have_no_wrong_values(
    written: CollectionSpec, copied: CollectionSpec, documents: list[Document], row_group: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        segments = write(root, written, "one", documents, row_group)
        copies = SegmentWriter(root, copied, "two")
        copy_rows(root, copied, copies, SourceRead(0, 0, 0, 100, tuple(segments)), "[]")

        assert [value for segment in (*segments, *copies.close()) for value in wrong_values(root, segment)] == []


def test_wrong_values_of_columns_are_found(tmp_path: Path) -> None:
    spec = collection([projection("a", "/a", TYPES["number"]), projection("b", "/nested/x", TYPES["string"])])
    documents: list[Document] = [{"a": 1.5, "nested": {"x": "u"}}, {"a": 2}, {"a": None, "nested": {"x": "v"}}]
    (segment,) = write(tmp_path, spec, "n", documents, 10)
    file = pq.ParquetFile(tmp_path / segment.path)
    table, pointers = file.read(), file.schema_arrow.metadata
    for name, values in (("a", [1.5, 3.0, None]), ("b", ["u", None, "w"])):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values))
    codes = table.schema.get_field_index("flow_exact")
    table = table.set_column(codes, table.schema.field(codes), pa.nulls(3, pa.binary()))
    pq.write_table(table.replace_schema_metadata(pointers), tmp_path / segment.path, write_page_checksum=True)

    # The second number is wrong, the codes of an integer and of a null are gone, and the last text is wrong.
    assert [(value.clock, *value[3:]) for value in wrong_values(tmp_path, segment)] == [
        (1, "a", 3.0, 2.0),
        (2, "a", None, None),
        (2, "b", "w", "v"),
    ]
