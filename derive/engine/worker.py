"""What runs on a worker: one slice, one whole shard, a shard's lambdas, or the combining of a range of output keys.

Each function takes a `Plan` and says what came of it as messages, which are plain data. An error a person can mend is
a message too: it is no reason for Spark to run the task again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import orjson
import pyarrow as pa

from derive.engine.combine import LAMBDA_ROWS, MESSAGE, TickCombiner, combine_sorted
from derive.engine.feedback import run_ticks
from derive.engine.invoke import Invoker, parse_documents
from derive.engine.plan import Plan, offset_of
from derive.engine.state import open_scratch, open_state, shard_folder
from derive.errors import FlowError
from derive.protocol.derive import DeriveSession, find_connector
from derive.storage.label import compile_label
from derive.storage.metadata import translated
from derive.storage.reader import read_sorted
from derive.storage.segment import Segment, SegmentWriter


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker tells the driver.

    Attributes:
        segments: files it wrote.
        shards: numbers of the shards whose state is prepared under the attempt's token.
        documents_in: source documents it processed.
        documents_out: documents it wrote.
        error: JSON of a `FlowError`, if it failed.
    """

    segments: tuple[Segment, ...] = ()
    shards: tuple[int, ...] = ()
    documents_in: int = 0
    documents_out: int = 0
    error: dict[str, Any] | None = None

    def to_json(self) -> str:
        """As JSON text."""
        segments = [each.to_json() for each in self.segments]
        fields = [segments, list(self.shards), self.documents_in, self.documents_out, self.error]
        return orjson.dumps(fields).decode()

    @staticmethod
    def from_json(text: str) -> Message:
        """The message that `to_json` described."""
        segments, shards, documents_in, documents_out, error = orjson.loads(text)
        return Message(tuple(map(Segment.from_json, segments)), tuple(shards), documents_in, documents_out, error)


class Counter:
    """Counts processed documents where the driver can see it while the worker is still at work."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.total = 0
        self._file = progress_folder(plan.root, plan.token) / name

    def add(self, count: int) -> None:
        """Count some more; the file is written about every 10,000 documents."""
        before, self.total = self.total, self.total + count
        if self.total // 10_000 != before // 10_000:
            with suppress(OSError):  # progress is a courtesy
                self._file.write_bytes(self.total.to_bytes(8, "little"))


def progress_folder(root: Path, token: str) -> Path:
    """Where workers of an attempt leave their counts."""
    return root / "tmp" / token


def _open_session(plan: Plan, database: apsw.Connection) -> DeriveSession:
    return find_connector(plan.spec.connector).open(plan.spec, database)


def _invoker(plan: Plan, session: DeriveSession) -> Invoker:
    return Invoker(plan.spec, session, [offset_of(plan.spec, each) for each in plan.spec.transforms])


def _failed(error: FlowError) -> Message:
    return Message(error=error.to_json())


def run_slice(plan: Plan, number: int) -> Message:
    """Run one slice of a stateless transaction, from its segments to new segments."""
    begin, end = plan.slices[number], plan.slices[number + 1]
    return _run_alone(plan, f"slice-{number}", (begin, end), None)


def run_single(plan: Plan) -> Message:
    """Run the whole transaction of a task with one shard, from its segments to new segments."""
    return _run_alone(plan, "single", (0, plan.end), 0)


def _run_alone(plan: Plan, name: str, span: tuple[int, int], shard: int | None) -> Message:
    """Read, invoke, combine and write in one place, where all documents of each tick come through."""
    writer = SegmentWriter(plan.root, plan.spec.collection, f"{plan.token}-{name}")
    counter = Counter(plan, name)
    try:
        with _state(plan, shard) as database, translated(plan.root):
            session = _open_session(plan, database)
            try:
                _run_batches(plan, span, _invoker(plan, session), writer, counter)
                session.prepare_commit()
            finally:
                session.close()
            segments = writer.close()
    except FlowError as error:
        writer.abort()
        return _failed(error)
    documents_out = sum(each.documents for each in segments)
    return Message(tuple(segments), () if shard is None else (shard,), counter.total, documents_out)


def _state(plan: Plan, shard: int | None) -> AbstractContextManager[apsw.Connection]:
    if shard is None:
        return nullcontext(open_scratch())
    folder = shard_folder(plan.root, plan.spec.name, shard, plan.shards)
    return open_state(folder, epoch=plan.epoch, committed=plan.tokens.get(shard), token=plan.token)


def _run_batches(plan: Plan, span: tuple[int, int], invoker: Invoker, writer: SegmentWriter, counter: Counter) -> None:
    batches = read_sorted(plan.root, [each.within(*span) for each in plan.reads])
    if any(each.feedback for each in plan.spec.transforms):
        run_ticks(plan, batches, invoker, writer.write, counter.add)
        return
    combiner = TickCombiner(plan.spec)
    for batch in batches:
        adjusted = batch.column(0).to_numpy()
        documents = parse_documents(batch.column(4))
        published = invoker.invoke(batch.column(1).to_pylist(), adjusted, batch.column(3), documents)
        clocks = np.maximum(adjusted[published.causes], plan.clamp) if published.causes else adjusted[:0]
        _write(writer, combiner.add(clocks, published.keys, published.documents))
        counter.add(batch.num_rows)
    _write(writer, combiner.close())


def _write(writer: SegmentWriter, rows: pa.RecordBatch | None) -> None:
    if rows is not None:
        writer.write(rows)


def run_lambdas(plan: Plan, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run one shard's lambdas over its documents (`SOURCE_ROWS`, in order), publishing `LAMBDA_ROWS`.

    The shard's state is prepared by the time the last batch, a message, is yielded. A shard without documents is not
    opened at all.
    """
    first = next(batches, None)
    if first is None:
        return
    counter = Counter(plan, f"shard-{number}")
    try:
        with _state(plan, number) as database:
            session = _open_session(plan, database)
            try:
                yield from _lambda_batches(plan, _invoker(plan, session), chain([first], batches), counter)
                session.prepare_commit()
            finally:
                session.close()
        message = Message(shards=(number,), documents_in=counter.total)
    except FlowError as error:
        message = _failed(error)
    yield message_row(message)


