"""Shuffles: rows on their way to the shard that owns their key, in packets.

Spark moves, sorts and spills rows. What it is given here are not documents but *packets*, each some thousand rows of
Arrow for one owner, so that its cost per document all but vanishes and a document is never turned into a row of the
Java virtual machine and back. A packet says at which place it comes. Rows inside a packet are in order, so putting
packets in order, and merging those that overlap, restores the order of the whole (law L4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.exact import dump_exact
from derive.document.key import compile_keys, key_errors, pack
from derive.errors import DocumentError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, TransformSpec
from derive.schema.validator import compile_validator
from derive.shard.plan import Plan
from derive.sql.shuffle import ComputedShuffle
from derive.storage.segments.texts import parse_texts
from derive.time.frontier import tick_begin
from derive.time.positions import offset_of

PACKETS = pa.schema(
    [
        pa.field("owner", pa.int32(), nullable=False),
        pa.field("place", pa.int64(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)
"""Packets as Spark moves them: who gets one, its place among those of its owner, and its rows or a message."""

MESSAGE = -(1 << 63)
"""The `place` of a packet that carries a message: before all rows."""

_PACKET_BYTES = 8 << 20
MERGE_ROWS = 50_000
"""How many rows are worth combining at once."""


def owners_of_keys(keys: Sequence[bytes], count: int) -> Any:
    """Which of `count` owners each packed key belongs to, as an int32 array: equal shares of a 32-bit hash."""
    hashes = np.fromiter(map(crc32, keys), np.uint64, len(keys))
    return ((hashes * np.uint64(count)) >> np.uint64(32)).astype(np.int32)


def compile_shuffle_key(spec: DerivationSpec, transform: TransformSpec) -> Callable[[pa.RecordBatch], Sequence[bytes]]:
    """A function from source rows (`SOURCE_ROWS`) of one transform to the packed keys they are shuffled by."""
    shuffle, source = transform.shuffle, spec.sources[transform.input.source]
    by_key = (shuffle.key, shuffle.key_defaults) == (source.key, source.key_defaults)
    if shuffle.kind == "any" or (shuffle.kind == "key" and by_key):
        return lambda rows: rows.column(3).to_pylist()
    if shuffle.kind == "key":
        return _compile_located(spec, transform)
    statement = ComputedShuffle(spec, transform)
    is_valid = compile_validator(source.read_schema, name=source.name).is_valid
    offset = offset_of(transform.input, spec.tick)

    def computed(rows: pa.RecordBatch) -> Sequence[bytes]:
        adjusted = rows.column(0).to_numpy()
        clocks, published = adjusted.tolist(), (adjusted - offset).tolist()
        documents = parse_texts(rows.column(4))
        if not all(map(is_valid, documents)):
            keys: list[bytes] = rows.column(3).to_pylist()  # wherever the invalid one arrives, it is reported
            return keys
        batch = ReadBatch([transform.index] * len(documents), clocks, published, documents)
        return list(map(pack, statement.keys(batch)))

    return computed


def _compile_located(spec: DerivationSpec, transform: TransformSpec) -> Callable[[pa.RecordBatch], Sequence[bytes]]:
    pack_all = compile_keys(transform.shuffle.key, transform.shuffle.key_defaults)

    def located(rows: pa.RecordBatch) -> Sequence[bytes]:
        documents = parse_texts(rows.column(4))
        try:
            return pack_all(documents)
        except DocumentError:
            place, exc = next(key_errors(pack_all, documents))
            raise DocumentError(
                f"transform '{transform.name}' of '{spec.name}' cannot shuffle a document: {exc.message};"
                f" it is {dump_exact(documents[place]).decode()[:500]}",
                position=transform.position,
            ) from exc

    return located


def source_owners(plan: Plan) -> Callable[[pa.RecordBatch], Any]:
    """A function from source rows (`SOURCE_ROWS`) to the numbers of the shards that own them."""
    keys = [compile_shuffle_key(plan.spec, each) for each in plan.spec.transforms]

    def owners_of(rows: pa.RecordBatch) -> Any:
        transforms = rows.column(1).to_numpy()
        present = np.unique(transforms)
        if len(present) == 1:
            return owners_of_keys(keys[present[0]](rows), plan.shards)
        found = np.empty(rows.num_rows, dtype=np.int32)
        for which in present:
            places = np.flatnonzero(transforms == which)
            found[places] = owners_of_keys(keys[which](rows.take(pa.array(places))), plan.shards)
        return found

    return owners_of


def pack_rows(rows: pa.RecordBatch, owners: Any, place: Callable[[pa.RecordBatch], int]) -> pa.RecordBatch:
    """Packets of rows.

    Args:
        rows: in order.
        owners: int32 array of the owner of each.
        place: of a packet, from its rows.
    """
    order = np.argsort(owners, kind="stable")
    sorted_rows = rows.take(pa.array(order))
    starts = [0, *(np.flatnonzero(np.diff(owners[order])) + 1).tolist(), rows.num_rows]
    packets = []
    for begin, end in itertools.pairwise(starts):
        owner = int(owners[order[begin]])
        parts = 1 + sorted_rows.slice(begin, end - begin).nbytes // _PACKET_BYTES
        step = -(-(end - begin) // parts)
        for first in range(begin, end, step):
            part = sorted_rows.slice(first, min(step, end - first))
            packets.append((owner, place(part), part.serialize().to_pybytes()))
    columns = zip(*packets, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, PACKETS, strict=True)], schema=PACKETS
    )


def pack_message(owner: int, text: str) -> pa.RecordBatch:
    """A packet with a message."""
    return pa.RecordBatch.from_pylist([{"owner": owner, "place": MESSAGE, "content": text.encode()}], schema=PACKETS)


def deliver(packets: list[pa.RecordBatch], owner: int) -> Iterator[pa.RecordBatch]:
    """What a shuffle does, in memory: one owner's packets in order of place, without the owner's number."""
    table = pa.Table.from_batches(packets, schema=PACKETS)
    owned = table.filter(pc.equal(table.column("owner"), owner)).sort_by("place")
    return iter(owned.select(["place", "content"]).to_batches())


def unpack_rows(
    packets: Iterator[pa.RecordBatch], schema: pa.Schema, receive: Callable[[str], None]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Place and rows of each packet.

    Args:
        packets: `place` and `content` of `PACKETS`, of one owner, in order of place.
        schema: of the rows.
        receive: takes the messages, which come first.
    """
    for batch in packets:
        for place, content in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            if place == MESSAGE:
                receive(content.as_py().decode())
            else:
                yield place, pa.ipc.read_record_batch(content.as_buffer(), schema)


