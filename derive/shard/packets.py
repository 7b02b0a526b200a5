"""Packets: rows on their way to the shard that owns their key.

Spark moves, sorts and spills rows. Its rows here are *packets*, each with some thousand rows in Arrow's format for one
owner, so that Spark's cost per document is negligible and documents are not converted to Java rows. A packet has a rank
among those of its owner. Rows within a packet are sorted, so sorting packets, and merging overlapping ones, restores
the order of all rows (law L4).
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
"""Schema of packets: the owner, the rank among the owner's packets, and the rows or a message."""

DELIVERED = [RANK, CONTENT]
"""Columns of the packets that an owner receives."""

MESSAGE = -(1 << 63)
"""The rank of a packet with a message: before all rows."""

PACKET_BYTES = 8 << 20
"""Approximate limit for the rows of a packet, bytes."""


def pack_rows(
    rows: R, owners: np.ndarray, rank: Callable[[R], int], packet_bytes: int = PACKET_BYTES
) -> pa.RecordBatch:
    """Pack rows into packets.

    Args:
        rows: rows, in order.
        owners: owner of each row, an int32 array.
        rank: function from a packet's rows to its rank.
        packet_bytes: approximate limit for the rows of a packet, bytes.
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
    """Return a packet with a message."""
    return pa.RecordBatch.from_pylist([{OWNER: owner, RANK: MESSAGE, CONTENT: text.encode()}], schema=PACKETS)


def unpack_rows(
    packets: Iterator[pa.RecordBatch],
    layout: type[R],
    receive: Callable[[str], None],
    schema: pa.Schema | None = None,
) -> Iterator[tuple[int, R]]:
    """Yield the rank and rows of each packet.

    Args:
        packets: columns `DELIVERED`, of one owner, in order of rank.
        layout: layout of the rows.
        receive: called with each message; messages come first.
        schema: schema of the rows, if they have more columns than their layout; None otherwise.
    """
    schema = layout.SCHEMA if schema is None else schema
    for batch in packets:
        for rank, content in zip(batch.column(RANK).to_pylist(), batch.column(CONTENT), strict=True):
            if rank == MESSAGE:
                receive(content.as_py().decode())
            else:
                yield rank, layout(pa.ipc.read_record_batch(content.as_buffer(), schema))
