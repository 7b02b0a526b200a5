"""A cycle in memory: one transaction of all derivations that read one another, in ticks.

The derivations take turns, round after round, as if each turn were a transaction of its own. Because
`derive/time/cycle.py` bounds the steps in both cases, the results are the same, but without waits for the disk. The
publications of one derivation are added to the backlogs of its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from derive.document.columns import Columns, Kinds
from derive.document.exact import dump_exact
from derive.document.key_columns import KeyColumns
from derive.protocol.derive import DeriveSession
from derive.protocol.specs import InputSpec
from derive.shard.cycle_sources import batch_of, rows_of
from derive.shard.feedback import Backlog, FeedbackQueue, TickPart
from derive.shard.fields import Reading, reading_of, source_batch
from derive.shard.invoke import Invoker, QuarantineWriter, Rejected, SourceBatch, end_batch
from derive.shard.meter import Meter
from derive.shard.owners import OwnersOf, source_owners
from derive.shard.plan import Cycle, Plan
from derive.shard.progress import Counter, Message, PartBegin, Reached
from derive.shard.published import Combined, Content, Documents, Published, RowMaker, weigh
from derive.shard.session import failed, open_session, open_spill
from derive.shard.state_store import StateStore, state_store
from derive.shard.tick_combiner import TickCombiner
from derive.storage.blobs import translated
from derive.storage.folder_id import redactor_of
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows, WrittenRows, concat
from derive.storage.segments.sorter import Spill
from derive.storage.segments.writer import SegmentWriter
from derive.time import BEGINNING
from derive.time.cycle import Horizon, Step, by_priority, earliest_to_come, next_step
from derive.time.positions import offset_of


class Lambdas:
    """Passes each document to the shard that owns it, and opens shards on demand.

    Publications of several shards are sorted into the order of a single shard.

    Args:
        plan: the transaction of the derivation.
        reading: columns that the derivation reads.
        open_shard: opens the session of a shard, by its number.
        reject: called with each source document that is put aside.

    Attributes:
        reading: columns that the derivation reads.
        opened: invokers of the open shards, by number.
    """

    def __init__(
        self,
        plan: Plan,
        reading: Reading,
        open_shard: Callable[[int], DeriveSession],
        reject: Callable[[Rejected], None] = lambda _: None,
    ) -> None:
        self.reading = reading
        self.meter = Meter(len(plan.spec.transforms))
        self._plan = plan
        self._open_shard = open_shard
        self._reject = reject
        self._offsets = [offset_of(spec, plan.spec.tick) for spec in plan.spec.inputs]
        self._owners_of = source_owners(plan, reading) if plan.shards > 1 else None
        self.opened: dict[int, Invoker] = {}
        self._seen: set[int] = set()  # shards that received a document of the tick

    def _invoker(self, shard: int) -> Invoker:
        invoker = self.opened.get(shard)
        if invoker is None:
            session = self._open_shard(shard)
            invoker = self.opened[shard] = Invoker(
                self._plan.spec,
                session,
                self._offsets,
                self._plan.clamp,
                packs_later=True,
                redactor=redactor_of(self._plan.spec.collection, self._plan.root),
                reject=self._reject,
            )
        self._seen.add(shard)
        return invoker

    def invoke(self, part: TickPart) -> Iterator[Published]:
        """Run documents of one tick, in order; yield the publications, in order."""
        if self._owners_of is not None:
            rows = part if isinstance(part, ReadRows) else rows_of(part)
            return self.meter.measured(rows.transforms, self._invoke_owners(rows, self._owners_of))
        batch = self._batch(part) if isinstance(part, ReadRows) else batch_of(part, self.reading)
        return self.meter.measured(batch.transforms, self._invoker(0).invoke(batch))

    def _batch(self, rows: ReadRows) -> SourceBatch:
        return source_batch(self._plan, self.reading, rows)

    def _invoke_owners(self, rows: ReadRows, owners_of: OwnersOf) -> Iterator[Published]:
        owners = owners_of(rows)
        shards = np.unique(owners).tolist()
        if len(shards) == 1:
            yield from self._invoker(shards[0]).invoke(self._batch(rows))
            return
        parts: list[Published] = []
        for shard in shards:
            indices = np.flatnonzero(owners == shard)
            for part in self._invoker(shard).invoke(self._batch(rows.take(indices)), as_columns=False):
                parts.append(replace(part, causes=indices.take(part.causes).tolist()))
        if parts:
            yield _merged(parts, [cause for part in parts for cause in part.causes])

    def end(self, tick: int) -> Iterator[Published]:
        """End a tick for the shards that saw its documents; return the publications at its end, in order."""
        invokers = [invoker for shard in sorted(self._seen) if (invoker := self.opened[shard]).flushes]
        self._seen.clear()
        return self._end(invokers, tick) if invokers else iter(())

    def _end(self, invokers: Sequence[Invoker], tick: int) -> Iterator[Published]:
        batch = end_batch(self._plan.spec, tick)
        parts = [part for invoker in invokers for part in invoker.invoke(batch, as_columns=False)]
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            yield _merged(parts, [dump_exact(document) for part in parts for document in part.content.documents()])


def _merged(parts: Sequence[Published], by: Sequence[Any]) -> Published:
    """Merge publications into one order.

    Args:
        parts: the publications.
        by: sort keys of their documents, concatenated.
    """
    order = sorted(range(len(by)), key=by.__getitem__)
    causes, keys, documents = (
        list(chain.from_iterable(columns))
        for columns in zip(*((part.causes, part.key_list, part.content.documents()) for part in parts), strict=True)
    )
    return Published(
        causes=[causes[index] for index in order],
        clocks=np.concatenate([part.clocks for part in parts]).take(order),
        keys=[keys[index] for index in order],
        content=Documents([documents[index] for index in order]),
    )


MOST_ROWS = 20_000


@dataclass(slots=True)
class _Group:
    """Documents of one form: columns with the same names, or objects; all keys are packed, or none.

    Attributes:
        columns: timestamps, sequence numbers, labels and, if packed, keys.
        values: values of each property; for objects, one list of documents.
        kinds: types of the values of each property.
    """

    columns: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], [], []))
    values: list[list[Any]] = field(default_factory=list)
    kinds: tuple[Kinds, ...] = ()

    def add(self, combined: Combined) -> None:
        """Add documents of the same group."""
        content = combined.content
        values: Sequence[Sequence[Any]] = content.values if isinstance(content, Columns) else (content.listed,)
        kinds: tuple[Kinds, ...] = content.kinds if isinstance(content, Columns) else ()
        if not self.values:
            self.values, self.kinds = [[] for _ in values], kinds
        elif kinds != self.kinds:
            self.kinds = tuple([known | more for known, more in zip(self.kinds, kinds, strict=True)])
        for column, part in zip(self.values, values, strict=True):
            column.extend(part)
        keys = [] if isinstance(combined.keys, KeyColumns) else combined.keys
        columns: tuple[list[Any], ...] = (combined.clocks, combined.seqs, combined.labels, keys)
        for column, part in zip(self.columns, columns, strict=True):
            column.extend(part)

    def rows(self, names: tuple[str, ...], pack: KeyColumns | None, make: RowMaker) -> WrittenRows:
        """Return the documents as rows, in the order of their addition."""
        clocks, seqs, labels, keys = self.columns
        content: Content = Documents(self.values[0])
        packed: pa.BinaryArray | list[bytes] = keys
        if names:
            content = Columns(names, tuple(self.values), self.kinds)
            packed = pack.pack(content) if pack else keys
        rows = WrittenRows.of(np.array(clocks, dtype=np.int64), seqs, packed, make.texts(content), labels)
        return rows.with_fields(make.fields(content))


class Gathered:
    """Gathers published documents.

    Args:
        write: takes rows, in order.
        make: converter of documents to rows.
        most_bytes: approximate limit for the gathered bytes.
    """

    def __init__(self, write: Callable[[WrittenRows], None], make: RowMaker, most_bytes: int) -> None:
        self._write = write
        self._make = make
        self._most_bytes = most_bytes
        self._clear()

    def _clear(self) -> None:
        # Groups, by property names (empty for objects) and by the packer of keys.
        self._groups: dict[tuple[tuple[str, ...], KeyColumns | None], _Group] = {}
        self._count = self._weight = 0

    def add(self, combined: Combined, weight: int) -> None:
        """Add documents of one tick, with an approximate size of `weight` bytes."""
        names = combined.content.names if isinstance(combined.content, Columns) else ()
        kind = (names, combined.keys if isinstance(combined.keys, KeyColumns) else None)
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _Group()
        group.add(combined)
        self._count += len(combined.clocks)
        self._weight += weight
        if self._count >= MOST_ROWS or self._weight > self._most_bytes:
            self.flush()

    def add_rows(self, rows: WrittenRows) -> None:
        """Write the gathered rows, and then these rows."""
        self.flush()
        self._write(rows)

    def flush(self) -> None:
        """Write the gathered rows."""
        if self._groups:
            self._write(concat([group.rows(*kind, self._make) for kind, group in self._groups.items()]).in_order())
        self._clear()


class Member:
    """One running derivation of a cycle.

    Args:
        plan: the derivation's part of the transaction.
        cycle: the common part of the transaction.
        number: index among the derivations.
        lambdas: lambdas of the derivation.
        write: takes published rows, in order.
        spill: files for rows that exceed the memory limit.
        rejected: writer of the documents that are put aside.

    Attributes:
        plan: the derivation's part of the transaction.
        positions: for each input (by index), the adjusted timestamp below which it is processed now.
        upper: present `upper` of the output.
        counter: counter of processed documents.
        readers: queues for published documents.
    """

    def __init__(
        self,
        plan: Plan,
        cycle: Cycle,
        number: int,
        lambdas: Lambdas,
        write: Callable[[WrittenRows], None],
        spill: Spill,
        rejected: QuarantineWriter,
    ) -> None:
        self.plan = plan
        self._rejected = rejected
        self.positions = dict(cycle.positions[number])
        self.upper = plan.clamp
        self.counter = Counter(plan, "cycle")
        self.readers: list[FeedbackQueue] = []
        self._tick = plan.spec.tick
        self._lambdas = lambdas
        self._levels = by_priority(plan.spec.inputs, self._tick)
        self._backlogs: dict[int, Backlog] = {}
        reading = lambdas.reading
        for level in self._levels:
            indexes = {spec.index for spec in level.specs}
            reads = [read for read in plan.reads if read.index in indexes]
            parts = read_sorted(plan.location, reads, selection=reading.selection)
            self._backlogs[level.specs[0].priority] = Backlog(plan, level.specs, reading, parts, spill)
        self._to_come = earliest_to_come(plan.spec.inputs, self._tick, cycle.uppers)
        self._combiner = TickCombiner(plan.spec, spill)
        self._gathered = Gathered(write, RowMaker(plan.spec.collection), spill.memory // 2)
        self._last = BEGINNING  # timestamp of the last publication
        self._begins: list[PartBegin] = []
        self._is_raised = False  # whether the last step with documents could raise timestamps

    def backlogs_of(self, source: str) -> list[FeedbackQueue]:
        """Return the queues of the inputs that read a source."""
        return [
            self._backlogs[level.specs[0].priority].fed_back
            for level in self._levels
            if any(spec.source == source for spec in level.specs)
        ]

    def earliest_cause(self) -> int:
        """Return the earliest adjusted timestamp of a stored or future document that the member must still process."""
        earliest = self._to_come
        for backlog in self._backlogs.values():
            first = backlog.first
            if first is not None and first < earliest:
                earliest = first
        return earliest

    def next_step(self, horizon: Horizon) -> Step | None:
        """Return the member's next step; None if it cannot advance."""
        return next_step(self._levels, self._position, self._first, horizon)

    def _position(self, spec: InputSpec) -> int:
        return self.positions[spec.index]

    def _first(self, specs: Sequence[InputSpec]) -> int | None:
        return self._backlogs[specs[0].priority].first

    def take(self, step: Step, most: int) -> int:
        """Take a step, or its first ticks with about `most` documents; return the number of documents."""
        end, before = step.bound, self.counter.total
        self._rejected.clamp = self.upper
        if step.has_documents:
            self._begin_part(step)
            end = self._run_ticks(self._backlogs[step.behind[0].priority], step.bound, before + most)
        for spec in step.behind:
            self.positions[spec.index] = max(self.positions[spec.index], end)
        self.upper = max(self.upper, end, self._last + 1, self._rejected.last + 1)
        return self.counter.total - before

    def _begin_part(self, step: Step) -> None:
        """Begin another part of the past before a step with documents, if a replay needs to know the step before it.

        Timestamps that are raised to the output's `upper` depend on the extents of the steps. A part with several
        priorities stays undivided: a replay cannot be exact.
        """
        if self._is_raised:
            self._begins.append(PartBegin(dict(self.positions), self.upper))
        is_below = any(self.positions[spec.index] < self.upper for spec in step.behind)
        self._is_raised = is_below and len(self._levels) == 1

    def _run_ticks(self, backlog: Backlog, bound: int, most: int) -> int:
        """Run ticks up to a bound, or until `most` documents are processed; return the end of the last tick.

        Published timestamps are at or above the output's `upper` before the step.
        """
        end = bound
        while (first := backlog.first) is not None and first < bound:
            if self.counter.total >= most:
                end = first - first % self._tick
                break
            tick = first // self._tick
            published_tick = max(tick, self.upper // self._tick)
            if self._combiner.open_tick is not None and published_tick != self._combiner.open_tick:
                self._end_tick()
            for part in backlog.take(tick):
                for published in self._lambdas.invoke(part):
                    self._combine(published)
                self.counter.add(len(part) if isinstance(part, ReadRows) else sum(map(len, part)))
            for published in self._lambdas.end(tick):
                self._combine(published)
        if self._combiner.open_tick is not None:
            self._end_tick()
        return end

    def _combine(self, published: Published) -> None:
        clocks = published.clocks
        if clocks[0] < self.upper:  # the first timestamp is the lowest one
            published = replace(published, clocks=np.maximum(clocks, self.upper))
        for rows in self._combiner.add(published):
            self._publish_rows(rows)

    def _end_tick(self) -> None:
        """Publish the combined documents of a tick, and feed them back."""
        if self._combiner.is_large:
            for rows in self._combiner.close():
                self._publish_rows(rows)
            return
        weight = self._combiner.weight
        combined = self._combiner.take()
        self._feed_back(combined, weight)
        self._gathered.add(combined, weight)

    def _publish_rows(self, rows: WrittenRows) -> None:
        self._gathered.add_rows(rows)
        clocks, seqs, keys, documents, labels = rows.lists()
        combined = Combined(clocks, seqs, keys, Documents(documents), labels)
        self._feed_back(combined, weigh(documents) if self.readers else 0)

    def _feed_back(self, combined: Combined, weight: int) -> None:
        self._last = max(self._last, *combined.clocks)
        for reader in self.readers:
            reader.put_all(self.plan.spec.name, combined, weight)

    def finish(self) -> None:
        """Write the remaining rows."""
        self._gathered.flush()

    def message(self, writer: SegmentWriter, attempt: int) -> Message:
        """Return the message with the outcome."""
        segments = tuple(writer.close())
        return Message(
            segments=segments,
            shards=dict.fromkeys(sorted(self._lambdas.opened), str(self.plan.attempt(attempt))),
            documents_in=self.counter.total,
            documents_out=sum(segment.documents for segment in segments),
            reached=Reached(self.plan.spec.name, self.positions, self.upper, tuple(self._begins)),
            rejected=self._rejected.close(),
            work=self._lambdas.meter.work(),
        )


@dataclass
class Turns:
    """The turns of a cycle's derivations.

    Args:
        plan: the transaction.
        members: the derivations.

    Attributes:
        at: index of the derivation whose turn it is.
        rounds: number of completed rounds.
    """

    plan: Plan
    members: list[Member] = field(default_factory=list)
    at: int = 0
    rounds: int = 0

    def take(self) -> None:
        """Take turns until no derivation can advance, or the transaction has reached its largest size."""
        cycle = self.plan.cycle
        assert cycle is not None
        count, is_large = 0, False
        while self.rounds != cycle.rounds and count < cycle.documents and not is_large:
            # All derivations decide by the same positions, like tasks.
            uppers = {**cycle.uppers, **{member.plan.spec.name: member.upper for member in self.members}}
            earliest = min(self.plan.end, *[member.earliest_cause() for member in self.members])
            horizon = Horizon(uppers, earliest, self.plan.end)
            steps = [member.next_step(horizon) for member in self.members]
            for number, (member, step) in enumerate(zip(self.members, steps, strict=True)):
                self.at = number
                if step is not None:
                    taken = member.take(step, cycle.documents)
                    count += taken
                    is_large = is_large or (taken > cycle.small and member.plan.shards > 1)
            if not any(steps):
                return
            self.rounds += 1


def run_cycle(plan: Plan, attempt: int) -> list[Message]:
    """Run a transaction of all derivations of a cycle, from their segments to new segments.

    Args:
        plan: plan of the first derivation, with the common part of the cycle.
        attempt: number of this attempt.
    """
    cycle = plan.cycle
    assert cycle is not None
    plans = plan.parts
    writers = [
        SegmentWriter(part.location, part.spec.collection, f"{part.attempt(attempt)}-cycle", is_valid=True)
        for part in plans
    ]
    turns, stores = Turns(plan), [state_store(part, attempt) for part in plans]
    try:
        with translated(plan.root), ExitStack() as stack:
            for number, (part, writer, states) in enumerate(zip(plans, writers, stores, strict=True)):
                spill = stack.enter_context(open_spill(part, share=len(plans)))
                rejected = stack.enter_context(QuarantineWriter(part, "cycle", attempt))
                lambdas = Lambdas(part, reading_of(part.spec), _opener(stack, part, states), rejected.put)
                turns.members.append(Member(part, cycle, number, lambdas, writer.write, spill, rejected))
            for member in turns.members:
                member.readers = [
                    backlog for reader in turns.members for backlog in reader.backlogs_of(member.plan.spec.name)
                ]
            turns.take()
            for member in turns.members:
                member.finish()
            messages = [member.message(writer, attempt) for member, writer in zip(turns.members, writers, strict=True)]
        for states in stores:
            states.close()
    except Exception as error:  # a retry would fail the same way
        for writer in writers:
            writer.abort()
        return [replace(failed(plans[turns.at], error), rounds=turns.rounds)]
    return [replace(message, links=states.links) for message, states in zip(messages, stores, strict=True)]


def _opener(stack: ExitStack, plan: Plan, states: StateStore) -> Callable[[int], DeriveSession]:
    return lambda shard: stack.enter_context(open_session(plan, shard, states))
