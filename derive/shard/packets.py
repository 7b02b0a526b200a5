"""Packets: rows on their way to the shard that owns their key.

Spark moves, sorts and spills rows. What it is given here are not documents but *packets*, each some thousand rows of
Arrow for one owner, so that its cost per document all but vanishes and a document is never turned into a row of the
Java virtual machine and back. A packet has a rank among those of its owner. Rows inside a packet are in order, so
putting packets in order, and merging those that overlap, restores the order of all rows (law L4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from derive.storage.segments.rows import R

OWNER, RANK, CONTENT = "owner", "rank", "content"

PACKETS = pa.schema(
    [
        pa.field(OWNER, pa.int32(), nullable=False),
        pa.field(RANK, pa.int64(), nullable=False),
        pa.field(CONTENT, pa.binary(), nullable=False),
    ]
)
"""Packets as Spark moves them: who gets one, its rank among those of its owner, and its rows or a message."""

DELIVERED = [RANK, CONTENT]
"""What an owner is given of its packets."""

MESSAGE = -(1 << 63)
"""The `rank` of a packet that carries a message: before all rows."""

PACKET_BYTES = 8 << 20
"""About how many bytes of rows a packet holds at most."""


def pack_rows(
    rows: R, owners: np.ndarray, rank: Callable[[R], int], packet_bytes: int = PACKET_BYTES
) -> pa.RecordBatch:
    """Packets of rows.

    Args:
        rows: in order.
        owners: int32 array of the owner of each.
        rank: of a packet, from its rows.
        packet_bytes: about how many bytes of rows a packet holds at most.
    """
    order = np.argsort(owners, kind="stable")
    sorted_rows = rows.take(order)
    starts = [0, *(np.flatnonzero(np.diff(owners[order])) + 1).tolist(), len(rows)]
    packets = []
    for begin, end in itertools.pairwise(starts):
        owner = int(owners[order[begin]])
        parts = 1 + sorted_rows.slice(begin, end - begin).nbytes // packet_bytes
        step = -(-(end - begin) // parts)
        for first in range(begin, end, step):
            part = sorted_rows.slice(first, min(step, end - first))
            packets.append((owner, rank(part), part.batch.serialize().to_pybytes()))
    columns = zip(*packets, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, PACKETS, strict=True)], schema=PACKETS
    )


def pack_message(owner: int, text: str) -> pa.RecordBatch:
    """A packet with a message."""
    return pa.RecordBatch.from_pylist([{OWNER: owner, RANK: MESSAGE, CONTENT: text.encode()}], schema=PACKETS)


def unpack_rows(
    packets: Iterator[pa.RecordBatch],
    layout: type[R],
    receive: Callable[[str], None],
    schema: pa.Schema | None = None,
) -> Iterator[tuple[int, R]]:
    """Rank and rows of each packet.

    Args:
        packets: columns `DELIVERED`, of one owner, in order of rank.
        layout: of the rows.
        receive: takes the messages, which come first.
        schema: of the rows, if they have more than their layout.
    """
    schema = layout.SCHEMA if schema is None else schema
    for batch in packets:
        for rank, content in zip(batch.column(RANK).to_pylist(), batch.column(CONTENT), strict=True):
            if rank == MESSAGE:
                receive(content.as_py().decode())
            else:
                yield rank, layout(pa.ipc.read_record_batch(content.as_buffer(), schema))
