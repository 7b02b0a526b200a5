"""A task at work: what it reads next, transaction after transaction, whatever its transactor does with that.

A transaction is executed, and then committed in one metadata transaction; an error before that leaves nothing behind
but garbage and the reason, which is recorded with the task.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import orjson

from derive.document.clock import format_rfc3339
from derive.engine.checkpoint import Checkpoint
from derive.engine.inputs import Inputs, look
from derive.engine.transaction import Committed, Prepared, Transaction
from derive.engine.transactor import TaskSpec, Transactor
from derive.engine.waiting import Waiting, find_waiting
from derive.errors import BusyError, DiskFullError, FlowError, LostError
from derive.protocol.specs import InputSpec
from derive.storage.metadata.capability import TaskCapability
from derive.storage.metadata.descriptions import Edit, Stopped, TaskCommit
from derive.storage.roles import Runnable
from derive.storage.task_log import TaskLog
from derive.time.cycle import earliest_cause, frontier_of
from derive.time.extent import choose_end, is_one_tick, size_of
from derive.time.frontier import END_OF_TIME, tick_begin
from derive.time.limits import Limits
from derive.time.needs import needs
from derive.time.pace import Pace


@dataclass(frozen=True, slots=True)
class Beginning:
    """With what a task begins to run, as people are told.

    Attributes:
        again: inputs that are new to a task that has run before, and read their source from its start.
        compacted: inputs that begin with a history that was compacted, each with the `since` of its source.
        edits: what was edited under its output since the run before.
        error: why no transaction of it can be run, if none can.
    """

    again: tuple[InputSpec, ...] = ()
    compacted: tuple[tuple[InputSpec, int], ...] = ()
    edits: tuple[Edit, ...] = ()
    error: FlowError | None = None


class Task:
    """One task, with the exclusive right to run it; `open_task` opens it.

    Args:
        store: the data folder.
        transactor: what is done with the documents that it reads.
        capability: the right to run it.
        checkpoint: where it goes on.
        beginning: with what it begins.
        pace: how much it takes on at once.

    Attributes:
        spec: the task.
        beginning: with what it has begun.
        error: why it stopped, if it did.
    """

    def __init__(
        self,
        store: Runnable,
        transactor: Transactor,
        capability: TaskCapability,
        checkpoint: Checkpoint,
        beginning: Beginning,
        pace: Pace,
    ) -> None:
        self._store = store
        self._transactor = transactor
        self._capability = capability
        self._checkpoint = checkpoint
        self._pace = pace
        self._numbers = itertools.count(1)
        self._log = TaskLog(store.root, transactor.spec.name)
        self.spec: TaskSpec = transactor.spec
        self.beginning = beginning
        self.error: FlowError | None = None

    @property
    def shards(self) -> int:
        """How many shards keep its state."""
        return self._checkpoint.shards

    def look(self) -> Inputs:
        """What there is to read now."""
        return look(self._store, self.spec, self._checkpoint.positions)

    def earliest(self, inputs: Inputs) -> int | None:
        """The least adjusted clock of a stored document that is not processed yet; None if there is none."""
        return self._earliest(inputs, self.spec.inputs)

    def _earliest(self, inputs: Inputs, specs: Sequence[InputSpec]) -> int | None:
        clocks = [inputs.earliest(spec, self._checkpoint.position(spec)) for spec in specs]
        return min((clock for clock in clocks if clock is not None), default=None)

    def earliest_cause(self, inputs: Inputs) -> int:
        """The least adjusted clock of a document, stored or still to come, that it has yet to process on its cycle."""
        return earliest_cause(self.spec.inputs, self.spec.tick, inputs.uppers, self.earliest(inputs))

    def waiting(self) -> list[Waiting]:
        """What each input still has to process."""
        return find_waiting(self._store, self.spec, self._checkpoint.positions)

    def advance(self, inputs: Inputs, earliest: int, now: int, progress: Callable[[int], None]) -> Committed | None:
        """Run one transaction as far as frontiers allow.

        It belongs to the highest priority that has a document to process. Where none has, time moves as far as all of
        them allow: what they publish later has its own time, and no later one.

        Args:
            inputs: what `look` has seen.
            earliest: clock before which nothing is published on the task's cycle; `now` if that does not bound it.
            now: up to which the sources are sealed.
            progress: told how many documents have been processed, with 0 to begin with; not called where there are
                none, and only time moves.

        Returns:
            What was done; None if nothing moved, not even time.

        Raises:
            FlowError: the transaction failed; nothing of it was committed.
        """
        if self.beginning.error:
            raise self.beginning.error
        tick = self.spec.tick
        bounds: list[int] = []
        for priority in sorted({spec.priority for spec in self.spec.inputs}, reverse=True):
            specs = [spec for spec in self.spec.inputs if spec.priority == priority]
            frontier = min(frontier_of(spec, tick, inputs.uppers[spec.source], earliest, now) for spec in specs)
            bound = tick_begin(frontier, tick)
            behind = self._behind(specs, bound)
            first = self._earliest(inputs, behind)
            if first is not None and first < bound:
                return self._transact(inputs, behind, bound, first, progress)
            bounds.append(bound)
        bound = min(bounds)
        behind = self._behind(self.spec.inputs, bound)
        return self._transact(inputs, behind, bound, END_OF_TIME, progress) if behind else None

    def _behind(self, specs: Sequence[InputSpec], bound: int) -> list[InputSpec]:
        """Those that have yet to go to a bound, and take part in a transaction that does."""
        return [spec for spec in specs if self._checkpoint.position(spec) < bound]

    def _transact(
        self, inputs: Inputs, behind: Sequence[InputSpec], bound: int, first: int, progress: Callable[[int], None]
    ) -> Committed:
        tick, positions = self.spec.tick, [self._checkpoint.position(spec) for spec in behind]
        reads = [inputs.read(spec, position, bound) for spec, position in zip(behind, positions, strict=True)]
        while True:
            limits = self._pace.limits
            if first < bound:
                limits = self._transactor.prepare(size_of(reads), self.shards, limits)
            end = choose_end(reads, min(positions), bound, tick, limits)
            transaction = self._begin(inputs, end, self._behind(behind, end), limits)
            try:
                committed = self._carry_out(transaction, progress, is_empty=first >= end)
            except LostError as error:
                size = size_of(transaction.reads)
                self._pace.slow_down(size)
                smaller = choose_end(reads, min(positions), bound, tick, self._pace.limits)
                if smaller >= end or is_one_tick(transaction.reads, tick):
                    raise LostError(
                        f"{error.message}; the transaction was as small as one can be, about {size.documents:,}"
                        f" documents of {size.bytes:,} bytes as stored",
                        hint="; ".join(filter(None, ("give workers more memory, or ticks less time", error.hint))),
                    ) from error
                self._log.write("warn", f"{error}; trying again with half as many documents")
                continue
            self._pace.speed_up()
            return committed

    def _begin(self, inputs: Inputs, end: int, taking_part: Sequence[InputSpec], limits: Limits) -> Transaction:
        return Transaction(
            number=next(self._numbers),
            token=str(uuid.uuid4()),
            capability=self._capability,
            checkpoint=self._checkpoint,
            reads=tuple(inputs.read(spec, self._checkpoint.position(spec), end) for spec in taking_part),
            end=end,
            limits=limits,
        )

    def _carry_out(self, transaction: Transaction, progress: Callable[[int], None], *, is_empty: bool) -> Committed:
        """Execute a transaction and commit it; where it is empty, only time moves."""
        begun = time.monotonic()
        prepared = Prepared()
        if not is_empty:
            progress(0)
            prepared = self._transactor.execute(transaction, progress)
        self._commit(transaction, prepared)
        committed = Committed(prepared.documents_in, prepared.documents_out, time.monotonic() - begun)
        if not is_empty:
            upper = self._capability.frontiers.get(self.spec.name, transaction.end)
            self._log.write("info", "committed", **asdict(committed), upper=format_rfc3339(upper))
        return committed

    def _commit(self, transaction: Transaction, prepared: Prepared) -> None:
        specs = self.spec.inputs
        taking_part = [specs[read.index] for read in transaction.reads]
        checkpoint = self._checkpoint.after(taking_part, transaction.end, prepared.tokens)
        commit = TaskCommit(
            positions=checkpoint.positions,
            places=checkpoint.places,
            shards=prepared.tokens,
            documents_in=prepared.documents_in,
            documents_out=prepared.documents_out,
            needs=needs(specs, self.spec.tick, checkpoint.positions),
        )
        self._capability = self._transactor.commit(transaction, prepared, commit)
        self._checkpoint = checkpoint

    def fail(self, error: FlowError) -> None:
        """Record why the task stopped.

        Raises:
            FencedError: another run has taken over, and how it does is no longer for this one to say.
        """
        self.error = error
        self._log.write("error", str(error))
        with suppress(DiskFullError, BusyError):  # then it cannot be recorded, and is only told
            self._store.note_task(self._capability, Stopped(orjson.dumps(error.to_json()).decode()))

    def cancel(self) -> None:
        """Make a transaction fail that is being executed in another thread."""
        self._transactor.cancel()

    def release(self) -> None:
        """Give up the right to run."""
        with suppress(DiskFullError, BusyError):  # the next holder supersedes it anyway
            self._store.release_task(self._capability)
