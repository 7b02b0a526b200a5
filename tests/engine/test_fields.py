"""Lambdas that are given fields publish what they would publish if they were given documents."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import World, examples, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact
from derive.document.key import pack
from derive.errors import DocumentError, FlowError, LambdaError, SchemaViolation
from derive.protocol.specs import Document
from derive.shard.fields import reading_of
from derive.storage.compaction import compact
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.segment_file import are_valid
from derive.storage.segments.writer import SegmentWriter

CATALOG = """
collections:
  f/one:
    schema:
      type: object
      required: [id, at]
      properties:
        id: {type: integer}
        at: {type: string}
        text: {type: [string, "null"], default: none}
        number: {type: number}
        rank: {type: [integer, "null"], default: 7}
        is: {type: boolean}
        digits: {type: string, format: integer}
        bytes: {type: string, contentEncoding: base64}
        inner: {type: object, properties: {x: {type: number}}}
    key: [/id]
  f/other:
    schema:
      type: object
      required: [id, at]
      properties:
        id: {type: integer}
        at: {type: string}
        rank: {type: integer}
        name: {type: string, default: none}
        inner: {type: object, properties: {x: {type: number}}}
    key: [/id]
  f/out:
    schema: {type: object, required: [by], properties: {by: {type: string}, row: {}}}
    key: [/by]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (rank, text, n INTEGER, PRIMARY KEY (rank, text));"]}}
      transforms:
        - name: fromOne
          source: f/one
          shuffle: {key: [/rank, /text]}
          lambda: |
            SELECT 'one' || $id AS by, json_array(
              quote($id), quote($text), quote($number), quote($rank), quote($is), quote($digits), quote($bytes),
              quote($inner$x), typeof($number), quote($flow_published_at), $number, $rank
            ) AS row; DOCUMENTS
        - name: fromOther
          source: f/other
          readDelay: 2s
          shuffle: {key: [/rank, /name]}
          lambda: SELECT 'other' || $id AS by, quote($name) || quote($inner$x) || quote($rank) AS row; DOCUMENTS
"""
AS_DOCUMENTS = "/* $flow_document */"
"""That a lambda might name the document is enough for all to be given documents."""

NUMBERS = (
    st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([-0.0, 1.0, 2**53 + 1, -(2**63)])
)
RANKS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.sampled_from([1.0, -0.0, 1e15])
TEXTS = st.sampled_from(["", "a", "\0", "null", "é\U0001f600"]) | st.text(st.characters(exclude_categories=["Cs"]))
INNER = st.dictionaries(st.just("x"), NUMBERS)
ONE = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | TEXTS,
        "number": NUMBERS,
        "rank": st.none() | RANKS,
        "is": st.booleans(),
        "digits": st.integers().map(str),
        "bytes": st.sampled_from(["aGk=", "no"]),
        "inner": INNER,
    },
)
OTHER = st.fixed_dictionaries({}, optional={"name": TEXTS, "rank": RANKS, "inner": INNER})


def world_of(folder: Path, name: str, catalog: str) -> World:
    (folder / name).mkdir()
    return World(folder / name / "data", load(write_catalog(folder / name, catalog)))


def timed(documents: Iterable[Document]) -> list[Document]:
    """Documents half a second apart."""
    return [
        {"id": number, "at": format_rfc3339(500_000 * number), **document}
        for number, document in enumerate(documents, start=1)
    ]


@settings(max_examples=examples(40, 6))
@given(st.lists(ONE, max_size=12), st.lists(OTHER, max_size=8), st.integers(1, 3), st.booleans())
def test_lambdas_publish_the_same_from_fields_and_documents(
    ones: list[Document], others: list[Document], shards: int, is_merged: bool
) -> None:
    published = []
    with tempfile.TemporaryDirectory() as folder:
        for name, more in (("fields", ""), ("documents", AS_DOCUMENTS)):
            world = world_of(Path(folder), name, CATALOG.replace("DOCUMENTS", more))
            assert (reading_of(world.catalog.derivations["f/out"]).transforms is None) == (name == "documents")
            for some in (timed(ones)[:5], timed(ones)[5:]):
                world.ingest("f/one", some)
            world.ingest("f/other", timed(others))
            if is_merged:
                compact(world.store, world.catalog.collections["f/one"])
            world.step(shards=shards)
            published.append(world.rows("f/out"))
            world.store.close()

    assert published[0] == published[1]
    assert len(published[0]) == len(ones) + len(others)


FAILING = """
collections:
  f/one: {schema: {type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}, a: {type: integer}}}, key: [/id]}
  f/out:
    schema: {type: object, required: [a], properties: {a: {type: integer}, b: {type: integer}}}
    key: [/a]
    derive: {using: {sqlite: {}}, transforms: [{name: fromOne, source: f/one, shuffle: {key: [/a]}, lambda: "LAMBDA"}]}
