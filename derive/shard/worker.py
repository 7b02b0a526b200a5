"""Functions that run on a worker: one slice, one whole shard, or a step of a transaction.

All kinds of transactions share the parsing of documents, the lambdas and the timestamps. The next step differs: a
second shuffle, or a combination per tick and key, with or without feedback.

Each function takes a `Plan` and reports its outcome as messages, which are plain data. An error is a message, too,
because a retry would fail the same way. Each function also takes the number of the attempt from the executor, so that
two attempts at one part share no files and no state.

`stages_of` returns a transaction as stages: parallel tasks, with packets of documents from one stage to the next. An
executor needs no other knowledge of a transaction.
"""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from derive.protocol.derive import DeriveSession, RunsAhead
from derive.shard.cycle import run_cycle
from derive.shard.fields import Reading, reading_of, source_batch
from derive.shard.invoke import MANY, Invoker, QuarantineWriter, Rejected, order_of, with_ends
from derive.shard.meter import Meter
from derive.shard.owners import by_owner, owners_of_keys, pack_message, pack_rows, source_owners, unpack_rows
from derive.shard.plan import Plan
from derive.shard.progress import Counter, Message
from derive.shard.published import Published, RowMaker, published_schema
from derive.shard.session import failed, open_session, open_spill
from derive.shard.state_store import StateStore, state_store
from derive.shard.tick_combiner import TickCombiner, are_shared, combine_ticks, gather_ticks, share_keys
from derive.storage.blobs import translated
from derive.storage.folder_id import redactor_of
from derive.storage.location import Location, blobs_of
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import KeyRows, PublishedRows, ReadRows, WrittenRows, concat
from derive.storage.segments.sorter import Spill
from derive.storage.segments.writer import SegmentWriter
from derive.time.positions import offset_of


