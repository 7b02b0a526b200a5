"""What updates of a key come to: one document where they are reduced, all that are there where they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.errors import StorageError
from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.storage.segments.contents_fold import contents_per_key
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
def test_documents_that_stay_as_they_are_are_not_parsed(
    schema: dict[str, object], expected: list[tuple[int, bytes, str]]
) -> None:
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
def test_documents_are_counted_wherever_rows_are_cut(changes: list[tuple[str, int, int]], cut: int) -> None:
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


def test_a_document_that_was_taken_out_too_often_is_told() -> None:
    with pytest.raises(
        StorageError, match=r"'s/sums' has 1 more retractions than insertions of a document: \{\"n\":7\}"
    ):
        contents(CONSOLIDATED, [*UPDATES, (9, 0, -2, b"b", '{"n":7}')], 5)
