"""What updates of a key come to: one document where they are reduced, all that are there where they are counted."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import World, examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction_oracle import contents_in_memory

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.reduced import contents_per_key
from derive.document.clock import format_rfc3339
from derive.errors import StorageError
from derive.position import Position
from derive.protocol.specs import CollectionSpec, Document, SelectorSpec
from derive.storage.compaction import compact
from derive.storage.segments.fold import FOLD_SIZES, FoldSizes
from derive.storage.segments.rows import StoredRows

SCHEMA = {"reduce": {"strategy": "merge"}, "properties": {"n": {"reduce": {"strategy": "sum"}}}}
REDUCED = CollectionSpec("s/sums", ("/k",), (0,), SCHEMA, SCHEMA, (), Position("flow.yaml", 1, 1))
CONSOLIDATED = replace(REDUCED, kind="consolidated")

Update = tuple[int, int, int, bytes, str]
"""Clock, seq, diff, key and JSON text."""

UPDATES: list[Update] = [
    (1, 0, 1, b"a", '{"n":1}'),
    (2, 0, 1, b"a", '{"n":2}'),
    (2, 1, 1, b"a", '{"n":1}'),
    (5, 0, -1, b"a", '{"n":2}'),
    (3, 0, 1, b"b", '{"n":7}'),
]


def contents(spec: CollectionSpec, updates: Sequence[Update], cut: int) -> list[tuple[object, ...]]:
    """Clock, seq, key and text of what updates come to that arrive so many at once."""
    rows = StoredRows.from_columns(*zip(*updates, strict=True))
    parts = [rows.slice(begin, cut) for begin in range(0, len(rows), cut)]
    return [row for part in contents_per_key(spec, parts) for row in part.tuples()]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, [(2, b"a", '{"n": 2}'), (3, b"b", '{"n": 3}'), (5, b"c", '{"n":5}')]),
        (
            {"reduce": {"strategy": "firstWriteWins"}},
            [(2, b"a", '{"n":1}'), (3, b"b", '{"n": 3}'), (5, b"c", '{"n":4}')],
        ),
        ({"reduce": {"strategy": "lastWriteWins", "delete": True}}, []),
    ],
)
def test_unchanged_documents_are_not_parsed(schema: dict[str, object], expected: list[tuple[int, bytes, str]]) -> None:
    # No document is stored with spaces: here they tell a text that is handed on from one that is written again.
    texts = ['{"n": 1}', '{"n": 2}', '{"n": 3}', '{"n": 4}', '{"n": 5}']
    keys = [b"a", b"a", b"b", b"c", b"c"]
    updates = [(clock, 0, 1, key, text) for clock, (key, text) in enumerate(zip(keys, texts, strict=True), start=1)]
    spec = replace(REDUCED, read_schema=schema, write_schema=schema)

    assert [(clock, key, text) for clock, _, key, text in contents(spec, updates, 5)] == expected


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_documents_of_a_key_are_reduced_or_counted(cut: int) -> None:
    assert contents(REDUCED, UPDATES, cut) == [(5, 0, b"a", '{"n":6}'), (3, 0, b"b", '{"n":7}')]
    assert contents(CONSOLIDATED, UPDATES, cut) == [
        (5, 0, b"a", '{"n":1}'),
        (5, 0, b"a", '{"n":1}'),
        (3, 0, b"b", '{"n":7}'),
    ]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 2), st.integers(-2, 3)), min_size=1, max_size=30),
    st.integers(1, 12),
)
def test_counts_are_independent_of_batches(changes: list[tuple[str, int, int]], cut: int) -> None:
    """In the order of keys and texts, as often as they are there; those that are alone as well as others."""
    counts: Counter[tuple[bytes, str]] = Counter()
    last: dict[bytes, int] = {}
    updates: list[Update] = []
    for clock, (letter, number, requested) in enumerate(changes, start=1):
        key, text = letter.encode(), f'{{"n":{number}}}'
        diff = max(requested, -counts[key, text]) or 1
        counts[key, text] += diff
        last[key] = clock
        updates.append((clock, 0, diff, key, text))
    updates.sort(key=lambda update: (update[3], update[0]))

    expected = [(last[key], 0, key, text) for key, text in sorted(counts.elements())]
    assert contents(CONSOLIDATED, updates, cut) == expected


def test_document_retracted_too_often_is_reported() -> None:
    with pytest.raises(
        StorageError, match=r"'s/sums' has 1 retraction of a document without an insertion: \{\"n\":7\}"
    ):
        contents(CONSOLIDATED, [*UPDATES, (9, 0, -2, b"b", '{"n":7}')], 5)


# History folded below a time: what is left, and that no later read can tell.


CATALOG = """
collections:
  f/values:
    key: [/k]
    projections: {p: {location: /p, partition: true}}
    schema:
      type: object
      required: [k]
      properties:
        k: {type: integer}
        p: {type: [string, "null"]}
        sum: {type: number, reduce: {strategy: sum}}
        last: {reduce: {strategy: lastWriteWins, associative: false}}
        note: {type: string, reduce: {strategy: lastWriteWins, delete: true}}
        list: {type: array, items: {type: integer}, reduce: {strategy: append}}
        max: {type: integer, reduce: {strategy: maximize}}
        tags:
          type: object
          reduce: {strategy: set}
          additionalProperties: {type: object, reduce: {strategy: merge}, additionalProperties: {type: integer, reduce: {strategy: sum}}}
        top: {type: integer}
        odd: {type: boolean}
        even: {type: boolean}
      if: {required: [gone], properties: {gone: {const: true}}}
      then: {reduce: {strategy: merge, delete: true}}
      else:
        reduce: {strategy: merge}
        if: {required: [odd], properties: {odd: {const: true}}}
        then: {properties: {top: {reduce: {strategy: lastWriteWins, delete: true}}}, not: {required: [even]}}
