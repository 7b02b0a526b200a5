"""What is published as columns is what is published document by document: rows, errors and all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_data import SUMS, ColumnLambdas, Lambdas, derivation, plan_of, shown, source_rows_of

from derive.document.key import pack
from derive.errors import DocumentError, FlowError, SchemaViolation
from derive.protocol.specs import DerivationSpec, Document, ProjectionSpec
from derive.shard.fields import Reading
from derive.shard.published import published_schema
from derive.shard.tick_combiner import combine_ticks
from derive.shard.worker import Pipeline, joined
from derive.storage.segments.columns import compile_fields
from derive.storage.segments.reader import DOCUMENTS
from derive.storage.segments.rows import WrittenRows, concat
from derive.storage.segments.sorter import Spill

TYPED = {
    **SUMS,
    "type": "object",
    "required": ["k"],
    "properties": {
        **SUMS["properties"],  # type: ignore[dict-item]
        "k": {"type": "integer"},
        "n": {"type": ["number", "null"], "maximum": 1000, "reduce": {"strategy": "sum"}},
        "group": {"type": "string"},
    },
}
GROUP = ProjectionSpec("group", "/group", frozenset({"string"}), "may", is_partition=True, default=("none",))
PARTITIONED = derivation("s/in", schema=TYPED)
TYPED_FIELDS = (
    ProjectionSpec("k", "/k", frozenset({"integer"}), "must"),
    ProjectionSpec("n", "/n", frozenset({"integer", "fractional", "null"}), "may"),
)
SPEC = replace(PARTITIONED, collection=replace(PARTITIONED.collection, projections=(GROUP, *TYPED_FIELDS)))

PUBLISHED = st.fixed_dictionaries(
    {"k": st.integers(0, 3) | st.sampled_from([2**40, -5])},
    optional={
        "n": st.sampled_from([0.1, 0.2, 7, 1.0]),
        "list": st.sampled_from([[0], [7]]),
        "group": st.sampled_from(["a", 'b"', ""]),
        "more": st.sampled_from(["x,y", "[1]", 2**70, None, True]),
    },
)
FAR_MORE = 1_000_000
READ = st.lists(st.tuples(st.integers(0, 45), st.lists(PUBLISHED, max_size=3)), min_size=1, max_size=25).map(
    lambda rows: sorted(rows, key=lambda row: row[0])
)


def publish(_: int, document: Document) -> Iterator[Document]:
    return iter(document["published"])


def published(
    lambdas: Lambdas,
    read: list[tuple[int, list[Document]]],
    spec: DerivationSpec,
    sizes: Iterable[int],
    memory: int,
    many: int = 0,
) -> tuple[list[tuple[int, int, bytes, str, str]], list[object]]:
    """Rows to be written, and rows to be shuffled, of documents that publish some each."""
    rows = source_rows_of([(clock, {"k": 1, "published": documents}) for clock, documents in read])
    borders = sorted({0, len(rows), *(size for size in sizes if size < len(rows))})
    parts = [rows.slice(begin, end - begin) for begin, end in pairwise(borders)]
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), memory) as spill:
        plan = plan_of(spec, Path(folder), 1000, (), clamp=12)
        processed: list[int] = []
        reading = Reading(DOCUMENTS)
        written = list(Pipeline(plan, reading, lambdas, processed.append, many).combined(iter(parts), spill))
        shuffled = list(Pipeline(plan, reading, lambdas, processed.append, many).published(iter(parts)))
        combined = list(combine_ticks(spec, iter([(concat(shuffled), True)] if shuffled else []), spill))
    assert all(part.batch.schema.equals(published_schema(spec.collection)) for part in shuffled)
    assert labelled(combined) == labelled(written)
    for part in (*combined, *(part for part in written if part.fields is not None)):
        assert_typed(part, spec)
    return labelled(written), [row for part in shuffled for row in part.batch.to_pylist()]


def labelled(parts: list[WrittenRows]) -> list[tuple[int, int, bytes, str, str]]:
    labels = [label for part in parts for label in part.labels.to_pylist()]
    return [(*row, label) for row, label in zip(shown(parts), labels, strict=True)]


def assert_typed(rows: WrittenRows, spec: DerivationSpec) -> None:
    """Typed columns are those of the documents."""
    fields = compile_fields(spec.collection)(rows.documents())
    assert rows.fields is not None
    assert fields is not None
    assert repr(rows.fields.to_pylist()) == repr(fields.to_pylist())


class AheadLambdas(ColumnLambdas):
    """Lambdas for which parts of the input are joined."""

    batch_documents = 9


@given(READ, st.lists(st.integers(1, 24), max_size=3), st.sampled_from([0, 3000, 1 << 20]))
def test_published_columns_equal_published_documents(
    read: list[tuple[int, list[Document]]], sizes: list[int], memory: int
) -> None:
    one_by_one = published(Lambdas(publish), read, SPEC, [], 1 << 20, many=FAR_MORE)

    assert published(ColumnLambdas(publish), read, SPEC, sizes, memory) == one_by_one
    assert published(AheadLambdas(publish), read, SPEC, sizes, memory) == one_by_one
    assert published(Lambdas(publish), read, SPEC, sizes, memory) == one_by_one


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([], 3, []),
        ([1, 1, 1, 1], 3, [3, 1]),
        ([2, 2, 1], 3, [2, 3]),
        ([5, 1, 2], 3, [5, 3]),  # a large part is not divided
    ],
)
def test_parts_are_joined_up_to_a_number_of_rows(sizes: list[int], most: int, expected: list[int]) -> None:
    rows = source_rows_of([(clock, {"k": clock}) for clock in range(9)])
    borders = list(accumulate(sizes, initial=0))
    parts = list(joined((rows.slice(begin, end - begin) for begin, end in pairwise(borders)), most))

    assert [len(part) for part in parts] == expected
    assert [clock for part in parts for clock in part.adjusted.tolist()] == list(range(sum(sizes)))


def test_columns_convert_to_rows() -> None:
    read: list[tuple[int, list[Document]]] = [
        (13, [{"k": 2, "n": 1.5, "group": "a"}, {"k": 1, "n": 1, "group": "b"}]),
        (14, [{"k": 2, "n": 2, "group": "a"}]),
    ]
    written, _ = published(ColumnLambdas(publish), read, SPEC, [], 1 << 20)

    assert written == [
        (13, 0, pack([1]), '{"k":1,"n":1,"group":"b"}', '["b"]'),
        (14, 0, pack([2]), '{"k":2,"n":3.5,"group":"a"}', '["a"]'),
    ]


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        (
            {"k": "x"},
            SchemaViolation,
            "published an invalid document: document \\[\"x\"\\] of 's/out' fails its schema",
        ),
        ({"k": 1, "n": 1001}, SchemaViolation, "1001 is greater than the maximum of 1000"),
        ({"n": 1}, SchemaViolation, '"k" is a required property'),
        ({"k": 1 << 255 * 8}, DocumentError, "published a document without a key: an integer of 256 bytes"),
    ],
)
def test_columns_report_the_same_errors(document: Document, error: type[FlowError], message: str) -> None:
    read: list[tuple[int, list[Document]]] = [(1, [{"k": 1, "n": 1}]), (2, [document])]
    reported = []
    for lambdas, many in ((Lambdas(publish), FAR_MORE), (Lambdas(publish), 0), (ColumnLambdas(publish), 0)):
        with pytest.raises(error, match=message) as caught:
            published(lambdas, read, SPEC, [], 1 << 20, many)
        reported.append((caught.value.message, caught.value.position, caught.value.hint))

    assert reported[1:] == reported[:1] * 2


def test_published_document_without_its_key_has_a_next_step() -> None:
    spec = replace(SPEC, collection=replace(SPEC.collection, key_defaults=(None,)))

    with pytest.raises(SchemaViolation) as caught:
        published(Lambdas(publish), [(1, [{"n": 1}])], spec, [], 1 << 20)

    assert caught.value.hint == "each published document needs its key: add /k to what the lambda publishes"