def spare_documents() -> None:
    """Let the garbage collector run less often, because documents are large trees without cycles."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


class Pipeline:
    """The processing of source documents in one shard, or in one slice of time.

    Args:
        plan: the transaction.
        reading: columns that it reads.
        session: the derivation's session over the shard's state.
        processed: called with the number of processed documents.
        many: number of source documents from which columns are published, if the session can publish columns.
        reject: called with each source document that is put aside.

    Attributes:
        meter: the work of lambdas so far.
    """

    def __init__(
        self,
        plan: Plan,
        reading: Reading,
        session: DeriveSession,
        processed: Callable[[int], None],
        many: int = MANY,
        reject: Callable[[Rejected], None] = lambda _: None,
    ) -> None:
        offsets = [offset_of(spec, plan.spec.tick) for spec in plan.spec.inputs]
        self._plan = plan
        self._reading = reading
        self._invoker = Invoker(
            plan.spec,
            session,
            offsets,
            plan.clamp,
            many,
            redactor=redactor_of(plan.spec.collection, plan.root),
            reject=reject,
        )
        self.meter = Meter(len(plan.spec.transforms))
        self._processed = processed
        self._joined_rows = session.batch_documents if isinstance(session, RunsAhead) else 0

    def published(self, parts: Iterator[ReadRows]) -> Iterator[PublishedRows]:
        """Yield publications, which the caller combines.

        Args:
            parts: source rows in order, of whole ticks in total.
        """
        make = RowMaker(self._plan.spec.collection)
        number = 0
        for rows, published in self._invoke(parts):
            count, texts = len(published), make.texts(published.content)
            columns = PublishedRows.from_columns(
                published.clocks,
                published.key_array,
                texts,
                make.labels(published.content),
                *order_of(rows, published.causes, texts, self._plan.spec),
                np.arange(number, number + count, dtype=np.int64),
            )
            yield columns.with_fields(make.fields(published.content))
            number += count

    def combined(self, parts: Iterator[ReadRows], spill: Spill) -> Iterator[WrittenRows]:
        """Yield publications, combined per tick and key, in order.

        Args:
            parts: all source rows that combine with one another, in order.
            spill: files for rows that exceed the memory limit.
        """
        combiner = TickCombiner(self._plan.spec, spill)
        for _, published in self._invoke(parts):
            yield from combiner.add(published)
        yield from combiner.close()

    def _invoke(self, parts: Iterator[ReadRows]) -> Iterator[tuple[ReadRows, Published]]:
        if self._joined_rows:
            parts = joined(parts, self._joined_rows)
        for rows in with_ends(parts, self._plan.spec, self._invoker, self._processed):
            invoked = self._invoker.invoke(source_batch(self._plan, self._reading, rows))
            for published in self.meter.measured(rows.transforms, invoked):
                yield rows, published


_JOINED_BYTES = 16 << 20


def joined(parts: Iterator[ReadRows], most_rows: int) -> Iterator[ReadRows]:
    """Join parts into batches of up to `most_rows` rows and about 16 MiB; a larger part stays as it is."""
    held: list[ReadRows] = []
    count = size = 0
    for part in parts:
        count, size = count + len(part), size + part.nbytes
        if held and (count > most_rows or size > _JOINED_BYTES):
            yield concat(held)
            held, count, size = [], len(part), part.nbytes
        held.append(part)
    if held:
        yield concat(held)


def run_alone(plan: Plan, number: int, attempt: int) -> list[Message]:
    """Run a task that needs no other worker: a slice, or a whole transaction.

    Args:
        plan: the transaction.
        number: number of the task, below `plan.tasks`.
        attempt: number of this attempt.
    """
    if plan.shape == "cycle":
        return run_cycle(plan, attempt)
    if plan.shape == "slices":
        return [run_slice(plan, number, attempt)]
    return [run_single(plan, attempt)] if plan.shape == "single" else run_whole(plan, attempt)


def run_slice(plan: Plan, number: int, attempt: int) -> Message:
    """Run one slice of a stateless transaction, from its segments to new segments."""
    begin, end = plan.slices[number], plan.slices[number + 1]
    return _run_alone(plan, f"slice-{number}", (begin, end), None, attempt)


def run_single(plan: Plan, attempt: int) -> Message:
    """Run the whole transaction of a task with one shard, from its segments to new segments."""
    return _run_alone(plan, "single", (0, plan.end), 0, attempt)


def _run_alone(plan: Plan, name: str, span: tuple[int, int], shard: int | None, attempt: int) -> Message:
    """Read, invoke, combine and write at one place; all documents of a tick must be at this place."""
    messages: list[Message] = []
    try:
        reading = reading_of(plan.spec)
    except Exception as error:  # a retry would fail the same way
        return failed(plan, error)
    states = state_store(plan, attempt)
    rows = _written(plan, name, reading, _read(plan, reading, span), shard, states, attempt, messages.append)
    deque(rows, maxlen=0)
    (message,) = messages
    if shard is None or message.error:
        return message
    prepared = _prepared(plan, states, [shard], attempt)
    return prepared if prepared.error else replace(message, shards=prepared.shards, links=prepared.links)


def _written(
    plan: Plan,
    name: str,
    reading: Reading,
    parts: Iterator[ReadRows],
    shard: int | None,
    states: StateStore,
    attempt: int,
    notify: Callable[[Message], None],
) -> Iterator[WrittenRows]:
    """Invoke, combine and write at one place.

    Args:
        plan: the transaction.
        name: name of this part.
        reading: columns that it reads.
        parts: source rows in order.
        shard: number of the shard; None for a slice.
        states: states of shards, which the caller stores.
        attempt: number of this attempt.
        notify: called with the outcome at the end.

    Yields:
        Rows, as soon as they are written.
    """
    writer = SegmentWriter(plan.location, plan.spec.collection, f"{plan.attempt(attempt)}-{name}", is_valid=True)
    counter = Counter(plan, name)
    try:
        opened = _open_pipeline(plan, reading, shard, states, attempt, counter)
        with opened as (pipeline, aside), open_spill(plan) as spill:
            for rows in pipeline.combined(parts, spill):
                writer.write(rows)
                yield rows
            segments, rejected = writer.close(), aside.close()
    except Exception as error:  # a retry would fail the same way
        writer.abort()
        notify(failed(plan, error))
        return
    documents_out = sum(segment.documents for segment in segments)
    message = Message(tuple(segments), {}, counter.total, documents_out, rejected=rejected)
    notify(replace(message, work=pipeline.meter.work()))


def _read(plan: Plan, reading: Reading, span: tuple[int, int]) -> Iterator[ReadRows]:
    """Read the rows of a transaction between two adjusted timestamps."""
    return read_sorted(plan.location, [read.within(*span) for read in plan.reads], selection=reading.selection)


@contextmanager
def _open_pipeline(
    plan: Plan, reading: Reading, shard: int | None, states: StateStore, attempt: int, counter: Counter
) -> Iterator[tuple[Pipeline, QuarantineWriter]]:
    """Yield the pipeline of a shard, or of a slice without state, and the writer of documents that are put aside.

    Without an error in the block, the state is prepared.
    """
    with QuarantineWriter(plan, counter.name, attempt) as aside, open_session(plan, shard, states) as session:
        yield Pipeline(plan, reading, session, counter.add, reject=aside.put), aside


def run_whole(plan: Plan, attempt: int) -> list[Message]:
    """Run a whole transaction of a task with several shards in this process, one shard after the other.

    Rows stay in memory and are not packed. A few documents need one segment, and not one for each owner of keys.
    """
    reading = reading_of(plan.spec)
    messages: list[Message] = []
    published: list[list[PublishedRows]] = []
    try:
        owned = _by_owner(plan, reading)
    except Exception as error:  # a retry would fail the same way
        return [failed(plan, error)]
    states = state_store(plan, attempt)
    for number, parts in sorted(owned.items()):
        counter = Counter(plan, _shard(number))
        try:
            with _open_pipeline(plan, reading, number, states, attempt, counter) as (pipeline, aside):
                published.append(list(pipeline.published(iter(parts))))
                rejected = aside.close()
            work = pipeline.meter.work()
            messages.append(Message(documents_in=counter.total, rejected=rejected, work=work))
        except Exception as error:  # a retry would fail the same way
            messages.append(failed(plan, error))
    if not any(message.error for message in messages):
        messages.append(_prepared(plan, states, owned, attempt))
    if any(message.error for message in messages):
        return messages
    if plan.is_conflict_free and share_keys(published, plan.spec.tick):
        messages.append(Message(is_shared=True))
    ranked = sorted(((int(rows.clocks[0]), rows) for rows in chain(*published)), key=itemgetter(0))
    return [*messages, _combine(plan, "whole", iter(ranked), attempt)]


def _prepared(plan: Plan, states: StateStore, shards: Iterable[int], attempt: int) -> Message:
    """Store the prepared states of shards; return the message with their names."""
    try:
        states.close()
    except Exception as error:  # a retry would fail the same way
        return failed(plan, error)
    return Message(shards=dict.fromkeys(sorted(shards), str(plan.attempt(attempt))), links=states.links)


def _shard(number: int) -> str:
    return f"shard-{number}"


def _by_owner(plan: Plan, reading: Reading) -> dict[int, list[ReadRows]]:
    """Return all rows of a transaction, in order, by the number of their owning shard."""
    owned: dict[int, list[ReadRows]] = {}
    owners_of = source_owners(plan, reading)
    with translated(plan.root):
        for span in itertools.pairwise(plan.slices):
            for rows in _read(plan, reading, span):
                owners = owners_of(rows)
                for owner in np.unique(owners).tolist():
                    is_own = owners == owner
                    part = rows if is_own.all() else rows.take(np.flatnonzero(is_own))
                    owned.setdefault(owner, []).append(part)
    return owned


def run_shuffle(plan: Plan, number: int) -> Iterator[pa.RecordBatch]:
    """Read one slice of a transaction, and send each document to the shard that owns it.

    Yields:
        Packets of source rows, with ranks above the ranks of earlier slices.
    """
    ranks = itertools.count(number << 32)
    span = plan.slices[number], plan.slices[number + 1]
    try:
        reading = reading_of(plan.spec)
        owners_of = source_owners(plan, reading)
        with translated(plan.root):
            for rows in _read(plan, reading, span):
                yield pack_rows(rows, owners_of(rows), lambda _: next(ranks))
    except Exception as error:  # a retry would fail the same way
        for shard in range(plan.shards):
            yield pack_message(shard, failed(plan, error).to_json())


class _Shards:
    """The shards of one task, one after the other, with packets of source rows; their states are stored together.

    Args:
        plan: the transaction.
        attempt: number of this attempt.

    Attributes:
        reading: columns that are read.
        states: states of the shards.
    """

    def __init__(self, plan: Plan, attempt: int) -> None:
        self.reading = reading_of(plan.spec)
        self.states = state_store(plan, attempt)
        self._plan, self._attempt = plan, attempt
        self._texts: list[str] = []  # messages of slices
        self._has_failed = False  # whether a slice could not be read
        self._done: dict[int, Message] = {}

    def received(self, packets: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[ReadRows]]]:
        """Yield each shard with its source rows; shards without rows are left out, and all after a failed slice."""
        schema = self.reading.selection.schema
        for number, own in by_owner(packets):
            parts = (rows for _, rows in unpack_rows(own, ReadRows, self._receive, schema))
            first = next(parts, None)
            if first is not None and not self._has_failed:
                yield number, chain([first], parts)

    def _receive(self, text: str) -> None:
        self._texts.append(text)
        self._has_failed = self._has_failed or Message.from_json(text).error is not None

    def done(self, number: int, message: Message) -> None:
        """Take the outcome of a shard."""
        self._done[number] = message

    def messages(self) -> Iterator[pa.RecordBatch]:
        """Store the states, unless a shard has failed, and yield packets with all messages for owner 0."""
        outcomes = list(self._done.values())
        if self._done and not any(message.error for message in outcomes):
            outcomes.append(_prepared(self._plan, self.states, self._done, self._attempt))
        for text in (*self._texts, *(message.to_json() for message in outcomes)):
            yield pack_message(0, text)


def run_lambdas(plan: Plan, tasks: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    """Run the lambdas of one task's shards, and send each published document to the owner of its key.

    The states are prepared before the last batch, a message, is yielded. A shard without documents is not opened.

    Args:
        plan: the transaction.
        tasks: number of owners of published keys.
        packets: packets of source rows, by shard.
        attempt: number of this attempt.

    Yields:
        Packets of published rows, ranked by their first timestamp, and messages for owner 0.
    """
    shards = _Shards(plan, attempt)
    for number, parts in shards.received(packets):
        counter = Counter(plan, _shard(number))
        try:
            opened = _open_pipeline(plan, shards.reading, number, shards.states, attempt, counter)
            with opened as (pipeline, aside):
                for rows in pipeline.published(parts):
                    owners = owners_of_keys(rows.keys.to_pylist(), tasks)
                    yield pack_rows(rows, owners, lambda part: int(part.clocks[0]))
                rejected = aside.close()
            work = pipeline.meter.work()
            shards.done(number, Message(documents_in=counter.total, rejected=rejected, work=work))
        except Exception as error:  # a retry would fail the same way
            shards.done(number, failed(plan, error))
    yield from shards.messages()


def run_without_conflicts(
    plan: Plan, tasks: int, packets: Iterator[pa.RecordBatch], attempt: int
) -> Iterator[pa.RecordBatch]:
    """Run the lambdas of one task's shards, combine and write the publications, and send keys to their owners.

    Args:
        plan: the transaction.
        tasks: number of owners of published keys.
        packets: packets of source rows, by shard.
        attempt: number of this attempt.

    Yields:
        Packets of published keys, ranked by their first timestamp, and messages for owner 0.
    """
    shards = _Shards(plan, attempt)
    for number, parts in shards.received(packets):
        done = partial(shards.done, number)
        written = _written(plan, _shard(number), shards.reading, parts, number, shards.states, attempt, done)
        for rows in written:
            keys = rows.published_keys()
            if len(keys):
                owners = owners_of_keys(keys.keys.to_pylist(), tasks)
                yield pack_rows(keys, owners, lambda part: int(part.clocks[0]))
    yield from shards.messages()


def run_compare(plan: Plan, packets: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    """Compare a range of the keys that shards have published, and pass messages on."""
    messages: list[str] = []
    keys = unpack_rows(packets, KeyRows, messages.append)
    is_shared = are_shared(gather_ticks(keys, plan.spec.tick, plan.memory // 4), plan.spec.tick)
    yield from map(Message.from_json, messages)
    if is_shared:
        yield Message(is_shared=True)


def run_combine(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[Message]:
    """Combine and write a range of output keys (packets of published rows), and pass messages on."""
    messages: list[str] = []
    schema = published_schema(plan.spec.collection)
    written = _combine(plan, str(number), unpack_rows(packets, PublishedRows, messages.append, schema), attempt)
    yield from map(Message.from_json, messages)
    yield written


def _combine(plan: Plan, name: str, published: Iterator[tuple[int, PublishedRows]], attempt: int) -> Message:
    """Combine published rows, ordered by their packets' first timestamps, and write them."""
    writer = SegmentWriter(plan.location, plan.spec.collection, f"{plan.attempt(attempt)}-{name}", is_valid=True)
    try:
        with translated(plan.root), open_spill(plan) as spill:
            for rows in combine_ticks(plan.spec, gather_ticks(published, plan.spec.tick, plan.memory // 4), spill):
                writer.write(rows)
            segments = writer.close()
    except Exception as error:  # a retry would fail the same way
        writer.abort()
        return failed(plan, error)
    return Message(tuple(segments), documents_out=sum(segment.documents for segment in segments))


Stage: TypeAlias = Callable[[int, Iterator[pa.RecordBatch], int], Iterator[pa.RecordBatch]]
"""Function that runs one task of a stage.

The arguments are the number of the task, the packets for the task in order of owner and rank, and the number of the
attempt. The function yields packets (`PACKETS`) for the next stage; in the last stage, messages (`MESSAGES`).
"""

MESSAGE = "message"
MESSAGES = pa.schema([(MESSAGE, pa.string())])
"""Schema of the last stage's output: JSON of a `Message` per row."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a transaction, in sequence.

    Attributes:
        tasks: number of tasks in the first stage, which receives no packets.
        owners: number of tasks in every other stage; the number of a task is the remainder of its packets' owners.
        stages: the stages, at least one; they can be pickled.
        otherwise: stages that replace these if a message reports that several shards have published documents of one
            key in one tick; None for none.
    """

    tasks: int
    owners: int
    stages: tuple[Stage, ...]
    otherwise: Stages | None = None


def stages_of(plan: Plan, cores: int | None = None) -> Stages:
    """Return the stages of a derivation's transaction.

    Args:
        plan: the transaction.
        cores: number of tasks that can run at the same time. States that travel are stored as one object for each task,
            so there are no more tasks than cores, and a task may have several shards. None for a task for each shard.
    """
    if plan.shape != "sharded" or plan.is_small:
        return Stages(plan.tasks, 1, (partial(_alone, plan),))
    tasks = plan.shards if plan.cache is None or cores is None else max(1, min(plan.shards, cores))
    combined = (partial(_shuffle, plan), partial(_lambdas, plan, tasks), partial(_combined, plan))
    stages = Stages(len(plan.slices) - 1, tasks, combined)
    if not plan.is_conflict_free:
        return stages
    apart = (partial(_shuffle, plan), partial(_without_conflicts, plan, tasks), partial(_compare, plan))
    return replace(stages, stages=apart, otherwise=stages)


def carry_out(location: Location, work: Stages, run: Callable[[Stages], list[Message]]) -> list[Message]:
    """Run stages, and the alternative stages after a key conflict; return all valid messages.

    Args:
        location: location of the segments.
        work: the stages.
        run: runs stages, and returns the messages of the last stage.
    """
    messages = run(work)
    if work.otherwise is None or not any(message.is_shared for message in messages):
        return messages
    paths = [segment.path for message in messages for segment in message.segments]
    with translated(str(location)):
        blobs_of(location).delete(paths)
    return [*run(work.otherwise), Message(is_shared=True)]


def _alone(plan: Plan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    yield message_batch(run_alone(plan, number, attempt))


def _shuffle(plan: Plan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    return run_shuffle(plan, number)


def _lambdas(
    plan: Plan, tasks: int, number: int, packets: Iterator[pa.RecordBatch], attempt: int
) -> Iterator[pa.RecordBatch]:
    return run_lambdas(plan, tasks, packets, attempt)


def _without_conflicts(
    plan: Plan, tasks: int, number: int, packets: Iterator[pa.RecordBatch], attempt: int
) -> Iterator[pa.RecordBatch]:
    return run_without_conflicts(plan, tasks, packets, attempt)


def _combined(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for message in run_combine(plan, number, packets, attempt):
        yield message_batch([message])


def _compare(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for message in run_compare(plan, packets):
        yield message_batch([message])


def message_batch(messages: list[Message]) -> pa.RecordBatch:
    """Return messages as a batch of the last stage."""
    return pa.RecordBatch.from_pydict({MESSAGE: [message.to_json() for message in messages]}, schema=MESSAGES)