"""
SHOWN = '{"id":2,"at":"1970-01-01T00:00:01.000000Z","a":2,"more":[1,{"b":null}]}'


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT $a, abs(iif($a = 2, -9223372036854775807 - 1, 1)) AS b;", "the document was " + SHOWN),
        ("SELECT iif($a = 2, 'two', $a) AS a;", "published for " + SHOWN),
        ("SELECT iif($a = 2, NULL, $a) AS a;", "published for " + SHOWN),
    ],
)
def test_error_shows_the_whole_document_although_fields_were_read(
    sql: str, message: str, shards: int, tmp_path: Path
) -> None:
    world = world_of(tmp_path, "failing", FAILING.replace("LAMBDA", sql))
    assert reading_of(world.catalog.derivations["f/out"]).transforms is not None
    world.ingest("f/one", timed({"a": number, "more": [1, {"b": None}]} for number in range(1, 4)))

    with pytest.raises(FlowError, match=re.escape(message)):
        world.step(shards=shards)


@pytest.mark.parametrize("shards", [1, 2])
def test_error_shows_a_document_without_a_shuffle_key(shards: int, tmp_path: Path) -> None:
    world = world_of(tmp_path, "failing", FAILING.replace("LAMBDA", "SELECT 1 AS a;"))
    world.ingest("f/one", timed([{"a": 1}, {"more": 1, "a": 256**255}]))

    if shards == 1:
        world.step(shards=shards)
        assert len(world.rows("f/out")) == 2
    else:
        with pytest.raises(
            DocumentError, match='cannot shuffle a document: an integer of 256 bytes .*,"more":1,"a":126'
        ):
            world.step(shards=shards)


def test_integer_beyond_64_bits_is_reported(tmp_path: Path) -> None:
    world = world_of(tmp_path, "failing", FAILING.replace("LAMBDA", "SELECT $a;"))
    world.ingest("f/one", timed([{"a": 1}, {"a": 2**64, "more": 1}]))

    with pytest.raises(LambdaError, match=f'\\$a is {2**64}, which is beyond .* the document was .*,"more":1'):
        world.step(shards=1)


SCHEMA = "{type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}, a: {type: integer}}}"


@pytest.mark.parametrize("more", ["", AS_DOCUMENTS], ids=["fields", "documents"])
@pytest.mark.parametrize("shards", [1, 2])
def test_documents_are_validated_again_only_after_a_schema_change(shards: int, more: str, tmp_path: Path) -> None:
    text = FAILING.replace("LAMBDA", f"SELECT $a; {more}")
    world = world_of(tmp_path, "before", text)
    (document,) = timed([{"a": 1}])
    world.ingest("f/one", [document])
    spec = world.catalog.collections["f/one"]
    (segment,) = world.store.segments(spec)
    # What was not validated, in a file that says it was.
    writer = SegmentWriter(world.root, spec, "other", is_valid=True)
    texts = pa.array([dump_exact({**document, "b": "no"}).decode()])
    writer.write(WrittenRows.of([segment.clock_min], np.zeros(1, np.int32), [pack([1])], texts, ["[]"]))
    (other,) = writer.close()
    (world.root / other.path).replace(world.root / segment.path)

    after = load(write_catalog(tmp_path, text.replace(SCHEMA, SCHEMA.replace("a: {", "b: {type: integer}, a: {"))))
    changed = World(world.root, after)
    with pytest.raises(SchemaViolation, match=r"transform 'fromOne' of 'f/out' reads an invalid document: .*\[1\]"):
        changed.step(shards=shards)
    world.step(shards=shards)
    assert [text for _, _, _, text in world.rows("f/out")] == ['{"a":1}']


def test_merged_segment_is_valid_if_all_its_parts_were_valid(tmp_path: Path) -> None:
    world = world_of(tmp_path, "merged", FAILING.replace("LAMBDA", "SELECT $a;"))
    spec = world.catalog.collections["f/one"]
    documents = timed([{"a": 1}, {"a": 2}, {"a": 3}])
    world.ingest("f/one", documents[:1])
    world.ingest("f/one", documents[1:2])

    compact(world.store, spec)
    assert are_valid(world.root, world.store.segments(spec), spec.write_schema)

    changed = replace(spec, write_schema={"type": "object"})
    world.ingest("f/one", documents[2:])
    compact(world.store, changed)
    (segment,) = world.store.segments(spec)
    assert not are_valid(world.root, [segment], spec.write_schema)
    assert not are_valid(world.root, [segment], changed.write_schema)


# On a cycle, too, lambdas that are given fields publish what they would publish if they were given documents.


CYCLES = """
collections:
  f/one:
    schema:
      type: object
      required: [id, at]
      properties:
        id: {type: integer}
        at: {type: string}
        text: {type: [string, "null"], default: none}
        number: {type: number}
        rank: {type: [integer, "null"], default: 7}
        inner: {type: object, properties: {x: {type: number}}}
    key: [/id]
  f/loop:
    schema:
      type: object
      required: [id, round]
      properties:
        id: {type: integer}
        round: {type: integer}
        last: {type: string}
        text: {type: [string, "null"], default: none}
        number: {type: number}
        rank: {type: [integer, "null"], default: 7}
        inner: {type: object, properties: {x: {type: number}}}
    key: LOOP_KEY
    projections: {last: {location: /last, partition: true}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (rank, n INTEGER, PRIMARY KEY (rank));"]}}
      transforms:
        - name: fromOne
          source: f/one
          shuffle: {key: [/rank]}
          lambda: |
            INSERT INTO seen VALUES ($rank, 1) ON CONFLICT DO UPDATE SET n = n + 1;
            SELECT $id, 0 AS round, 'no' AS last, coalesce($number, 0.5) AS number, $rank, $text WHERE $id % 3 > 0; MORE
        - name: fromLoop
          source: {name: f/loop, partitions: {include: {last: ["no"]}}}
          readDelay: DELAY
          shuffle: {key: [/rank]}
          lambda: |
            INSERT INTO seen VALUES ($rank, 1) ON CONFLICT DO UPDATE SET n = n + 1;
            SELECT $id, $round + 1 AS round, iif($round = 2, 'yes', 'no') AS last, $rank,
              quote($text) || quote($number) || quote($inner$x) || quote($flow_published_at) AS text,
              json_object('x', coalesce($number, (SELECT n FROM seen WHERE rank = $rank), 1)) AS inner; MORE
"""

VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.sampled_from(["", "a", "null", "é\U0001f600", 'q"\\']),
        "number": st.integers(-5, 5) | st.sampled_from([-0.0, 1.0, 2.5, 2**53 + 1]),
        "rank": st.none() | st.integers(-3, 3) | st.sampled_from([2**62, 1.0]),
        "inner": st.dictionaries(st.just("x"), st.integers(0, 3) | st.just(0.5)),
    },
)


def cycle_world(folder: Path, name: str, text: str) -> World:
    return World(folder / name, load(write_catalog(folder, text)))


@settings(max_examples=examples(40, 6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(VALUES, min_size=1, max_size=6),
    st.sampled_from([1, 40]),
    st.sampled_from([0, 1_000, 400_000]),
    st.sampled_from(["0s", "400ms"]),
    st.sampled_from(["[/id, /round]", "[/rank]"]),
    st.sampled_from([1, 1, 3]),
)
def test_lambdas_on_a_cycle_publish_the_same_from_fields_and_documents(
    patterns: list[Document], times: int, apart: int, delay: str, key: str, shards: int
) -> None:
    """Ticks of many documents, which are published as columns, among them; of some keys, and of others."""
    schema = CYCLES.replace("DELAY", delay).replace("LOOP_KEY", key)
    half = len(patterns) * times // 2
    documents = [
        {"id": number, "at": format_rfc3339(apart * number + (number > half)), **document}
        for number, document in enumerate(patterns * times, start=1)
    ]
    published = []
    with tempfile.TemporaryDirectory() as folder:
        for name, more, count in (("fields", "", shards), ("documents", AS_DOCUMENTS, 1)):
            world = cycle_world(Path(folder), name, schema.replace("MORE", more))
            assert (reading_of(world.catalog.derivations["f/loop"]).transforms is None) == (name == "documents")
            for some in (documents[:half], documents[half:]):
                world.ingest("f/one", some)
            world.step(shards=count)
            published.append(world.rows("f/loop"))
            world.store.close()

    assert published[0] == published[1]
    assert published[0] or not any(document["id"] % 3 for document in documents)


FAILING_CYCLES = """
collections:
  f/one:
    schema: &numbers {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}, at: {type: string}}}
    key: [/id]
  f/loop:
    schema: *numbers
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: fromOne, source: f/one, shuffle: {key: [/n]}, lambda: "SELECT $id, $n, 'more' AS more;"}
        - {name: fromLoop, source: f/loop, shuffle: {key: [/n]}, lambda: "SELECT $id, NEXT AS n WHERE $n > 0;"}
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("following", "message"),
    [
        ("abs(iif($n = 2, -9223372036854775807 - 1, $n - 1))", "the document was {shown}"),
        ("iif($n = 2, 'two', $n - 1)", "published for {shown}"),
    ],
)
@pytest.mark.parametrize("count", [1, 80])
def test_error_shows_the_whole_fed_back_document(
    following: str, message: str, shards: int, count: int, tmp_path: Path
) -> None:
    world = cycle_world(tmp_path, "failing", FAILING_CYCLES.replace("NEXT", following))
    assert reading_of(world.catalog.derivations["f/loop"]).transforms is not None
    world.ingest(
        "f/one", [{"id": place, "n": 2 + (place < count), "at": format_rfc3339(place)} for place in range(1, count + 1)]
    )

    shown = f'{{"id":{count},"n":2,"more":"more"}}'
    with pytest.raises(FlowError, match=re.escape(message.format(shown=shown))):
        world.step(shards=shards)
