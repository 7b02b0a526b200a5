"""Requests that are written from columns are what protobuf reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typed_rows import differences

from derive.materialize import stream
from derive.materialize.stream import write_loads, write_stores
from derive.protocol.specs import CatalogSpec
from derive.protocol.stubs import flow_pb2 as flow
from derive.protocol.stubs import materialize_pb2 as pb

ROWS = st.lists(
    st.tuples(st.binary(max_size=4), st.binary(max_size=3), st.text(max_size=5), st.booleans(), st.booleans()),
    min_size=1,
    max_size=8,
)


def _parts(message_arena: bytes, slices: list[flow.Slice]) -> list[bytes]:
    return [message_arena[part.begin : part.end] for part in slices]


@given(ROWS, st.integers(0, 300), st.integers(0, 2))
def test_stores_survive_encoding(rows: list[tuple[bytes, bytes, str, bool, bool]], binding: int, skipped: int) -> None:
    keys, values, texts, exists, deleted = (
        list(column) for column in zip(*[(b"", b"", "", False, False)] * skipped, *rows, strict=True)
    )
    read: list[tuple[bytes, bytes, str, bool, bool]] = []
    for request in write_stores(
        binding,
        pa.array(keys, pa.binary()).slice(skipped),
        pa.array(values, pa.binary()).slice(skipped),
        pa.array(texts, pa.string()).slice(skipped),
        np.array(exists[skipped:]),
        np.array(deleted[skipped:]),
    ):
        store = pb.TransactionRequest.FromString(request).store
        assert store.binding == binding
        lists = [_parts(store.arena, list(part)) for part in (store.packed_keys, store.packed_values, store.docs_json)]
        flags = list(store.delete) or [False] * len(store.exists)
        for key, value, text, is_there, is_gone in zip(*lists, store.exists, flags, strict=True):
            read.append((key, value, text.decode(), is_there, is_gone))
    assert read == rows


def test_messages_are_limited_in_bytes_and_documents() -> None:
    count = stream.MOST_ROWS + 5
    keys = pa.array([b"k" * (stream.ARENA_BYTES + 1 if number == 2 else 1) for number in range(count)], pa.binary())
    loads = [pb.TransactionRequest.FromString(request).load for request in write_loads(1, keys)]
    assert [len(load.packed_keys) for load in loads] == [2, 1, stream.MOST_ROWS, 2]
    assert b"".join(load.arena for load in loads) == b"".join(keys.to_pylist())
    assert not list(write_loads(1, keys.slice(0, 0)))


# The torture run compares columns with their document, and reports those that differ.


CATALOG = """
collections:
  a/rows:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties:
        id: { type: integer }
        at: { type: string, format: date-time }
        n: { type: number }
        is: { type: boolean }
        some: { type: array }
        text: { type: string }
"""
TEXT = '{"id":1,"at":"2024-01-01T01:00:00+01:00","n":0.1,"is":true,"some":[1]}'
ROW = {"id": 1, "at": datetime(2024, 1, 1, tzinfo=UTC), "n": Decimal("0.1"), "is": 1, "some": "[1]", "text": None}


@pytest.mark.parametrize(
    ("column", "value", "is_told"),
    [
        ("id", 1, False),
        ("id", 2, True),
        ("at", datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), False),
        ("at", datetime(2024, 1, 1, 1, tzinfo=UTC), True),
        ("n", 0.1, False),
        ("n", Decimal("0.10000000000000001"), True),
        ("n", None, True),
        ("is", False, True),
        ("some", [1], False),
        ("some", "[2]", True),
        ("text", "", True),
    ],
)
def test_column_has_the_values_of_its_documents(
    catalog_of: Callable[..., CatalogSpec], column: str, value: Any, is_told: bool
) -> None:
    spec = catalog_of(CATALOG).collections["a/rows"]

    assert differences(spec, [(TEXT, ROW)]) == []
    assert bool(differences(spec, [(TEXT, ROW | {column: value})])) is is_told
