"""The work of a materialization on a worker: read a slice for all shards, or store the documents of one shard.

Each function takes a `StorePlan` and returns its outcome as messages. An error is a message, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from derive.errors import OutdatedError
from derive.materialize.binding import reading_of
from derive.materialize.cutting import store_rows
from derive.materialize.plan import StorePlan
from derive.materialize.stream import ShardStream
from derive.materialize.streams import shard_stream
from derive.shard.owners import owners_of_keys, pack_message, pack_rows, unpack_rows
from derive.shard.progress import Counter, Message
from derive.shard.session import failed
from derive.storage.disk_errors import translated
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows


def store_alone(plan: StorePlan, attempts: Iterator[int]) -> Iterator[Message]:
    """Execute a whole transaction in this process, one shard after the other.

    Args:
        plan: the transaction.
        attempts: numbers for the attempts at shards.
    """
    if plan.shards == 1:
        yield _store(plan, 0, _read(plan, (0, plan.end)), next(attempts))
        return
    owned: dict[int, list[ReadRows]] = {}
    try:
        with translated(plan.root):
            for rows in _read(plan, (0, plan.end)):
                owners = owners_of_keys(rows.keys.to_pylist(), plan.shards)
                for owner in np.unique(owners).tolist():
                    owned.setdefault(owner, []).append(rows.filter(owners == owner))
    except Exception as error:  # any error, because it would occur again
        yield failed(plan, error)
        return
    for number in sorted(owned) or range(plan.shards):  # without documents, ask the endpoint for its position
        yield _store(plan, number, iter(owned.get(number, ())), next(attempts))


def run_read(plan: StorePlan, number: int) -> Iterator[pa.RecordBatch]:
    """Read one slice of a transaction, and send each document to the shard that owns its key.

    Yields:
        Packets of rows, whose ranks follow those of earlier slices.
    """
    ranks = itertools.count(number << 32)
    try:
        with translated(plan.root):
            for rows in _read(plan, (plan.slices[number], plan.slices[number + 1])):
                owners = owners_of_keys(rows.keys.to_pylist(), plan.shards)
                yield pack_rows(rows, owners, lambda _: next(ranks))
    except Exception as error:  # any error, because it would occur again
        for shard in range(plan.shards):
            yield pack_message(shard, failed(plan, error).to_json())


def run_store(plan: StorePlan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[Message]:
    """Store the documents of one shard; a shard without documents is not opened."""
    messages: list[str] = []
    schema = reading_of(plan.bindings).selection.schema
    parts = (rows for _, rows in unpack_rows(packets, ReadRows, messages.append, schema))
    first = next(parts, None)
    if messages:
        yield from map(Message.from_json, messages)
    elif first is not None:
        yield _store(plan, number, chain([first], parts), attempt)


def _read(plan: StorePlan, span: tuple[int, int]) -> Iterator[ReadRows]:
    """Return the rows of a transaction between two adjusted timestamps."""
    reads = [read.within(*span) for read in plan.reads]
    return read_sorted(plan.root, reads, selection=reading_of(plan.bindings).selection)


def _store(plan: StorePlan, number: int, rows: Iterator[ReadRows], attempt: int) -> Message:
    counter = Counter(plan, f"shard-{number}")
    try:
        with translated(plan.root), shard_stream(plan, number, attempt) as stream:
            behind = _behind(plan, stream)
            if behind:
                # The token says that the shard has received everything since, also if it then has
                # nothing to store. If the shard starts over, the token must be a new one.
                if stream.is_new:
                    stream.transact({}, {}, str(plan.attempt(attempt)))
                    stream.finish()
                return Message(behind=behind, shards={number: stream.token})
            token = str(plan.attempt(attempt))
            read, stored = store_rows(stream, plan.bindings, rows, plan.extent, token, counter.add)
            tokens = {number: stream.token} if stream.token else {}
            cleared = tuple(sorted(stream.cleared))
            stream.cleared.clear()
            return Message(shards=tokens, documents_in=read, documents_out=stored, cleared=cleared)
    except OutdatedError:
        raise
    except Exception as error:  # any error becomes a message
        return failed(plan, error)


def _behind(plan: StorePlan, stream: ShardStream) -> dict[str, int]:
    """Return the positions of bindings (by state key) that are behind the data folder at the endpoint."""
    return {key: at for key, at in stream.positions.items() if at < plan.positions[key]}
