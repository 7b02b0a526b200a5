"""What updates of a key come to: one document where they are reduced, all that are there where they are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from derive.errors import StorageError
from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.spark.reduced_read import contents_per_key
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
    batches = [rows.slice(begin, cut).batch for begin in range(0, len(rows), cut)]
    return [
        (row["clock"], row["seq"], row["key"], row["doc"])
        for batch in contents_per_key(spec, iter(batches))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_documents_of_a_key_are_reduced_or_counted(cut: int) -> None:
    assert contents(REDUCED, UPDATES, cut) == [(5, 0, b"a", '{"n":6}'), (3, 0, b"b", '{"n":7}')]
    assert contents(CONSOLIDATED, UPDATES, cut) == [
        (5, 0, b"a", '{"n":1}'),
        (5, 0, b"a", '{"n":1}'),
        (3, 0, b"b", '{"n":7}'),
    ]


def test_a_document_that_was_taken_out_too_often_is_told() -> None:
    with pytest.raises(StorageError, match=r"a document of 's/sums' was taken out too often, by 1: \{\"n\":7\}"):
        contents(CONSOLIDATED, [*UPDATES, (9, 0, -2, b"b", '{"n":7}')], 5)
