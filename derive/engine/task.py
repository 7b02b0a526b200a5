"""A task at work: what it reads next, transaction after transaction, whatever its transactor does with that.

A transaction is executed, and then committed in one metadata transaction; an error before that leaves nothing behind
but garbage and the reason, which is recorded with the task.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

import orjson

from derive.document.clock import format_rfc3339
from derive.engine.checkpoint import Checkpoint
from derive.engine.following import find_switch, remove_switches, way_to, write_switch
from derive.engine.inputs import Inputs, look
from derive.engine.rights import hold
from derive.engine.transaction import Committed, Prepared, Transaction
from derive.engine.transactor import TaskSpec, Transactor
from derive.engine.waiting import Waiting, find_waiting
from derive.errors import BusyError, DiskFullError, FlowError, LostError, UnacceptedError
from derive.protocol.specs import InputSpec
from derive.storage.metadata.capability import TaskCapability
from derive.storage.metadata.descriptions import Edit, Stopped, TaskCommit
from derive.storage.roles import Runnable
from derive.storage.task_log import TaskLog
from derive.time.cycle import Horizon, Step, by_priority, earliest_to_come, next_step, next_step_apart
from derive.time.extent import choose_end, is_one_tick, size_of
from derive.time.frontier import BEGINNING, tick_begin
from derive.time.limits import Limits
from derive.time.needs import needs
from derive.time.pace import Pace
from derive.time.positions import Place
from derive.time.segment import Segment
from derive.time.source_read import SourceRead


@dataclass(frozen=True, slots=True)
class Beginning:
    """With what a task begins to run, as people are told.

    Attributes:
        again: inputs that are new to a task that has run before, and read their source from its start.
        compacted: inputs that begin with a history that was compacted, each with the `since` of its source.
        edits: what was edited under its output since the run before.
        error: why no transaction of it can be run, if none can.
        is_apart: its inputs have nothing to do with one another, and go on each as far as its own source is final.
        is_accepted: edits that had waited to be accepted were.
    """

    again: tuple[InputSpec, ...] = ()
    compacted: tuple[tuple[InputSpec, int], ...] = ()
    edits: tuple[Edit, ...] = ()
    error: FlowError | None = None
    is_apart: bool = False
    is_accepted: bool = False


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
        self._switched: dict[str, tuple[Segment, ...]] = {}
        self._is_tidy = False  # files may be there that a run has left that was killed
        self._due: set[str] = set()  # inputs that wait for the time at which they go over
        # No run before, and none of its transactions, has given an endpoint anything at or above this adjusted clock.
        self._reached = tick_begin(store.timeline.present(), transactor.spec.tick)
        self.spec: TaskSpec = transactor.spec
        self.beginning = beginning
        self.error: FlowError | None = None

    def move(self, transactor: Transactor) -> None:
        """Its definition is the same and is written elsewhere, as errors are to say from here on."""
        self._transactor, self.spec = transactor, transactor.spec

    @property
    def transactor(self) -> Transactor:
        """The work on the documents that the task reads."""
        return self._transactor

    @property
    def capability(self) -> TaskCapability:
        """The right to run it."""
        return self._capability

    @property
    def shards(self) -> int:
        """How many shards keep its state."""
        return self._checkpoint.shards

    def look(self) -> Inputs:
        """Return the inputs as they are now.

        Raises:
            SourceReplacedError: a source is another relation than the one that was read so far.
        """
        checkpoint = self._checkpoint
        inputs = look(self._store, self.spec, checkpoint.positions, checkpoint.places, self._switched)
        # A table that replaces another one is to be read, also if it is empty.
        due = {spec.index: 1 for spec in self.spec.inputs if spec.state_key in self._due}
        return replace(inputs, others={**due, **inputs.others}) if due else inputs

    def follow(self) -> bool:
        """Go over to relations that have come to have the names of sources, where nothing or the catalog forbids it.

        Returns:
            Whether the task has to begin again for that, which it cannot do by itself.

        Raises:
            FlowError: that cannot be noted, or the relations cannot be read.
        """
        before = self._checkpoint.places
        places, is_over = self._followed(before)
        if is_over:
            return True
        if any(places[key].relations != before[key].relations for key in places):
            positions = self._checkpoint.positions
            self._checkpoint = replace(self._checkpoint, places=places)
            hold(self._store, self.spec, positions, self._capability, places)
            # A switch is the same after a crash, and so is noted before anything of it is read.
            self._capability = self._store.commit_task(self._capability, self.commit_of(self._checkpoint, Prepared()))
            self._switched, self._is_tidy = {}, False
        if not self._is_tidy and not self._switched:
            remove_switches(self._store.root, self.spec.name)
            self._is_tidy = True
        for spec in self.spec.inputs:
            key, place = spec.state_key, places[spec.state_key]
            if place.switch is not None and key not in self._switched:
                self._switched[key] = write_switch(self._store, self.spec, spec, place, self._checkpoint.position(spec))
        return False

    def _followed(self, before: Mapping[str, Place]) -> tuple[dict[str, Place], bool]:
        """The places of inputs once each has followed its source, and whether the task has to begin again for that."""
        places = dict(before)
        self._due = set()
        for spec in self.spec.inputs:
            key, position = spec.state_key, self._checkpoint.position(spec)
            place = places[key] = before[key].arrived(position)
            known = self._store.collection(spec.source)
            if known is None or place.switch is not None or known.relation == place.relation:
                continue
            if not place.relation or key not in self._checkpoint.positions:  # nothing was read of any other
                places[key] = place._replace(relation=known.relation)
            elif spec.follows or self._store.replaces_nothing(spec.source, place.relation):
                way = way_to(self._store, self.spec, spec, place)
                fate = self._store.tell_fate(spec.source, place.relation)
                if way == "again":
                    self._log.write("info", f"'{spec.name}' follows its source, and all begins again: {fate}")
                    return places, True
                if way == "switch":
                    switch = find_switch(self._store, self.spec, spec, place, position, self._reached)
                    places[key] = place._replace(switch=switch)
                    if switch is None:
                        self._due.add(key)
                    else:
                        self._log.write("info", f"'{spec.name}' takes back what it has read, and goes on: {fate}")
        return places, False

    def begin_again(self, capability: TaskCapability, checkpoint: Checkpoint, beginning: Beginning) -> None:
        """Go on as a task that has just been opened."""
        self._switched, self._is_tidy = {}, False
        self._capability, self._checkpoint, self.beginning = capability, checkpoint, beginning

    def earliest(self, inputs: Inputs) -> int | None:
        """The least adjusted clock of a stored document that is not processed yet; None if there is none."""
        return self._earliest(inputs, self.spec.inputs)

    def _earliest(self, inputs: Inputs, specs: Sequence[InputSpec]) -> int | None:
        clocks = [inputs.earliest(spec, self._checkpoint.position(spec)) for spec in specs]
        return min((clock for clock in clocks if clock is not None), default=None)

    def earliest_cause(self, inputs: Inputs) -> int:
        """The least adjusted clock of a document, stored or still to come, that it has yet to process on its cycle."""
        to_come = earliest_to_come(self.spec.inputs, self.spec.tick, inputs.uppers)
        stored = self.earliest(inputs)
        return to_come if stored is None else min(stored, to_come)

    def waiting(self) -> list[Waiting]:
        """What each input still has to process."""
        checkpoint = self._checkpoint
        return find_waiting(self._store, self.spec, checkpoint.positions, checkpoint.places, self._switched)

    def next_step(self, inputs: Inputs, earliest: int, now: int) -> Step | None:
        """What it does next, as far as frontiers allow; None if nothing can move, not even time.

        Args:
            inputs: what `look` has seen.
            earliest: clock before which nothing is published on the task's cycle; `now` if that does not bound it.
            now: up to which the sources are sealed.

        Raises:
            FlowError: no transaction of it can be run, or a source cannot be read.
            ViewError: all before the time is done at which a materialized view that it reads has come to have an error.
        """
        if self.beginning.error:
            raise self.beginning.error
        horizon = Horizon(inputs.uppers, earliest, now)
        first = partial(self._earliest, inputs)
        choose = next_step_apart if self.beginning.is_apart else next_step
        step = choose(by_priority(self.spec.inputs, self.spec.tick), self._checkpoint.position, first, horizon)
        if step is None and inputs.failures:
            raise min(inputs.failures.items())[1]
        return step

    def take(self, inputs: Inputs, step: Step, progress: Callable[[int], None]) -> Committed:
        """Run one transaction: a step, or as much of it as limits allow.

        Args:
            inputs: what `look` has seen.
            step: what `next_step` said.
            progress: told how many documents have been processed, with 0 to begin with; not called where there are
                none, and only time moves.

        Raises:
            FlowError: the transaction failed; nothing of it was committed.
        """
        tick, bound = self.spec.tick, step.bound
        reads, position = self.reads(inputs, step.behind, bound), min(map(self._checkpoint.position, step.behind))
        while True:
            limits = self._pace.limits
            if step.has_documents:
                limits = self._transactor.prepare(size_of(reads), self.shards, limits)
            end = choose_end(reads, position, bound, tick, limits)
            transaction = self.begin(inputs, step.behind, end, limits)
            self._reached = max(self._reached, end)
            try:
                committed = self._carry_out(transaction, progress, is_empty=step.first >= end)
            except LostError as error:
                size = size_of(transaction.reads)
                self._pace.slow_down(size)
                smaller = choose_end(reads, position, bound, tick, self._pace.limits)
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

    def reads(self, inputs: Inputs, specs: Sequence[InputSpec], end: int) -> tuple[SourceRead, ...]:
        """What some of its inputs read up to an adjusted clock, but for those that are there."""
        positions = [(spec, self._checkpoint.position(spec)) for spec in specs]
        return tuple(inputs.read(spec, position, end) for spec, position in positions if position < end)

    def begin(self, inputs: Inputs, specs: Sequence[InputSpec], end: int, limits: Limits) -> Transaction:
        """An attempt at a transaction.

        Args:
            inputs: what `look` has seen.
            specs: which of them go on to its end, unless they are there.
            end: of the transaction.
            limits: how its work is cut.
        """
        number = next(self._numbers)
        return Transaction(
            number=number,
            token=f"{self._capability.id}.{number}",
            capability=self._capability,
            checkpoint=self._checkpoint,
            reads=self.reads(inputs, specs, end),
            end=end,
            limits=limits,
        )

    def _carry_out(self, transaction: Transaction, progress: Callable[[int], None], *, is_empty: bool) -> Committed:
        """Execute a transaction and commit it; where it is empty, only time moves."""
        begun = time.monotonic()
        prepared = Prepared()
        if not is_empty:
            progress(0)
        if not is_empty or self._transactor.has_to_execute:
            prepared = self._transactor.execute(transaction, progress)
        taking_part = [self.spec.inputs[read.index] for read in transaction.reads]
        checkpoint = self._checkpoint.after(taking_part, transaction.end, prepared.tokens)
        if prepared.cleared:
            checkpoint = checkpoint.moved(dict.fromkeys(prepared.cleared, BEGINNING), prepared.tokens)
        if prepared.stepped_back:
            checkpoint = self._checkpoint.moved(prepared.stepped_back, prepared.tokens)
        capability = self._transactor.commit(transaction, prepared, self.commit_of(checkpoint, prepared))
        return self.moved(capability, checkpoint, prepared, begun)

    def commit_of(self, checkpoint: Checkpoint, prepared: Prepared) -> TaskCommit:
        """The task's side of a commit that makes `prepared` count, and leaves it at a checkpoint."""
        return TaskCommit(
            positions=checkpoint.positions,
            places=checkpoint.places,
            shards=prepared.tokens,
            documents_in=prepared.documents_in,
            documents_out=prepared.documents_out,
            needs=needs(self.spec.inputs, self.spec.tick, checkpoint.positions),
            may_step_back=bool(prepared.stepped_back or prepared.cleared),
        )

    def moved(self, capability: TaskCapability, checkpoint: Checkpoint, prepared: Prepared, begun: float) -> Committed:
        """Go on from what was committed.

        Args:
            capability: the right to run the task from here on.
            checkpoint: how far it is.
            prepared: what was committed.
            begun: when that was begun, by the monotonic clock.
        """
        self._capability, self._checkpoint = capability, checkpoint
        committed = Committed(prepared.documents_in, prepared.documents_out, time.monotonic() - begun)
        if prepared.documents_in:
            upper = capability.frontiers.get(self.spec.name, max(checkpoint.positions.values()))
            self._log.write("info", "committed", **asdict(committed), upper=format_rfc3339(upper))
        return committed

    def fail(self, error: FlowError) -> None:
        """Record why the task stopped.

        Raises:
            FencedError: another run has taken over, and how it does is no longer for this one to say.
        """
        self.error = error
        self._log.write("error", str(error))
        if isinstance(error, UnacceptedError):  # which whoever looks finds out, until the edit is accepted or undone
            return
        with suppress(DiskFullError, BusyError):  # then it cannot be recorded, and is only told
            self._store.note_task(self._capability, Stopped(orjson.dumps(error.to_json()).decode()))

    def cancel(self) -> None:
        """Make a transaction fail that is being executed in another thread."""
        self._transactor.cancel()

    def release(self) -> None:
        """Give up the right to run."""
        with suppress(DiskFullError, BusyError):  # the next holder supersedes it anyway
            self._store.release_task(self._capability)
