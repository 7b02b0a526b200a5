"""A running task: each transaction reads the inputs, and the transactor of the task processes the documents.

A transaction is executed, and then committed in one metadata transaction. An error before the commit leaves only
garbage, and a message that is recorded with the task.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import orjson

from derive.document.clock import format_rfc3339
from derive.engine.following import find_switch, remove_switches, way_to, write_switch
from derive.engine.inputs import (
    Inputs,
    PendingDocuments,
    Waiting,
    acquire_inputs,
    estimate_waiting,
    find_pending,
    look,
)
from derive.engine.transactor import Checkpoint, Committed, Phases, Prepared, TaskSpec, Transaction, Transactor
from derive.errors import BusyError, DiskFullError, FlowError, LostError, ObjectStoreError, UnacceptedError
from derive.plural import counted
from derive.protocol.specs import DerivationSpec, InputSpec
from derive.storage.capability.table import TaskCapability
from derive.storage.location import blobs_of
from derive.storage.metadata.chain import ObjectReferences
from derive.storage.metadata.descriptions import Edit, Stopped, TaskCommit
from derive.storage.roles import Runnable
from derive.storage.task_log import TaskLog
from derive.time import BEGINNING, END_OF_TIME, tick_begin
from derive.time.cycle import Horizon, Level, Step, by_priority, earliest_to_come, next_step, next_step_per_input
from derive.time.extent import Limits, Pace, choose_end, is_one_tick, size_of
from derive.time.positions import Place, Segment, SourceRead, needs

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The state with which a task begins to run, for messages.

    Attributes:
        again: new inputs of a task that has run before; they read their source from its start.
        compacted: inputs that begin with compacted history, each with the `since` of its source.
        edits: edits after the previous run that concern the output of the task.
        error: the error that prevents all transactions, if there is one.
        is_per_input: whether the inputs are independent, so that each advances with its own source.
        is_accepted: whether pending edits were accepted.
    """

    again: tuple[InputSpec, ...] = ()
    compacted: tuple[tuple[InputSpec, int], ...] = ()
    edits: tuple[Edit, ...] = ()
    error: FlowError | None = None
    is_per_input: bool = False
    is_accepted: bool = False


