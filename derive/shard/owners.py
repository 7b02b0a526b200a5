"""Owners: the shard that owns each document, by its shuffle key; and packets, which carry rows to that shard.

Spark moves, sorts and spills *packets*: each row of Spark is one packet of some thousand rows in Arrow's format, for
one owner. So Spark's cost per document is negligible, and documents are not converted to Java rows. Each packet of an
owner has a rank, and the rows within a packet are sorted. The order of all rows is restored by sorting packets and
merging overlapping packets (law L4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias, cast
from zlib import crc32

import numpy as np
import pyarrow as pa

from derive.document.exact import dump_exact
from derive.document.key import compile_keys, key_errors, pack
from derive.document.key_columns import pack_components
from derive.errors import DocumentError, Fact
from derive.lambda_sql.shuffle import ComputedShuffle
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, Document, TransformSpec
from derive.schema.validator import compile_validator
from derive.shard.fields import FieldValues, Reading, StoredDocuments
from derive.shard.plan import Plan
from derive.storage.segments.rows import R, ReadRows
from derive.time.positions import offset_of

OWNER, RANK, CONTENT = "owner", "rank", "content"

PACKETS = pa.schema(
    [
        pa.field(OWNER, pa.int32(), nullable=False),
        pa.field(RANK, pa.int64(), nullable=False),
        pa.field(CONTENT, pa.binary(), nullable=False),
    ]
)
"""Schema of packets: the owner, the rank among the owner's packets, and the rows or a message."""

DELIVERED = [OWNER, RANK, CONTENT]
"""Columns of the packets that a task receives."""

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
        rank: function that returns the rank of a packet's rows.
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


def by_owner(packets: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each owner with its packets; the packets of the owners before it are skipped.

    Args:
        packets: columns `DELIVERED`, in order of owner and rank.
    """
    for owner, parts in itertools.groupby(_parts(packets), key=itemgetter(0)):
        yield owner, (part for _, part in parts)


def _parts(packets: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of batches with one owner each."""
    for batch in packets:
        owners = batch.column(OWNER).to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        for begin, end in itertools.pairwise(borders):
            if begin < end:
                yield int(owners[begin]), batch.slice(begin, end - begin)


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


ShuffleKeys: TypeAlias = Callable[[ReadRows], Sequence[bytes]]
"""Function from source rows of one transform to their packed shuffle keys."""

OwnersOf: TypeAlias = Callable[[ReadRows], np.ndarray]
"""Function from source rows to the numbers of their owning shards."""


def owners_of_keys(keys: Sequence[bytes], count: int) -> np.ndarray:
    """Return the owner of each packed key as an int32 array: equal shares of a 32-bit hash."""
    hashes = np.fromiter(map(crc32, keys), np.uint64, len(keys))
    owners: np.ndarray = ((hashes * np.uint64(count)) >> np.uint64(32)).astype(np.int32)
    return owners


def compile_shuffle_key(plan: Plan, reading: Reading, transform: TransformSpec) -> ShuffleKeys:
    """Return a function from rows of a transform to their packed shuffle keys."""
    spec = plan.spec
    if reading.transforms is not None:
        places = reading.transforms[transform.index].shuffle
        return _source_keys if places is None else _compile_columns(plan, reading, transform, places)
    shuffle, source = transform.shuffle, spec.sources[transform.input.source]
    by_key = (shuffle.key, shuffle.key_defaults) == (source.key, source.key_defaults)
    if shuffle.kind == "any" or (shuffle.kind == "key" and by_key):
        return _source_keys
    if shuffle.kind == "key":
        return _compile_located(spec, transform)
    statement = ComputedShuffle(spec, transform)
    is_valid = compile_validator(source.read_schema, name=source.name).is_valid
    offset = offset_of(transform.input, spec.tick)

    def computed(rows: ReadRows) -> Sequence[bytes]:
        valid = np.fromiter(map(is_valid, rows.documents()), dtype=bool, count=len(rows))
        if not valid.all():
            keys = list(_source_keys(rows))  # the owner of an invalid document reports it, or puts it aside
            indices = np.flatnonzero(valid)
            for index, key in zip(indices.tolist(), computed(rows.take(indices)) if indices.size else (), strict=True):
                keys[index] = key
            return keys
        documents = rows.documents()
        clocks, published = rows.adjusted.tolist(), (rows.adjusted - offset).tolist()
        batch = ReadBatch([transform.index] * len(documents), clocks, published, documents)
        return list(map(pack, statement.keys(batch)))

    return computed


def _compile_located(spec: DerivationSpec, transform: TransformSpec) -> ShuffleKeys:
    pack_all = compile_keys(transform.shuffle.key, transform.shuffle.key_defaults)

    def located(rows: ReadRows) -> Sequence[bytes]:
        documents = rows.documents()
        try:
            return pack_all(documents)
        except DocumentError:
            raise _unkeyed(spec, transform, documents) from None

    return located


def _compile_columns(plan: Plan, reading: Reading, transform: TransformSpec, places: Sequence[int]) -> ShuffleKeys:
    """Return a function from rows to keys by location, which reads typed columns."""
    defaults = transform.shuffle.key_defaults

    def located(rows: ReadRows) -> Sequence[bytes]:
        values = FieldValues(reading, rows)
        components = zip(places, defaults, strict=True)
        columns = [values.packable(transform.index, place, default) for place, default in components]
        try:
            return cast("list[bytes]", pack_components(columns, len(rows)).to_pylist())
        except DocumentError:
            raise _unkeyed(plan.spec, transform, StoredDocuments(plan, rows)) from None

    return located


def _unkeyed(spec: DerivationSpec, transform: TransformSpec, documents: Sequence[Document]) -> DocumentError:
    """Return the error for the first document without a packable shuffle key."""
    pack_all = compile_keys(transform.shuffle.key, transform.shuffle.key_defaults)
    index, exc = next(key_errors(pack_all, documents))
    return DocumentError(
        f"transform '{transform.name}' of '{spec.name}' cannot shuffle a document: {exc.message}",
        position=transform.position,
        facts=[Fact("document", "; it is ", dump_exact(documents[index]).decode()[:500])],
    )


def _source_keys(rows: ReadRows) -> Sequence[bytes]:
    keys: list[bytes] = rows.keys.to_pylist()
    return keys


def source_owners(plan: Plan, reading: Reading) -> OwnersOf:
    """Return a function from source rows to the numbers of their owning shards."""
    keys = [compile_shuffle_key(plan, reading, transform) for transform in plan.spec.transforms]

    def owners_of(rows: ReadRows) -> np.ndarray:
        present = np.unique(rows.transforms)
        if len(present) == 1:
            return owners_of_keys(keys[present[0]](rows), plan.shards)
        owners = np.empty(len(rows), dtype=np.int32)
        for transform in present:
            indices = np.flatnonzero(rows.transforms == transform)
            owners[indices] = owners_of_keys(keys[transform](rows.take(indices)), plan.shards)
        return owners

    return owners_of
