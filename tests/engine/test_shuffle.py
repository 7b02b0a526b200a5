"""Packets: every row arrives at its owner, in order, whatever way it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.shard import shuffle
from derive.shard.shuffle import PACKETS, merge_ticks, owners_of_keys, pack_message, pack_rows, unpack_rows

ROWS = pa.schema([pa.field("clock", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)])


def rows_of(clocks: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(clocks), pa.array([f"text {each}" for each in clocks])], schema=ROWS)


def delivered(packets: list[pa.RecordBatch], owner: int) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(packets, schema=PACKETS)
    rows = [row for row in table.to_pylist() if row["owner"] == owner]
    rows.sort(key=lambda row: row["place"])
    for row in rows:
        yield pa.RecordBatch.from_pylist([row], schema=PACKETS).select(["place", "content"])


def refuse(text: str) -> None:
    raise AssertionError(text)


@given(st.lists(st.binary(max_size=8), max_size=50), st.integers(1, 9))
def test_an_owner_is_a_share_of_the_hash_range(keys: list[bytes], count: int) -> None:
    owners = owners_of_keys(keys, count).tolist()

    assert all(0 <= each < count for each in owners)
    # With twice the owners, each is one of the two halves of what it was.
    assert owners == [each // 2 for each in owners_of_keys(keys, 2 * count).tolist()]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.sampled_from([1, 200, 1 << 20]))
def test_rows_arrive_at_their_owners_in_order(owners: list[int], packet_bytes: int) -> None:
    rows = rows_of(list(range(len(owners))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "_PACKET_BYTES", packet_bytes)
        packed = pack_rows(rows, np.array(owners, dtype=np.int32), lambda part: int(part.column(0)[0].as_py()))
    for owner in range(4):
        parts = [part for _, part in unpack_rows(delivered([packed], owner), ROWS, refuse)]
        found = [clock for part in parts for clock in part.column(0).to_pylist()]

        assert found == [clock for clock, each in enumerate(owners) if each == owner]
        assert all(part.num_rows == 1 for part in parts) or packet_bytes > 1


def test_messages_come_before_rows() -> None:
    packets = [pack_rows(rows_of([5]), np.zeros(1, dtype=np.int32), lambda _: -7), pack_message(0, "said")]
    said: list[str] = []
    found = [
        (place, part.column(0).to_pylist(), list(said))
        for place, part in unpack_rows(delivered(packets, 0), ROWS, said.append)
    ]

    assert found == [(-7, [5], ["said"])]


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=30), max_size=6),
    st.sampled_from([1, 10, 100]),
    st.integers(1, 20),
    st.integers(1, 40),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_merged_batches_hold_whole_ticks_in_order_or_parts_of_a_large_one(
    senders: list[list[int]], tick: int, cut: int, merge_rows: int, most_bytes: int
) -> None:
    packets = []
    for clocks in map(sorted, senders):
        parts = [clocks[place : place + cut] for place in range(0, len(clocks), cut)]
        packets += [(part[0], rows_of(part)) for part in parts]
    packets.sort(key=lambda packet: packet[0])
    merged = merge_ticks(iter(packets), tick, most_bytes, merge_rows)
    batches = [({clock // tick for clock in rows.column(0).to_pylist()}, is_whole, rows) for rows, is_whole in merged]

    found = [clock for _, _, rows in batches for clock in rows.column(0).to_pylist()]
    assert sorted(found) == sorted(chain.from_iterable(senders))
    for (before, was_whole, _), (after, _, _) in pairwise(batches):
        assert max(before) < min(after) if was_whole else max(before) <= min(after)
        assert was_whole or len(before) == 1
    # What is gathered is no more than it may be, and a packet of each sender.
    for _, is_whole, rows in batches:
        assert is_whole or rows.nbytes <= most_bytes + (cut + 1) * len(senders) * 30