"""

TERMS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=2)
CHANGES = st.one_of(  # few things at a time, so that they meet
    st.fixed_dictionaries({"sum": st.sampled_from([0.1, 0.2, 0.7, -3, 10**17])}),
    st.fixed_dictionaries({"last": st.integers(0, 1), "note": st.just("x")}),
    st.fixed_dictionaries({"list": st.lists(st.integers(0, 9), max_size=2), "max": st.integers(0, 5)}),
    st.fixed_dictionaries({"tags": st.fixed_dictionaries({}, optional={"add": TERMS})}),
    st.fixed_dictionaries({"tags": st.fixed_dictionaries({"remove": TERMS})}),
    st.just({"gone": True}),
    st.sampled_from([{"top": 5}, {"odd": True}, {"even": True}, {"odd": True, "top": 4}]),
)
DOCUMENTS = st.builds(
    lambda key, partition, change: {"k": key, "p": partition, **change},
    st.integers(0, 1),
    st.sampled_from("aab"),
    CHANGES,
)
SELECTORS = [SelectorSpec(), SelectorSpec(include={"p": ("a",)}), SelectorSpec(exclude={"p": ("a",)})]


def clocked(documents: list[Document]) -> list[Document]:
    return [{**each, "at": format_rfc3339(place)} for place, each in enumerate(documents, start=1)]


def world_of(folder: Path, documents: list[Document]) -> World:
    """One document a microsecond, from 1 on."""
    folder.mkdir(exist_ok=True)
    world = World(folder / "data", load(write_catalog(folder, CATALOG)))
    for place in range(0, len(documents), 3):
        world.ingest("f/values", clocked(documents)[place : place + 3])
    world.store.create(world.catalog.collections["f/values"])
    world.store.seal(["f/values"], len(documents) + 1)
    return world


def forget(world: World, since: int, sizes: FoldSizes = FOLD_SIZES) -> None:
    compact(world.store, world.catalog.collections["f/values"], since=since, grace=0, fold_sizes=sizes)


def reduced(world: World, options: ReadOptions) -> list[tuple[bytes, bytes]]:
    spec = world.catalog.collections["f/values"]
    rows = read_rows(world.store, spec, options)
    return [(key, orjson.dumps(document)) for key, document in contents_in_memory(spec, rows)]


def left(world: World) -> list[tuple[int, Any]]:
    found = [(clock, orjson.loads(text)) for clock, _, _, text in world.rows("f/values")]
    return [(clock, {name: value for name, value in document.items() if name != "at"}) for clock, document in found]


@settings(max_examples=examples(48, 8))
@given(st.lists(DOCUMENTS, min_size=2, max_size=9), st.integers(0, 10), st.integers(3, 10), st.booleans())
def test_l3_reads_at_and_after_since_are_the_same_bytes(
    documents: list[Document], first: int, second: int, has_many_buckets: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        sizes = FoldSizes(bucket_documents=2, run_rows=2) if has_many_buckets else FOLD_SIZES
        plain, compacted = world_of(Path(name) / "plain", documents), world_of(Path(name) / "compacted", documents)
        forget(compacted, first, sizes)
        forget(compacted, second, sizes)
        since = min(max(first, second), len(documents) + 1)
        known = compacted.store.collection("f/values")
        assert known is not None
        assert known.since == since
        for selector in SELECTORS:
            for time in range(since, len(documents) + 1):
                options = ReadOptions(as_of=time, selector=selector)
                assert reduced(compacted, options) == reduced(plain, options)
            options = ReadOptions(since=since, selector=selector)
            assert reduced(compacted, options) == reduced(plain, options)
        for world in (plain, compacted):
            world.store.close()


def test_fold_keeps_one_document_per_key_at_its_last_position(tmp_path: Path) -> None:
    world = world_of(tmp_path, [{"k": 1, "sum": 0.1}, {"k": 2, "sum": 5}, {"k": 1, "sum": 0.2}, {"k": 1, "sum": 1}])

    forget(world, 4)

    assert left(world) == [(2, {"k": 2, "sum": 5}), (3, {"k": 1, "sum": 0.1 + 0.2}), (4, {"k": 1, "sum": 1})]


def test_fold_removes_deleted_keys(tmp_path: Path) -> None:
    world = world_of(tmp_path, [{"k": 1, "note": "x"}, {"k": 2, "note": "x"}, {"k": 1, "gone": True}, {"k": 3}])

    forget(world, 4)

    assert left(world) == [(2, {"k": 2}), (4, {"k": 3})]


def test_key_keeps_documents_after_its_first_change_of_partition(tmp_path: Path) -> None:
    documents = [{"k": 1, "p": "a", "sum": 1}, {"k": 1, "p": "a", "sum": 2}]
    world = world_of(tmp_path, [*documents, {"k": 1, "p": "b", "sum": 4}, {"k": 1, "p": "a", "sum": 8}])

    forget(world, 5)

    assert left(world) == [
        (2, {"k": 1, "p": "a", "sum": 3}),
        (3, {"k": 1, "p": "b", "sum": 4}),
        (4, {"k": 1, "p": "a", "sum": 8}),
    ]


def test_irreducible_key_keeps_its_documents(tmp_path: Path) -> None:
    changes = [{"k": 1, "top": 5}, {"k": 1, "odd": True}]  # alone, what they reduce to would lose its `top`
    invalid = [{"k": 2, "odd": True}, {"k": 2, "even": True}]
    world = world_of(tmp_path, [*changes, *invalid, {"k": 3, "sum": 1}, {"k": 3, "sum": 1}])

    forget(world, 7)

    assert left(world) == [*enumerate([*changes, *invalid], start=1), (6, {"k": 3, "sum": 2})]


def test_segments_on_both_sides_of_since_are_divided(tmp_path: Path) -> None:
    world = world_of(tmp_path, [{"k": 1, "p": p, "sum": 1} for p in "aaabbb"])

    forget(world, 2)
    spec = world.catalog.collections["f/values"]
    segments = world.store.segments(spec)

    assert [(each.partition, each.clock_min, each.clock_max) for each in segments] == [(("a",), 1, 3), (("b",), 4, 6)]
    assert sum(len(rows) for rows in read_rows(world.store, spec, ReadOptions(since=2))) == 5