def _lambda_batches(
    plan: Plan, invoker: Invoker, batches: Iterator[pa.RecordBatch], counter: Counter
) -> Iterator[pa.RecordBatch]:
    label = compile_label(plan.spec.collection)
    number = 0
    for batch in batches:
        adjusted = batch.column(0).to_numpy()
        documents = parse_documents(batch.column(4))
        published = invoker.invoke(batch.column(1).to_pylist(), adjusted, batch.column(3), documents)
        counter.add(batch.num_rows)
        count = len(published.causes)
        if not count:
            continue
        causes = pa.array(published.causes, pa.int32())
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(np.maximum(adjusted[published.causes], plan.clamp)),
                pa.array(published.keys, pa.binary()),
                pa.array(list(map(orjson.dumps, published.documents)), pa.string()),
                pa.array(list(map(label, published.documents)), pa.string()),
                *(batch.column(place).take(causes) for place in range(4)),
                pa.array(np.arange(number, number + count, dtype=np.int64)),
            ],
            schema=LAMBDA_ROWS,
        )
        number += count


def message_row(message: Message) -> pa.RecordBatch:
    """A message as a row of `LAMBDA_ROWS`."""
    values: list[Any] = [0, b"", message.to_json(), "", 0, 0, 0, b"", MESSAGE]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(values, LAMBDA_ROWS, strict=True)], schema=LAMBDA_ROWS
    )


def run_combine(plan: Plan, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    """Combine and write a range of output keys (`LAMBDA_ROWS`, sorted), and pass messages on."""
    writer = SegmentWriter(plan.root, plan.spec.collection, f"{plan.token}-{number}")
    messages: list[Message] = []
    try:
        with translated(plan.root):
            for rows in combine_sorted(plan.spec, _without_messages(batches, messages.append)):
                writer.write(rows)
            segments = writer.close()
        messages.append(Message(tuple(segments), documents_out=sum(each.documents for each in segments)))
    except FlowError as error:
        writer.abort()
        messages.append(_failed(error))
    yield from messages


def _without_messages(
    batches: Iterator[pa.RecordBatch], receive: Callable[[Message], None]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        kept = batch
        numbers = batch.column(8).to_numpy()
        if bool((numbers == MESSAGE).any()):
            for place in np.flatnonzero(numbers == MESSAGE).tolist():
                receive(Message.from_json(batch.column(2)[place].as_py()))
            kept = batch.filter(pa.array(numbers != MESSAGE))
        if kept.num_rows:
            yield kept
