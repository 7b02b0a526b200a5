"""What a class publishes for many documents comes as columns, and is what it publishes for each of them."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from typescript_derivation import CLOCK, invoke, lambdas, open_session, run

from connectors.module_kit.published import AnsweredColumns, gathered
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.derive import PublishedColumns, ReadBatch
from derive.protocol.specs import Document
from derive.storage.segments.texts import write_columns, write_texts

pytestmark = [pytest.mark.deno, pytest.mark.usefixtures("empty_pool")]

TWO = ReadBatch([0, 0], [CLOCK] * 2, [CLOCK] * 2, [{"id": 1}, {"id": 2}])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("body", "is_columns"),
    [
        ("return Array(read.doc.id % 3).fill({ id: read.doc.id, half: read.doc.id / 2 });", [True, True]),
        # From the first answer on in which documents differ, they are no columns.
        ("return [{ id: read.doc.id }, ...(read.doc.id % 9_000 === 8_999 ? [{ last: [] }] : [])];", [True, False]),
        ("return read.doc.id % 2 ? [{ a: 1, b: 2 }] : [{ b: 2, a: 1 }];", [False, False]),
        ("return read.doc.id % 2 ? [{}, {}] : [];", [False, False]),
        ("return [];", []),
        # Numbers and texts that JavaScript writes otherwise than others do, and values that are neither.
        ("return [{ n: 1.25 * 10 ** (read.doc.id % 42 - 18), t: read.doc.id % 1000 ? 'a' : 'a,\\n' }];", [True, True]),
        ("return [{ n: -read.doc.id, t: read.doc.id % 7 ? 'a' : 7, o: { a: [read.doc.id] } }];", [True, True]),
        ("return [{ at: new Date(read.doc.id), b: read.doc.id % 2 === 0, z: null }];", [True, True]),
    ],
)  # fmt: skip
def test_documents_of_equal_properties_are_published_as_columns(body: str, is_columns: list[bool]) -> None:
    """The oracle is what is published one by one."""
    documents = [{"id": number} for number in range(12_000)]
    clocks = [CLOCK] * len(documents)
    session = open_session(lambdas(body))
    parts = session.invoke_columns(ReadBatch([0] * len(documents), clocks, clocks, documents))
    assert parts is not None
    kinds: list[bool] = []
    published: list[tuple[int, Document]] = []
    texts: list[str] = []
    for part in parts:
        kinds.append(isinstance(part, PublishedColumns))
        listed = part.columns.documents() if isinstance(part, PublishedColumns) else part.documents
        texts += (
            write_columns(part.columns) if isinstance(part, PublishedColumns) else write_texts(listed)
        ).to_pylist()
        published += zip(map(int, part.causes), listed, strict=True)
    assert repr(published) == repr(invoke(session, documents))
    assert kinds == is_columns
    assert texts == write_texts([document for _, document in published]).to_pylist()
    session.close()


def test_a_class_that_publishes_at_the_end_of_a_tick_publishes_no_columns() -> None:
    session = open_session(lambdas("return [];", "flush() { return [{ id: 1 }]; }"))
    assert session.invoke_columns(ReadBatch([0], [CLOCK], [CLOCK], [{"id": 1}])) is None
    session.close()


numbers = st.integers(-(2**53), 2**53) | st.floats(-1e15, 1e15)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(anything, anything), min_size=1, max_size=8))
def test_published_columns_equal_the_documents(values: list[tuple[JSON, JSON]]) -> None:
    documents = [{"a": a, "b": b} for a, b in values]
    session = open_session(lambdas("return [read.doc];"))
    parts = session.invoke_columns(
        ReadBatch([0] * len(values), [CLOCK] * len(values), [CLOCK] * len(values), documents)
    )
    assert parts is not None
    (part,) = parts
    assert isinstance(part, PublishedColumns)
    assert part.columns.documents() == documents
    session.close()


# What JSON makes of an object is its own affair, as it is for documents.
OBJECTS = [
    ("const out = Object.create(null); out.id = 1; return [out];", [{"id": 1}]),
    ("return [{ id: 1, gone: undefined }];", [{"id": 1}]),
    ("return [new (class { toJSON() { return { other: 2 }; } })()];", [{"other": 2}]),
    ("return [{ id: new (class { toJSON(name: string) { return name; } })() }];", [{"id": "id"}]),
    ("return [{ id: new (class { toJSON() { return 7; } })() }];", [{"id": 7}]),
    ("return [{ get id() { return 3; } }];", [{"id": 3}]),
    ("return [new (class { id = 4; })()];", [{"id": 4}]),
    ("const out = { id: 1 }; return [out, (out.id = 2, out)];", [{"id": 2}, {"id": 2}]),
    ("return [Object.create({ id: 1 }, { own: { value: 2, enumerable: true } })];", [{"own": 2}]),
    ("(Array.prototype as any).toJSON = () => 5; return [{ id: 1, list: [2] }, { id: 2, list: 3 }];", None),
]


@pytest.mark.parametrize(("body", "published"), OBJECTS)
def test_objects_in_columns_are_converted_as_json(body: str, published: list[Document] | None) -> None:
    session = open_session(lambdas(body))
    parts = session.invoke_columns(TWO)
    assert parts is not None
    listed = [
        document
        for part in parts
        for document in (part.columns.documents() if isinstance(part, PublishedColumns) else part.documents)
    ]
    assert listed == 2 * (published or [{"id": 1, "list": 5}, {"id": 2, "list": 3}])
    session.close()


REFUSED = [
    ("return [{ id: read.doc.id, at: { x: NaN } }];", "/at/x of the published document is NaN"),
    ("return [{ id: NaN }];", "/id of the published document is NaN"),
    ("return [{ id: 1, f: () => 1 }];", "/f of the published document is a function"),
    ("return [{ id: 1, m: new Map() }];", "/m of the published document is a Map"),
    ("const a: any = {}; a.a = a; return [{ id: 1, a }];", "circular"),
    ("return [{ id: 1n }];", "BigInt"),
    ("return [7];", "it published a number, which is no document"),
    ("return 7;", "the method must return an array of documents, and returned a number"),
    ("return [{ id: 1, o: { toJSON() { throw new Error('no'); } } }];", "Error: no"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("body", "reason"), REFUSED)
def test_columns_report_invalid_documents_as_documents_do(body: str, reason: str) -> None:
    spec = lambdas(f"if (read.doc.id === 2) {{ {body} }} return [{{ id: 1 }}];")
    with pytest.raises(LambdaError) as alone:
        run(spec, [{"id": 1}, {"id": 2}])
    session = open_session(spec)
    with pytest.raises(LambdaError) as caught:
        list(session.invoke_columns(TWO) or ())
    session.close()
    assert reason in caught.value.message
    assert caught.value.message == alone.value.message


# Columns that are none: only a harness that is wrong would answer with them.
BROKEN = [
    (["id"], [b'["a]'], "unexpected end of data|unexpected end"),
    (["id"], [b"[1]"], "the answer has 1 value, and not 2"),
    (["id"], [b"[1,007]"], "unexpected|expected|line 1"),
    (["id"], [b"7"], "the value is not an array"),
]


@pytest.mark.parametrize(("names", "texts", "reason"), BROKEN)
def test_malformed_columns_are_refused(names: list[str], texts: list[bytes], reason: str) -> None:
    answer = AnsweredColumns(np.array([0, 1]), tuple(names), tuple(texts))
    with pytest.raises(ValueError, match=reason):
        list(gathered(iter([answer])))
