"""Methods with `@arrow`: columns of a batch, documents of the returned table, and errors."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from python_derivation import CLOCK, HEAD, derivation, invoke, lambdas, open_session, run

from connectors.derive_python.runtime.arrays import read_columns
from connectors.derive_python.runtime.session import PythonSession
from derive.document.exact import dump_exact
from derive.errors import LambdaError
from derive.protocol.derive import PublishedColumns, ReadBatch
from derive.protocol.specs import DerivationSpec, Document

pytestmark = pytest.mark.xdist_group("python modules")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "amount": {"type": "number"},
        "is_new": {"type": "boolean"},
        "path": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "any": {},
    },
}
ARROW = "from acme.out import arrow\nimport pyarrow as pa\nimport pyarrow.compute as pc\n"


def arrow(body: str, schema: Any = SCHEMA, head: str = "") -> DerivationSpec:
    """A derivation whose one method has `@arrow` and this body."""
    text = f"{HEAD}{ARROW}{head}class Derivation(IDerivation):\n    @arrow\n    def from_in(self, batch: pa.RecordBatch) -> Any:\n"
    return derivation(text + textwrap.indent(textwrap.dedent(body), " " * 8), schema=schema)


def texts(pairs: list[tuple[int, Document]]) -> list[tuple[int, bytes]]:
    return [(cause, dump_exact(document)) for cause, document in pairs]


IDS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False).map(
    lambda value: int(value) if value.is_integer() and abs(value) <= 2**53 else value
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.text() | NUMBERS, lambda part: st.lists(part) | st.dictionaries(st.text(), part)
)
DOCUMENTS = st.fixed_dictionaries(
    {"id": IDS, "note": st.none() | st.text()},
    optional={
        "name": st.text(),
        "amount": NUMBERS,
        "is_new": st.booleans(),
        "path": st.lists(st.lists(NUMBERS)),
        "any": JSONS,
    },
)
PLAIN = lambdas(
    """
    doc = read.doc
    values = doc.model_dump(exclude_unset=True)
    return [{key: values[key] for key in ("id", "name", "note", "amount", "is_new", "path", "any") if key in values}] * (doc.id % 3)
    """,
    schema=SCHEMA,
)
REPEATED = arrow(
    """
    times = [value % 3 for value in batch["id"].to_pylist()]
    return batch.take(pa.array([row for row, count in enumerate(times) for _ in range(count)], pa.int64()))
    """
)


@pytest.fixture(scope="module")
def sessions() -> Iterator[list[PythonSession]]:
    opened = [open_session(PLAIN), open_session(REPEATED)]
    yield opened
    for session in opened:
        session.close()


@settings(max_examples=examples(50, 8))
@given(st.lists(DOCUMENTS, min_size=1), st.data())
def test_arrow_method_publishes_the_bytes_of_a_plain_method_in_any_batches(
    sessions: list[PythonSession], documents: list[Document], data: st.DataObject
) -> None:
    plain, columns = sessions
    expected = texts(invoke(plain, documents))
    assert texts(invoke(columns, documents)) == expected
    middle = data.draw(st.integers(0, len(documents)))
    second = [(cause + middle, text) for cause, text in texts(invoke(columns, documents[middle:]))]
    assert texts(invoke(columns, documents[:middle])) + second == expected


SCALARS = ("id", "note", "amount", "is_new")
SCALAR_TYPES = (pa.int64(), pa.string(), pa.float64(), pa.bool_())
SCALAR_SCHEMA = {**SCHEMA, "properties": {name: SCHEMA["properties"][name] for name in SCALARS}}
FEW = st.fixed_dictionaries({"id": IDS, "note": st.text(), "amount": NUMBERS, "is_new": st.booleans()})


@pytest.fixture(scope="module")
def scalars() -> Iterator[PythonSession]:
    session = open_session(arrow("return batch.filter(pc.less(batch['id'], 1000))", SCALAR_SCHEMA))
    yield session
    session.close()


@settings(max_examples=examples(50))
@given(st.lists(FEW) | st.lists(DOCUMENTS))
def test_arrays_of_fields_publish_the_bytes_of_documents(scalars: PythonSession, drawn: list[Document]) -> None:
    documents: list[Document] = [{name: one[name] for name in SCALARS if name in one} for one in drawn]
    clocks = [CLOCK] * len(documents)
    expected = [(cause, one) for cause, one in enumerate(map(dump_exact, documents)) if documents[cause]["id"] < 1000]
    fields = [
        pa.array([document.get(name) for document in documents], type_)
        for name, type_ in zip(SCALARS, SCALAR_TYPES, strict=True)
    ]
    batch = ReadBatch([0] * len(documents), clocks, clocks, documents, [fields])
    assert texts(list(scalars.invoke(batch))) == expected
    parts = scalars.invoke_columns(batch)
    assert parts is not None
    published = []
    for part in parts:
        columns = part.columns.documents() if isinstance(part, PublishedColumns) else part.documents
        published += texts(list(zip(map(int, part.causes), columns, strict=True)))
    assert published == expected


def test_arrays_larger_than_the_pipe_are_answered(scalars: PythonSession) -> None:
    documents: list[Document] = [{"id": row % 1000, "note": "x" * 300} for row in range(9_000)]
    clocks = [CLOCK] * len(documents)
    values = [[document.get(name) for document in documents] for name in SCALARS]
    fields = [pa.array(column, type_) for column, type_ in zip(values, SCALAR_TYPES, strict=True)]
    parts = scalars.invoke_columns(ReadBatch([0] * len(documents), clocks, clocks, documents, [fields]))
    assert parts is not None
    assert [cause for part in parts for cause in part.causes] == list(range(len(documents)))


def test_batches_have_times_and_documented_types() -> None:
    spec = arrow(
        """
        assert batch["flow_now"][0].as_py().isoformat() == "2023-11-14T22:13:20.123456+00:00"
        assert batch["flow_published_at"] == batch["flow_now"]
        return pa.table({"flow_row": batch["flow_row"], "id": batch["id"], "note": [str(batch.schema.types)] * len(batch)})
        """
    )
    [(_, document)] = run(spec, [{"id": 1, "note": None}])
    assert document["note"] == (
        "[DataType(int64), DataType(int64), DataType(string), DataType(string), DataType(double), DataType(bool),"
        " ListType(list<item: list<item: double>>), DataType(string), TimestampType(timestamp[us, tz=UTC]),"
        " TimestampType(timestamp[us, tz=UTC])]"
    )


def test_plain_and_arrow_methods_publish_in_order() -> None:
    text = f"""{HEAD}{ARROW}class Derivation(IDerivation):
    def plain(self, read: Any) -> Any:
        return [read.doc]
    @arrow
    def columns(self, batch: pa.RecordBatch) -> Any:
        return batch
