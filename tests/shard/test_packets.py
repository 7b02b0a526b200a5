"""Packets: every row arrives at its owner, in order, whatever way it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from derive.shard.owners import DELIVERED, OWNER, PACKETS, RANK, owners_of_keys, pack_message, pack_rows, unpack_rows
from derive.shard.tick_combiner import gather_ticks
from derive.storage.segments.rows import PublishedRows


def rows_of(clocks: list[int]) -> PublishedRows:
    count = len(clocks)
    texts = [f'"text {clock}"' for clock in clocks]
    return PublishedRows.from_columns(
        clocks, [b""] * count, texts, ["[]"] * count, clocks, [0] * count, [0] * count, [b""] * count, clocks
    )


def delivered(packets: list[pa.RecordBatch], owner: int) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(packets, schema=PACKETS)
    rows = [row for row in table.to_pylist() if row[OWNER] == owner]
    rows.sort(key=lambda row: int(row[RANK]))
    for row in rows:
        yield pa.RecordBatch.from_pylist([row], schema=PACKETS).select(DELIVERED)


def refuse(text: str) -> None:
    raise AssertionError(text)


@given(st.lists(st.binary(max_size=8), max_size=50), st.integers(1, 9))
def test_owner_of_a_key_is_a_share_of_the_hash_range(keys: list[bytes], count: int) -> None:
    owners = owners_of_keys(keys, count).tolist()

    assert all(0 <= each < count for each in owners)
    # With twice the owners, each is one of the two halves of what it was.
    assert owners == [each // 2 for each in owners_of_keys(keys, 2 * count).tolist()]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.sampled_from([1, 200, 1 << 20]))
def test_rows_arrive_at_their_owners_in_order(owners: list[int], packet_bytes: int) -> None:
    rows = rows_of(list(range(len(owners))))
    packed = pack_rows(rows, np.array(owners, dtype=np.int32), lambda part: int(part.clocks[0]), packet_bytes)
    for owner in range(4):
        parts = [part for _, part in unpack_rows(delivered([packed], owner), PublishedRows, refuse)]
        found = [clock for part in parts for clock in part.clocks.tolist()]

        assert found == [clock for clock, each in enumerate(owners) if each == owner]
        assert all(len(part) == 1 for part in parts) or packet_bytes > 1


def test_messages_come_before_rows() -> None:
    packets = [pack_rows(rows_of([5]), np.zeros(1, dtype=np.int32), lambda _: -7), pack_message(0, "said")]
    said: list[str] = []
    found = [
        (place, part.clocks.tolist(), list(said))
        for place, part in unpack_rows(delivered(packets, 0), PublishedRows, said.append)
    ]

    assert found == [(-7, [5], ["said"])]


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=30), max_size=6),
    st.sampled_from([1, 10, 100]),
    st.integers(1, 20),
    st.integers(1, 40),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_gathered_batches_have_whole_ticks_or_parts_of_a_large_tick(
    senders: list[list[int]], tick: int, cut: int, merge_rows: int, most_bytes: int
) -> None:
    packets = []
    for clocks in map(sorted, senders):
        parts = [clocks[place : place + cut] for place in range(0, len(clocks), cut)]
        packets += [(part[0], rows_of(part)) for part in parts]
    packets.sort(key=lambda packet: packet[0])
    merged = gather_ticks(iter(packets), tick, most_bytes, merge_rows)
    batches = [({clock // tick for clock in rows.clocks.tolist()}, is_whole, rows) for rows, is_whole in merged]

    found = [clock for _, _, rows in batches for clock in rows.clocks.tolist()]
    assert sorted(found) == sorted(chain.from_iterable(senders))
    for (before, was_whole, _), (after, _, _) in pairwise(batches):
        assert max(before) < min(after) if was_whole else max(before) <= min(after)
        assert was_whole or len(before) == 1
    # What is gathered is no more than it may be, and a packet of each sender.
    for _, is_whole, rows in batches:
        assert is_whole or rows.nbytes <= most_bytes + (cut + 1) * len(senders) * 80