def merge_ticks(
    packets: Iterator[tuple[int, pa.RecordBatch]], tick: int, most_bytes: int, rows: int = MERGE_ROWS
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Gather rows of several senders into batches of whole ticks, in no order inside a batch.

    Args:
        packets: first clock and rows of each packet, by first clock; rows are sorted by `clock`, their first column.
        tick: length of a tick, microseconds.
        most_bytes: how much to gather at most; a tick that has more comes in parts.
        rows: how many to gather, at least, where they are no more than that.

    Yields:
        Batches in order of ticks, and whether each holds whole ticks or a part of one. What is left of a tick that came
        in parts may be among the whole ones behind them.
    """
    held = _Held()
    for first, part in packets:
        if held.rows >= rows or held.bytes > most_bytes:
            border = tick_begin(first, tick)
            if ready := held.take_below(border):
                yield pa.concat_batches(ready), True
            if held.bytes > most_bytes and (parts := held.take_below(border + tick)):
                yield pa.concat_batches(parts), False
        held.add(part)
    if ready := held.take_below(None):
        yield pa.concat_batches(ready), True


class _Held:
    """Rows of several senders, each part sorted by `clock`, their first column."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self.rows = self.bytes = 0

    def add(self, part: pa.RecordBatch) -> None:
        self._parts.append(part)
        self.rows += part.num_rows
        self.bytes += part.nbytes

    def take_below(self, clock: int | None) -> list[pa.RecordBatch]:
        """Take rows whose clock is below this one, or all."""
        parts, self._parts, self.rows, self.bytes = self._parts, [], 0, 0
        taken = []
        for part in parts:
            cut = part.num_rows if clock is None else int(np.searchsorted(part.column(0).to_numpy(), clock))
            if cut:
                taken.append(part.slice(0, cut))
            if cut < part.num_rows:
                self.add(part.slice(cut))
        return taken