"""
    spec = derivation(text, "plain", "columns", schema=SCHEMA)
    session = open_session(spec)
    documents = [{"id": number, "note": "x"} for number in range(600)]
    assert invoke(session, documents, [number % 2 for number in range(600)]) == list(enumerate(documents))
    session.close()


def test_pandas_is_imported_only_by_a_module_that_uses_it() -> None:
    """Arrow imports pandas with its first array, but then knows values of a pandas that is imported later."""
    spec = arrow(
        """
        import sys
        before = "pandas" in sys.modules
        from pandas import Series
        nulls = pa.array(Series([1.0, None])).null_count
        return pa.table({"flow_row": batch["flow_row"], "id": pa.array([nulls]), "note": [str(before)]})
        """
    )

    assert run(spec, [{"id": 1, "note": ""}]) == [(0, {"id": 1, "note": "False"})]


def test_tables_of_other_libraries_are_taken() -> None:
    """A data frame of pandas, and an object with the interface of polars, whose texts are views."""
    head = """class Frame:
    def __init__(self, table: Any) -> None:
        self.table = table
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)
"""
    body = """
    frame = batch.to_pandas()
    chosen = frame[frame.id > 1][["flow_row", "id", "note"]]
    if batch["name"].null_count:
        return chosen
    table = pa.table(batch.select(["flow_row", "id", "note"]))
    return Frame(table.set_column(2, "note", table["note"].cast(pa.string_view())))
    """
    spec = arrow(body, head=head)
    documents: list[Document] = [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
    assert run(spec, documents) == [(1, documents[1])]
    assert run(spec, [{**document, "name": "x"} for document in documents]) == list(enumerate(documents))


def test_dates_and_categories_become_texts() -> None:
    spec = arrow(
        """
        return pa.table({
            "flow_row": batch["flow_row"],
            "id": batch["id"].cast(pa.int8()),
            "note": batch["flow_now"].cast(pa.date32()),
            "name": batch["flow_now"],
            "any": batch["note"].dictionary_encode(),
        })
        """
    )
    assert run(spec, [{"id": 1, "note": '{"a": 1}'}]) == [
        (0, {"id": 1, "note": "2023-11-14", "name": "2023-11-14T22:13:20.123456Z", "any": {"a": 1}})
    ]


FINE = "table = {'flow_row': batch['flow_row'], 'id': batch['id'], 'note': batch['note']}\n"
WRONG = [
    ("return 1", "the method returned a value of type 'int', which is not a table of pyarrow, polars or pandas", 1),
    ("return batch.drop_columns('flow_row')", "the returned table has no column 'flow_row': keep this column", 1),
    (f"{FINE}return pa.table(table | {{'flow_row': batch['note']}})", "the column 'flow_row' of the returned table has the type string", 1),
    (f"{FINE}return pa.table(table | {{'flow_row': [len(batch)] * len(batch)}})", "'flow_row' of row 0 of the returned table is 1, and the rows of the batch have the numbers 0 to 0", 1),
    ("return batch.take([1, 0]) if len(batch) > 1 else batch", "'flow_row' of row 1 of the returned table is 0, after 1: sort the table by 'flow_row'", 1),
    (f"{FINE}return pa.table(table | {{'nam': batch['note']}})", "the returned table has a column 'nam', which is not a property; did you mean 'name'?", 1),
    (f"{FINE}del table['note']\nreturn pa.table(table)", "the returned table has no column 'note', which is a required property", 1),
    (f"{FINE}return pa.table(table | {{'id': batch['note']}})", "the column 'id' of the returned table has the type string, and not int64", 1),
    (f"{FINE}return pa.table(table | {{'id': pc.if_else(pc.equal(batch['id'], 2), None, batch['id'])}})", "'id' of row 0 of the returned table is null, and the property is required", 2),
    (f"{FINE}return pa.table(table | {{'any': batch['note']}})", "'any' of row 0 of the returned table is not a JSON text", 1),
    (f"{FINE}return pa.table(table | {{'id': pc.divide(pc.cast(batch['id'], 'double'), 2)}})", "'id' of row 0 of the returned table is 0.5, and not an integer", 1),
    (f"{FINE}return pa.table(table | {{'amount': pc.divide(1.0, pc.subtract(pc.cast(batch['id'], 'double'), 2))}})", "'amount' of row 0 of the returned table is inf, which JSON cannot hold", 2),
    ("if 2 in batch['id'].to_pylist():\n    raise ValueError('no twos')\nreturn batch", "ValueError: no twos", 2),
    ("return batch.set_column(1, 'id', pc.cumulative_sum(batch['id']))", "the method returns other documents for this row alone than within a batch of 2 rows", 2),
    ("from datetime import datetime\ndatetime.now()\nreturn batch", "a method with @arrow has no current time: take the column 'flow_now' of the batch", 1),
    ("import random\nrandom.random()\nreturn batch", "a method with @arrow has no random values", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def wrong() -> Iterator[PythonSession]:
    """A session with a transform for each wrong body."""
    methods = [
        f"    @arrow\n    def w{number}(self, batch: pa.RecordBatch) -> Any:\n{textwrap.indent(body, ' ' * 8)}\n"
        for number, (body, _, _) in enumerate(WRONG)
    ]
    names = [f"w{number}" for number in range(len(WRONG))]
    text = f"{HEAD}{ARROW}class Derivation(IDerivation):\n{''.join(methods)}"
    session = open_session(derivation(text, *names, schema=SCHEMA))
    yield session
    session.close()


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_tables_are_errors_of_the_document(wrong: PythonSession, number: int) -> None:
    _, reason, place = WRONG[number]
    documents: list[Document] = [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
    with pytest.raises(LambdaError) as caught:
        invoke(wrong, documents, [number] * 2)
    wrong.undo()
    assert caught.value.message.startswith(f"transform 'w{number}' of 'acme/out' failed: ")
    assert reason in caught.value.message
    assert caught.value.message.endswith(f"; the document was {dump_exact(documents[place - 1]).decode()}")


@pytest.mark.parametrize(("name", "value"), [("id", 2**63), ("amount", 2**53 + 1)])
def test_number_beyond_the_column_is_an_error(sessions: list[PythonSession], name: str, value: int) -> None:
    document = {"id": 1, "note": "b", name: value}
    with pytest.raises(LambdaError, match=f"the number of '{name}' does not fit into the type"):
        invoke(sessions[1], [{"id": 1, "note": "a"}, document])
    sessions[1].undo()


def test_arrow_methods_answer_as_columns() -> None:
    session = open_session(arrow("return batch"))
    documents = [{"id": number, "note": "a", "amount": number / 2} for number in range(5)]
    parts = session.invoke_columns(ReadBatch([0] * 5, [CLOCK] * 5, [CLOCK] * 5, documents))
    assert parts is not None
    [part] = parts
    session.close()
    assert isinstance(part, PublishedColumns)
    assert part.columns.documents() == documents


def answer_of(table: pa.Table, names: str = '["id","name"]') -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream: bytes = sink.getvalue().to_pybytes()
    return names.encode() + b"\n" + stream


ANSWER = {"0": pa.array([0, 2]), "1": pa.array([1.5, 2.0]), "2": pa.array(["a", "b"])}


@pytest.mark.parametrize(
    "changed",
    [
        {"0": pa.array([2, 0])},
        {"0": pa.array([0, 3])},
        {"0": pa.array([-1, 0])},
        {"0": pa.array([0.0, 1.0])},
        {"1": pa.array([1.5, None])},
        {"1": pa.array([1.5, float("inf")])},
        {"2": pa.array([[1], [2]])},
        {"2": pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))},
        {"3": pa.array([1, 2])},
    ],
)
def test_answers_that_a_module_has_overwritten_are_refused(changed: dict[str, pa.Array]) -> None:
    with pytest.raises(ValueError, match="."):
        read_columns(answer_of(pa.table({**ANSWER, **changed})), np.arange(3))


@pytest.mark.parametrize("names", ['["id"]', '["id","id"]', '[1,"id"]', "{}", "["])
def test_answers_with_other_names_are_refused(names: str) -> None:
    with pytest.raises(ValueError, match="."):
        read_columns(answer_of(pa.table(ANSWER), names), np.arange(3))


def test_truncated_and_corrupted_answers_are_refused() -> None:
    text = answer_of(pa.table(ANSWER))
    published = read_columns(text, np.arange(3))
    assert published is not None
    assert published.columns.documents() == [{"id": 1.5, "name": "a"}, {"id": 2, "name": "b"}]
    for end in range(text.index(b"\n") + 1, len(text) - 8, 16):
        with pytest.raises(ValueError, match="."):
            read_columns(text[:end], np.arange(3))
    for place in range(text.index(b"\n") + 1, len(text)):  # no byte leads to a read beyond the answer
        with suppress(ValueError):
            read_columns(text[:place] + b"\xff" + text[place + 1 :], np.arange(3))
