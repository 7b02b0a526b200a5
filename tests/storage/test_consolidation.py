"""A consolidated collection is a multiset: what it holds at a time is the sum of diffs, whatever compaction did."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction_oracle import contents_in_memory

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.document.key import pack
from derive.errors import StorageError
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.compaction import compact
from derive.storage.metadata.descriptions import CollectionUpdate
from derive.storage.segments.fold import FoldSizes
from derive.storage.segments.rows import Consolidation, ReadRows, WrittenRows
from derive.storage.segments.writer import SegmentWriter
from derive.storage.store import Store

CATALOG = """
collections:
  m/rows:
    key: [/k]
    schema: {type: object, required: [k], properties: {k: {type: integer}, v: {type: integer}, p: {type: string}}}
    projections: {p: {location: /p, partition: true}}
"""
NAME = "m/rows"
LAST = 8

Change = tuple[int, int, int, int]
"""Clock, key, value and diff of a row."""

CHANGES = st.lists(
    st.tuples(
        st.integers(1, LAST), st.integers(0, 2), st.integers(0, 2), st.sampled_from([-1, -1, 1, 1, 1, 100, 127, -127])
    ),
    max_size=25,
)


def consolidated(folder: Path) -> tuple[Store, CollectionSpec]:
    spec = replace(load(write_catalog(folder, CATALOG)).collections[NAME], kind="consolidated")
    store = Store(folder / "data", durable=False)
    store.create(spec)
    return store, spec


def text_of(key: int, value: int) -> str:
    return f'{{"k":{key},"v":{value},"p":"{"ab"[value % 2]}"}}'


def publish(store: Store, spec: CollectionSpec, changes: Iterable[Change], clocks: range) -> None:
    """Publish what changes at these clocks, in one transaction."""
    capability, _ = store.acquire_task(NAME, 1, [NAME])
    writer = SegmentWriter(store.root, spec, f"from-{clocks.start}")
    present = sorted(change for change in changes if change[0] in clocks)
    if present:
        counts: Counter[tuple[int, int]] = Counter()
        columns = []
        for clock, key, value, diff in present:
            columns.append(
                (clock, counts[clock, key], diff, pack([key]), text_of(key, value), f'["{"ab"[value % 2]}"]')
            )
            counts[clock, key] += 1
        writer.write(WrittenRows.from_columns(*zip(*columns, strict=True)).sorted(WrittenRows.ORDER))
    store.commit_task(capability, None, [CollectionUpdate(NAME, writer.close(), clocks.stop)])


def counts_at(store: Store, spec: CollectionSpec, time: int, selector: SelectorSpec) -> dict[tuple[bytes, str], int]:
    parts = read_rows(store, spec, ReadOptions(as_of=time, selector=selector))
    return {(key, text): count for key, text, count in Consolidation(parts).counts()}


def expected_at(changes: Iterable[Change], time: int, values: Iterable[int]) -> dict[tuple[bytes, str], int]:
    counts: Counter[tuple[bytes, str]] = Counter()
    for clock, key, value, diff in changes:
        if clock <= time and value in values:
            counts[pack([key]), text_of(key, value)] += diff
    return {document: count for document, count in counts.items() if count}


@settings(max_examples=examples(48, 8))
@given(CHANGES, st.integers(2, LAST), st.integers(2, LAST + 1), st.integers(2, LAST + 1), st.sampled_from([1, 3, 100]))
def test_l3_contents_at_and_after_since_are_the_sum_of_diffs(
    changes: list[Change], border: int, first: int, second: int, bucket_documents: int
) -> None:
    sizes = FoldSizes(bucket_documents=bucket_documents, run_rows=2)
    with tempfile.TemporaryDirectory() as name:
        store, spec = consolidated(Path(name))
        publish(store, spec, changes, range(border))
        publish(store, spec, changes, range(border, LAST + 1))
        for since in (0, first, second):
            if since:
                compact(store, spec, since=since, grace=0, fold_sizes=sizes)
            else:
                compact(store, spec, grace=0)
            known = store.collection(NAME)
            assert known is not None
            for time in range(max(known.since, 1), LAST + 1):
                assert counts_at(store, spec, time, SelectorSpec()) == expected_at(changes, time, (0, 1, 2))
                in_a = SelectorSpec(include={"p": ("a",)})
                assert counts_at(store, spec, time, in_a) == expected_at(changes, time, (0, 2))
        store.close()


def test_rows_before_since_are_summed_per_document(tmp_path: Path) -> None:
    store, spec = consolidated(tmp_path)
    changes = [(1, 1, 0, 1), (2, 1, 0, 1), (2, 2, 0, 1), (3, 2, 0, -1), (3, 1, 2, -1), (6, 1, 0, -1)]
    publish(store, spec, changes, range(9))

    compact(store, spec, since=5, grace=0)

    left = [row for rows in read_rows(store, spec, ReadOptions()) for row in stored(rows)]
    assert left == [
        (4, 0, 2, pack([1]), '{"k":1,"v":0,"p":"a"}'),
        (4, 1, -1, pack([1]), '{"k":1,"v":2,"p":"a"}'),
        (6, 0, -1, pack([1]), '{"k":1,"v":0,"p":"a"}'),
    ]
    store.close()


def stored(rows: ReadRows) -> list[tuple[int, int, int, bytes, str]]:
    return [
        (clock, seq, diff, key, text)
        for (clock, seq, key, text), diff in zip(rows.tuples(), rows.diffs.tolist(), strict=True)
    ]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-127, 127)), max_size=40), st.integers(1, 9)
)
def test_large_diff_becomes_several_rows(changes: list[tuple[int, int, int]], gathered_rows: int) -> None:
    count = len(changes)
    keys = [bytes([key]) for key, _, _ in changes]
    texts = [str(value) for _, value, _ in changes]
    diffs = [diff for _, _, diff in changes]
    rows = ReadRows.from_columns(range(count), [0] * count, [0] * count, keys, diffs, texts)
    parts = [rows.slice(begin, 5) for begin in range(0, count, 5)]

    left = Consolidation(parts, gathered_rows).rows_at(7)

    sums: Counter[tuple[bytes, str]] = Counter()
    for key, text, diff in zip(keys, texts, diffs, strict=True):
        sums[key, text] += diff
    pieces: dict[tuple[bytes, str], list[int]] = {}
    places = []
    for clock, seq, diff, key, text in stored(left):
        pieces.setdefault((key, text), []).append(diff)
        places.append((clock, seq, key))
    assert {document: sum(each) for document, each in pieces.items()} == {key: n for key, n in sums.items() if n}
    assert all(abs(diff) == 127 for each in pieces.values() for diff in sorted(each, key=abs)[1:])
    assert places == sorted(set(places))


def test_contents_of_a_multiset_repeat_documents_by_count(tmp_path: Path) -> None:
    store, spec = consolidated(tmp_path)
    publish(store, spec, [(1, 2, 0, 1), (1, 1, 0, 2), (2, 1, 2, 1), (3, 1, 0, -1), (4, 2, 0, -2)], range(9))

    def contents(time: int) -> list[int]:
        found = contents_in_memory(spec, read_rows(store, spec, ReadOptions(as_of=time)))
        return [document["k"] * 10 + document["v"] for _, document in found]

    assert contents(1) == [10, 10, 20]
    assert contents(3) == [10, 12, 20]
    with pytest.raises(StorageError, match="has 1 retraction of a document without an insertion:"):
        contents(4)
    store.close()
