"""Stores into rows, however their arena is laid out."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from connectors.kit import Binding, Field, SourceCollection
from connectors.kit.batch import keys_of, rows_of
from derive.document.key import pack
from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb

COLLECTION = SourceCollection("a/b", ("/k",), {})
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text("ab\0\xff", max_size=3))
LAYOUTS = ["rows", "lists", "shuffled", "inner"]


def binding_of(keys: int, values: int) -> Binding:
    fields = [Field(f"f{index}", f"/f{index}") for index in range(keys + values)]
    return Binding({}, ("t",), COLLECTION, tuple(fields[:keys]), tuple(fields[keys:]), "flow_document")


def cells_of(layout: str, lists: int, rows: int, chance: random.Random) -> list[tuple[int, int]]:
    """Where parts are in the arena: list and row, one behind the other."""
    cells = [(index, row) for row in range(rows) for index in range(lists)]
    if layout == "lists":
        cells.sort()
    elif layout == "shuffled":
        chance.shuffle(cells)
    elif layout == "inner":  # the first and the last are where they would be in order
        order = [0, *chance.sample(range(1, rows - 1), rows - 2), rows - 1] if rows > 2 else list(range(rows))
        cells = [(index, row) for index in range(lists) for row in order]
    return cells


@given(
    st.tuples(st.integers(1, 3), st.integers(0, 3)).flatmap(
        lambda widths: st.tuples(
            st.just(widths),
            st.lists(st.lists(SCALARS, min_size=sum(widths), max_size=sum(widths)), min_size=1, max_size=8),
        )
    ),
    st.sampled_from(LAYOUTS),
    st.integers(),
    st.binary(max_size=2),
)
def test_rows_are_equal_in_any_arena_layout(
    table: tuple[tuple[int, int], list[list[object]]], layout: str, seed: int, gap: bytes
) -> None:
    (keys, values), rows = table
    documents = [b'{"n":%d}' % number for number in range(len(rows))]
    parts = [[pack(row[:keys]) for row in rows], [pack(row[keys:]) for row in rows], documents]
    arena = bytearray(gap)
    slices = [[flow_pb2.Slice()] * len(rows) for _ in parts]
    for index, row in cells_of(layout, 3, len(rows), random.Random(seed)):
        begin = len(arena)
        arena += parts[index][row]
        slices[index][row] = flow_pb2.Slice(begin=begin, end=len(arena))
        arena += gap
    store = pb.TransactionRequest.Store(
        arena=bytes(arena),
        packed_keys=slices[0],
        packed_values=slices[1],
        docs_json=slices[2],
        exists=[False] * len(rows),
    )

    stored = rows_of(store, binding_of(keys, values))

    assert repr(stored.keys) == repr([tuple(row[:keys]) for row in rows])
    assert repr(stored.values) == repr([tuple(row[keys:]) for row in rows])
    assert stored.documents == documents
    load = pb.TransactionRequest.Load(arena=bytes(arena), packed_keys=slices[0])
    assert repr(keys_of(load, binding_of(keys, values))) == repr(stored.keys)