class Task:
    """One task, with the exclusive capability to run it; `open_task` opens it.

    Args:
        store: the data folder.
        transactor: processes the documents that the task reads.
        capability: the capability to run the task.
        checkpoint: its last checkpoint.
        beginning: the state with which the task begins.
        pace: the size of its transactions.

    Attributes:
        spec: the task.
        beginning: the state with which it began.
        error: the error that stopped it, if there is one.
        backlog: number of source documents that waited at the start of the latest transaction.
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
        self._is_fenced = isinstance(transactor.spec, DerivationSpec)  # the metadata commit fences the output
        self._is_clean = False  # a killed run may have left files
        self._look_seconds = 0.0  # duration of the last look
        self._references: ObjectReferences | None = None  # of the checkpoint's chains; counted when needed
        # No run and no transaction has sent rows at or after this adjusted timestamp to an endpoint.
        self._reached = tick_begin(store.timeline.present(), transactor.spec.tick)
        self.spec: TaskSpec = transactor.spec
        self.beginning = beginning
        self.error: FlowError | None = None
        self.backlog = 0

    def move(self, transactor: Transactor) -> None:
        """Replace the transactor by an equal transactor with other positions in the catalog files, for errors."""
        self._transactor, self.spec = transactor, transactor.spec

    @property
    def transactor(self) -> Transactor:
        """Return the transactor."""
        return self._transactor

    @property
    def capability(self) -> TaskCapability:
        """Return the capability to run the task."""
        return self._capability

    @property
    def shards(self) -> int:
        """Return the number of shards with the task's state."""
        return self._checkpoint.shards

    @property
    def upper(self) -> int:
        """Return the timestamp before which a derivation is final, or before which all inputs are stored."""
        positions = (self._checkpoint.position(spec) for spec in self.spec.inputs)
        return self._capability.frontiers.get(self.spec.name, min(positions, default=BEGINNING))

    def estimate_waiting(self, now: int) -> Waiting:
        """Return the approximate number of documents that wait at a time.

        Raises:
            SourceReplacedError: a source is another relation than the one read so far.
        """
        return estimate_waiting(self.look(), self.spec, self._checkpoint.positions, now)

    def look(
        self, *, is_whole: bool = False, is_joint: bool = False, raised: Mapping[str, int] | None = None
    ) -> Inputs:
        """Return the present inputs: the unread segments, as far as the next transaction may read them.

        Args:
            is_whole: whether to return all unread segments.
            is_joint: whether the inputs are for a cycle transaction.
            raised: uppers of sources (by name) after the commit for which the inputs are.

        Raises:
            SourceReplacedError: a source is another relation than the one read so far.
        """
        checkpoint = self._checkpoint
        positions, places = checkpoint.positions, checkpoint.places
        begun = time.monotonic()
        most = None if is_whole else self._pace.most
        store, spec = self._store, self.spec
        inputs = look(store, spec, positions, places, self._switched, most, is_joint=is_joint, raised=raised)
        self._look_seconds = time.monotonic() - begun
        return inputs

    def follow(self) -> tuple[str, ...]:
        """Move inputs to the relations that now have the names of their sources, if the catalog allows the move.

        Returns:
            State keys of the inputs that must start over; the caller starts them over.

        Raises:
            FlowError: the move cannot be recorded, or the relations cannot be read.
        """
        if self.beginning.error:
            return ()  # nothing is recorded under a definition that waits, or that is refused
        if not self._is_fenced and any(map(self.has_other, self.spec.inputs)):
            self._fence()
        before = self._checkpoint.places
        places, over = self._followed(before)
        if over:
            return over
        if any(places[key].relations != before[key].relations for key in places):
            positions = self._checkpoint.positions
            self._checkpoint = replace(self._checkpoint, places=places)
            acquire_inputs(self._store, self.spec, positions, self._capability, places)
            # A switch must be the same after a crash, so it is recorded before its rows are read.
            self._record()
            self._switched, self._is_clean = {}, False
        if not self._is_clean and not self._switched:
            remove_switches(self._store.location, self.spec.name, self._capability.epoch)
            self._is_clean = True
        for spec in self.spec.inputs:
            key, place = spec.state_key, places[spec.state_key]
            if place.switch is not None and key not in self._switched:
                position, epoch = self._checkpoint.position(spec), self._capability.epoch
                self._switched[key] = write_switch(self._store, self.spec, spec, place, position, epoch)
        return ()

    def has_other(self, spec: InputSpec) -> bool:
        """Return whether the name of the source that an input has read belongs to another relation now."""
        place, known = self._checkpoint.places[spec.state_key], self._store.collection(spec.source)
        is_read = place.relation and spec.state_key in self._checkpoint.positions
        return bool(is_read and spec.follows and known is not None and known.relation != place.relation)

    @property
    def waits_for_relation(self) -> bool:
        """Return whether an input has read a dropped relation, and no relation with rows has the name yet."""
        places = self._checkpoint.places
        return any(
            self.has_other(spec) and way_to(self._store, self.spec, spec, places[spec.state_key]) == "wait"
            for spec in self.spec.inputs
        )

    def _fence(self) -> None:
        """Open all shards at the endpoint, which from then on refuses to store rows of earlier runs.

        Before that, an earlier run that was paused may store rows of the former relation, although its metadata commit
        fails. The switch must retract these rows, too.
        """
        position = min(self._checkpoint.positions.values(), default=BEGINNING)
        number = next(self._numbers)
        token = f"{self._capability.id}.{number}"
        transaction = Transaction(number, token, self._capability, self._checkpoint, (), position, Limits())
        self._carry_out(transaction, lambda _: None, time.monotonic(), is_empty=False)
        self._reached = max(self._reached, tick_begin(self._store.timeline.present(), self.spec.tick))
        self._is_fenced = True

    def _followed(self, before: Mapping[str, Place]) -> tuple[dict[str, Place], tuple[str, ...]]:
        """Return the places of inputs after their moves, and the state keys of inputs that must start over."""
        places, over = dict(before), list[str]()
        for spec in self.spec.inputs:
            key, position = spec.state_key, self._checkpoint.position(spec)
            place = places[key] = before[key].arrived(position)
            known = self._store.collection(spec.source)
            if known is None or place.switch is not None or known.relation == place.relation:
                continue
            # the input has read no rows of another relation
            if not place.relation or key not in self._checkpoint.positions:
                places[key] = place._replace(relation=known.relation)
            elif spec.follows or self._store.replaces_nothing(spec.source, place.relation):
                way = way_to(self._store, self.spec, spec, place)
                fate = self._store.describe_fate(spec.source, place.relation)
                if way == "again":
                    self._log.write("info", f"'{spec.name}' reads its source again from the start: {fate}")
                    over.append(key)
                if way == "switch":
                    switch = find_switch(self._store, self.spec, spec, place, position, self._reached)
                    places[key] = place._replace(switch=switch)
                    if switch is not None:
                        self._log.write(
                            "info", f"'{spec.name}' retracts the rows that it has read, and continues: {fate}"
                        )
        return places, tuple(over)

    def begin_again(self, capability: TaskCapability, checkpoint: Checkpoint, beginning: Beginning) -> None:
        """Continue like a task that was just opened."""
        self._switched, self._is_clean, self._references = {}, False, None
        self._capability, self._checkpoint, self.beginning = capability, checkpoint, beginning

    def earliest(self, inputs: Inputs) -> int | None:
        """Return the least adjusted timestamp of a stored document that is not processed yet; None if missing."""
        return self._earliest(inputs, self.spec.inputs)

    def _earliest(self, inputs: Inputs, specs: Sequence[InputSpec]) -> int | None:
        clocks = [inputs.earliest(spec, self._checkpoint.position(spec)) for spec in specs]
        return min((clock for clock in clocks if clock is not None), default=None)

    def earliest_cause(self, inputs: Inputs) -> int:
        """Return the earliest adjusted timestamp of a stored or future document that the cycle must still process."""
        to_come = earliest_to_come(self.spec.inputs, self.spec.tick, inputs.uppers)
        stored = self.earliest(inputs)
        return to_come if stored is None else min(stored, to_come)

    def waiting(self) -> list[PendingDocuments]:
        """Return the pending documents and refills of each input.

        A refill that only waits for other refills is left out, because these are listed.
        """
        checkpoint, refills = self._checkpoint, self._transactor.refills
        positions = {**checkpoint.positions, **dict.fromkeys(self._transactor.suspended, END_OF_TIME)}
        waiting = find_pending(self._store, self.spec, positions, checkpoint.places, self._switched)
        complete = self._complete_refills()
        for spec in self.spec.inputs:
            limit = refills.get(spec.state_key)
            if limit is not None and (checkpoint.position(spec) < limit or spec.state_key in complete):
                waiting.append(PendingDocuments(self.spec.name, spec.name, 0, 0, limit - 1))
        return waiting

    def next_step(self, inputs: Inputs, earliest: int, now: int) -> Step | None:
        """Return the next step, as far as frontiers allow; None if neither documents nor time can advance.

        Args:
            inputs: the result of `look`.
            earliest: timestamp before which no task of the cycle publishes a document; `now` for a task without a
                cycle.
            now: timestamp up to which the sources are sealed.

        Raises:
            FlowError: no transaction can run, or a source cannot be read.
            ViewError: a materialized view that the task reads has an error, and everything before it is processed.
        """
        if self.beginning.error:
            raise self.beginning.error
        horizon = Horizon(inputs.uppers, earliest, now)
        first = partial(self._earliest, inputs)
        choose = next_step_per_input if self.beginning.is_per_input else next_step
        suspended = self._transactor.suspended
        specs = [spec for spec in self.spec.inputs if spec.state_key not in suspended]
        step = choose(by_priority(specs, self.spec.tick), self._checkpoint.position, first, horizon)
        if step is None and inputs.failures:
            raise min(inputs.failures.items())[1]
        return step or self._refilling_step(specs, horizon) or self._replacing_step()

    def _refilling_step(self, specs: Sequence[InputSpec], horizon: Horizon) -> Step | None:
        """Return a step that ends a refill for which no documents are left; None without such a refill.

        Otherwise a source that has stopped would keep former rows of another source in the endpoint.
        """
        refills = self._transactor.refills
        for spec in specs:
            limit = refills.get(spec.state_key)
            if limit is not None and self._checkpoint.position(spec) < limit:
                bound = Level([spec], self.spec.tick).bound(horizon)
                if bound >= limit:
                    return Step((spec,), bound, bound)
        return None

    def _replacing_step(self) -> Step | None:
        """Return a step that replaces the rows of a complete refill and moves no input; None without such a refill."""
        complete = self._complete_refills()
        for spec in self.spec.inputs:
            if spec.state_key in complete:
                position = self._checkpoint.position(spec)
                return Step((spec,), position, position)
        return None

    def _complete_refills(self) -> Collection[str]:
        """Return the inputs (by `state_key`) whose refills can replace their rows."""
        return self._transactor.complete({spec.state_key: self._checkpoint.position(spec) for spec in self.spec.inputs})

    def take(self, inputs: Inputs, step: Step, progress: Callable[[int], None]) -> Committed:
        """Run one transaction: a step, or the part of a step that the limits allow.

        Args:
            inputs: the result of `look`.
            step: the result of `next_step`.
            progress: called with the number of processed documents, first with 0; not called if only time moves.

        Raises:
            FlowError: the transaction failed; nothing was committed.
        """
        tick, bound, begun = self.spec.tick, step.bound, time.monotonic() - self._look_seconds
        if step.has_documents or self._transactor.has_to_execute:
            self._record_relations(step.behind)
        reads, position = self.reads(inputs, step.behind, bound), min(map(self._checkpoint.position, step.behind))
        waiting = sum((inputs.left[read.index] for read in reads if read.index in inputs.left), size_of(reads))
        self.backlog = waiting.documents
        while True:
            limits = self._pace.limits
            if step.has_documents:
                limits = self._transactor.prepare(waiting, self.shards, limits)
            end = choose_end(reads, position, bound, tick, limits)
            if step.has_documents and _logger.isEnabledFor(logging.DEBUG):
                text = f"{counted(waiting.documents, 'waiting document')} up to {format_rfc3339(bound)}"
                limit = f"at most about {limits.documents:,} at once"
                _logger.debug("%s: extent up to %s; %s, %s", self.spec.name, format_rfc3339(end), text, limit)
            transaction = self.begin(inputs, step.behind, end, limits)
            self._reached = max(self._reached, end)
            try:
                committed = self._carry_out(transaction, progress, begun, is_empty=step.first >= end)
            except LostError as error:
                size = size_of(transaction.reads)
                self._pace.slow_down(size)
                smaller = choose_end(reads, position, bound, tick, self._pace.limits)
                if smaller >= end or is_one_tick(transaction.reads, tick):
                    raise LostError(
                        f"{error.message}; the transaction had the smallest possible size, about"
                        f" {counted(size.documents, 'document')} of {counted(size.bytes, 'byte')} as stored",
                        hint="; ".join(filter(None, ("give workers more memory, or use a shorter tick", error.hint))),
                    ) from error
                self._log.write("warn", f"{error}; retrying with half as many documents")
                begun = time.monotonic()
                continue
            self._pace.speed_up()
            return committed

    def _record_relations(self, specs: Sequence[InputSpec]) -> None:
        """Commit the relations of inputs that have no position yet, before an endpoint stores their rows.

        The endpoint commits before the data folder. If the run ends between the two commits, the next run must know the
        relation of the rows in the endpoint. A derivation commits its output together with its positions.
        """
        keys = {spec.state_key for spec in specs} - self._checkpoint.positions.keys()
        if keys and not isinstance(self.spec, DerivationSpec):
            self._checkpoint = self._checkpoint.moved(dict.fromkeys(keys, BEGINNING))
            self._record()

    def _record(self) -> None:
        """Commit the checkpoint durably, because the endpoint then commits rows that depend on the checkpoint."""
        self._capability = self._store.commit_task(self._capability, self.commit_of(self._checkpoint, Prepared()))
        self._store.changes.settle()

    def reads(self, inputs: Inputs, specs: Sequence[InputSpec], end: int) -> tuple[SourceRead, ...]:
        """Return the reads of inputs up to an adjusted timestamp; inputs that have reached it have none."""
        positions = [(spec, self._checkpoint.position(spec)) for spec in specs]
        return tuple(inputs.read(spec, position, end) for spec, position in positions if position < end)

    def begin(self, inputs: Inputs, specs: Sequence[InputSpec], end: int, limits: Limits) -> Transaction:
        """Return an attempt at a transaction.

        Args:
            inputs: the result of `look`.
            specs: inputs that advance to its end.
            end: end of the transaction.
            limits: limits for cutting its work.
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

    def _carry_out(
        self, transaction: Transaction, progress: Callable[[int], None], planned: float, *, is_empty: bool
    ) -> Committed:
        """Execute and commit a transaction that was planned since `planned`; in an empty one, only time moves."""
        begun = time.monotonic()
        prepared = Prepared()
        if not is_empty:
            progress(0)
        if not is_empty or self._transactor.has_to_execute:
            prepared = self._transactor.execute(transaction, progress)
        executed = time.monotonic()
        taking_part = [self.spec.inputs[read.index] for read in transaction.reads]
        checkpoint = self._checkpoint.after(taking_part, transaction.end, prepared)
        if prepared.cleared:
            checkpoint = checkpoint.moved(dict.fromkeys(prepared.cleared, BEGINNING), prepared)
        if prepared.stepped_back:
            checkpoint = self._checkpoint.moved(prepared.stepped_back, prepared)
        capability = self._transactor.commit(transaction, prepared, self.commit_of(checkpoint, prepared))
        phases = Phases(begun - planned, executed - begun, time.monotonic() - executed)
        return self.moved(capability, checkpoint, prepared, transaction.reads, phases)

    def commit_of(self, checkpoint: Checkpoint, prepared: Prepared) -> TaskCommit:
        """Return the task's part of a commit of `prepared` at a checkpoint."""
        return TaskCommit(
            positions=checkpoint.positions,
            places=checkpoint.places,
            shards=prepared.tokens,
            documents_in=prepared.documents_in,
            documents_out=prepared.documents_out,
            needs=needs(self.spec.inputs, self.spec.tick, checkpoint.positions),
            may_step_back=bool(prepared.stepped_back or prepared.cleared),
            work=prepared.work,
            chains=self._checkpoint.chain_moves(prepared),
        )

    def moved(
        self,
        capability: TaskCapability,
        checkpoint: Checkpoint,
        prepared: Prepared,
        reads: Sequence[SourceRead],
        phases: Phases,
    ) -> Committed:
        """Continue from a commit.

        Args:
            capability: the new capability to run the task.
            checkpoint: the committed checkpoint.
            prepared: the committed work.
            reads: the reads of the transaction.
            phases: duration of each phase.
        """
        before, self._capability, self._checkpoint = self._checkpoint, capability, checkpoint
        if moves := before.chain_moves(prepared):
            if self._references is None:
                self._references = ObjectReferences(before.chains)
            # Only this run has known these objects under its epoch, and no chain names them from this commit on.
            if unnamed := self._references.move(before.chains, moves):
                with suppress(OSError, ObjectStoreError):  # the next start of the task removes them
                    blobs_of(self._store.location).delete(unnamed)
        documents_in, documents_out, seconds = prepared.documents_in, prepared.documents_out, sum(phases[1:])
        if not documents_in:
            return Committed(documents_in, documents_out, seconds, phases=phases)
        upper = format_rfc3339(capability.frontiers.get(self.spec.name, max(checkpoint.positions.values())))
        counts = {"documents_in": documents_in, "documents_out": documents_out, "seconds": seconds}
        self._log.write("info", "committed", **counts, upper=upper)
        return Committed(documents_in, documents_out, seconds, size_of(reads).bytes, prepared.bytes_out, phases)

    def fail(self, error: FlowError) -> None:
        """Record the error that stopped the task.

        Raises:
            FencedError: another run has fenced this run, so this run may not record the error.
        """
        self.error = error
        self._log.write("error", str(error))
        if isinstance(error, UnacceptedError):  # the recorded edit shows the error until the edit is accepted or undone
            return
        with suppress(DiskFullError, BusyError):  # the error is reported, but not recorded
            self._store.note_task(self._capability, Stopped(orjson.dumps(error.to_json()).decode()))

    def cancel(self) -> None:
        """Make a running transaction in another thread fail."""
        self._transactor.cancel()

    def release(self) -> None:
        """Release the capability to run."""
        with suppress(DiskFullError, BusyError):  # the next holder fences it anyway
            self._store.release_task(self._capability)
