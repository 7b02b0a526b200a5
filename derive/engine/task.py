"""A task: one derivation's progress, transaction after transaction.

A transaction is planned, carried out by an executor, and committed in one metadata transaction; an error before that
leaves nothing behind but garbage and the reason, which is recorded with the task.
"""

from __future__ import annotations

import itertools
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import orjson

from derive.document.clock import format_rfc3339
from derive.engine.edits import edits_of, fingerprints_of
from derive.engine.executor import Executor
from derive.engine.inputs import Inputs, look
from derive.engine.plan import misplaced, place_of, shape_of
from derive.engine.rights import hold
from derive.engine.waiting import Waiting, find_waiting
from derive.errors import BusyError, DiskFullError, FlowError, LostError
from derive.protocol.specs import DerivationSpec, InputSpec
from derive.shard.message import Message
from derive.shard.plan import Plan, Shape
from derive.shard.progress import progress_folder
from derive.shard.state import publish_epoch, remove_shards
from derive.storage.metadata.capability import TaskCapability
from derive.storage.metadata.descriptions import CollectionUpdate, Edited, Stopped, TaskCommit
from derive.storage.roles import Runnable
from derive.storage.task_log import TaskLog
from derive.time.cycle import earliest_cause
from derive.time.extent import choose_end, is_one_tick, size_of, slice_borders
from derive.time.frontier import BEGINNING, END_OF_TIME, tick_begin
from derive.time.limits import Limits
from derive.time.needs import compacted, lost, needs
from derive.time.pace import Pace
from derive.time.positions import current_positions


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that is over.

    Attributes:
        documents_in: source documents it processed.
        documents_out: documents it published.
        seconds: how long it took.
    """

    documents_in: int
    documents_out: int
    seconds: float


class Task:
    """One derivation, with the exclusive right to write its collection.

    Args:
        store: the data folder.
        spec: the derivation.
        shards: how many shards it gets if it has never run.
        limits: how its work is cut.

    Attributes:
        spec: the derivation.
        shards: how many it has.
        error: why it stopped, if it did.
        begins: transforms that are new to a task that has run before, and read their source from its start.
        compacted: transforms that begin with a history that was compacted, each with the `since` of its source.
        edits: what was edited under its output since the run before.
    """

    def __init__(self, store: Runnable, spec: DerivationSpec, shards: int, limits: Limits) -> None:
        self._store = store
        self._pace = Pace(limits)
        self._transactions = itertools.count(1)
        self.spec = spec
        self._capability: TaskCapability
        self._capability, state = store.acquire_task(spec.name, shards, [spec.name])
        self.shards = state.shards
        self.error: FlowError | None = None
        self._log = TaskLog(store.root, spec.name)
        with publish_epoch(store.root, spec.name, self._capability.epoch):
            store.garbage.collect_uncommitted(spec.name)
            remove_shards(store.root, spec.name, self.shards)
            shutil.rmtree(progress_folder(store.root, spec.name), ignore_errors=True)
        self._positions = current_positions(spec.inputs, spec.tick, state.positions, state.places)
        self._places = {
            **state.places,
            **{each.input.state_key: place_of(spec, each) for each in spec.transforms},
        }
        self._tokens = dict(state.tokens)
        self.begins = tuple(each for each in spec.inputs if state.positions and each.state_key not in self._positions)
        rights = hold(store, spec, self._positions, self._capability)
        self.compacted = tuple(compacted(spec.inputs, self._positions, rights))
        fingerprints, edits = fingerprints_of(spec), edits_of(spec, state, self.upper)
        if (fingerprints, edits) != (state.fingerprints, state.edits):
            store.note_task(self._capability, Edited(fingerprints, edits))
        self.edits = tuple(edit for edit in edits if edit not in state.edits)
        self._unfit = misplaced(spec, state) or lost(spec.name, spec.inputs, spec.tick, self._positions, rights)

    @property
    def upper(self) -> int:
        """The derived collection's `upper`."""
        return self._capability.frontiers[self.spec.name]

    @property
    def shape(self) -> Shape:
        """How its transactions are cut."""
        return shape_of(self.spec, self.shards)

    def position(self, transform: InputSpec) -> int:
        """The adjusted clock below which a transform has processed everything."""
        return self._positions.get(transform.state_key, BEGINNING)

    def look(self) -> Inputs:
        """What there is to read now."""
        return look(self._store, self.spec, self._positions)

    def earliest(self, inputs: Inputs) -> int | None:
        """The least adjusted clock of a stored document that is not processed yet; None if there is none."""
        found = [inputs.earliest(each, self.position(each)) for each in self.spec.inputs]
        return min((each for each in found if each is not None), default=None)

    def earliest_cause(self, inputs: Inputs) -> int:
        """The least adjusted clock of a document, stored or still to come, that it has yet to process on its cycle."""
        return earliest_cause(self.spec.inputs, self.spec.tick, inputs.uppers, self.earliest(inputs))

    def waiting(self) -> list[Waiting]:
        """What each transform still has to process."""
        return find_waiting(self._store, self.spec, self._positions)

    def advance(
        self,
        executor: Executor,
        inputs: Inputs,
        frontier: Callable[[InputSpec], int],
        progress: Callable[[int], None],
    ) -> Committed | None:
        """Run one transaction as far as frontiers allow.

        It belongs to the highest priority that has a document to process. Where none has, time moves as far as all of
        them allow: what they publish later has its own time, and no later one.

        Args:
            executor: carries it out.
            inputs: what `look` has seen.
            frontier: for a transform, the adjusted clock below which its source is final.
            progress: told how many documents have been processed, with 0 to begin with; not called where there are
                none, and only time moves.

        Returns:
            What was done; None if nothing moved, not even time.

        Raises:
            FlowError: the transaction failed; nothing of it was committed.
        """
        if self._unfit:
            raise self._unfit
        tick = self.spec.tick
        bounds: list[int] = []
        for level in sorted({each.priority for each in self.spec.inputs}, reverse=True):
            transforms = [each for each in self.spec.inputs if each.priority == level]
            bound = tick_begin(min(frontier(each) for each in transforms), tick)
            positions = {each.index: self.position(each) for each in transforms if self.position(each) < bound}
            found = [inputs.earliest(self.spec.inputs[index], begin) for index, begin in positions.items()]
            first = min((each for each in found if each is not None), default=END_OF_TIME)
            if first < bound:
                return self._transact(executor, inputs, positions, bound, first, progress)
            bounds.append(bound)
        bound = min(bounds)
        positions = {each.index: self.position(each) for each in self.spec.inputs if self.position(each) < bound}
        return self._transact(executor, inputs, positions, bound, END_OF_TIME, progress) if positions else None

    def _transact(
        self,
        executor: Executor,
        inputs: Inputs,
        positions: Mapping[int, int],
        bound: int,
        first: int,
        progress: Callable[[int], None],
    ) -> Committed:
        tick, begin = self.spec.tick, min(positions.values())
        reads = [inputs.read(self.spec.inputs[index], position, bound) for index, position in positions.items()]
        while True:
            end = choose_end(reads, begin, bound, tick, self._pace.limits)
            begins = {index: position for index, position in positions.items() if position < end}
            plan = self._plan(inputs, begins, end)
            try:
                committed = self._carry_out(executor, plan, progress, is_empty=first >= end)
            except LostError as error:
                size = size_of(plan.reads)
                self._pace.slow_down(size)
                smaller = choose_end(reads, begin, bound, tick, self._pace.limits)
                if smaller >= end or is_one_tick(plan.reads, tick):
                    raise LostError(
                        f"{error.message}; the transaction was as small as one can be, about {size.documents:,}"
                        f" documents of {size.bytes:,} bytes as stored",
                        hint="; ".join(filter(None, ("give workers more memory, or ticks less time", error.hint))),
                    ) from error
                self._log.write("warn", f"{error}; trying again with half as many documents")
                continue
            self._pace.speed_up()
            return committed

    def _carry_out(
        self, executor: Executor, plan: Plan, progress: Callable[[int], None], *, is_empty: bool
    ) -> Committed:
        """Execute a transaction and commit it; where it is empty, only time moves."""
        begun = time.monotonic()
        messages: list[Message] = []
        if not is_empty:
            executor.start()
            begun = time.monotonic()
            progress(0)
            messages = executor.execute(plan, progress)
        self._raise_first(messages)
        commit = self._commit(plan, messages)
        committed = Committed(commit.documents_in, commit.documents_out, time.monotonic() - begun)
        if messages:
            self._log.write("info", "committed", **asdict(committed), upper=format_rfc3339(self.upper))
        return committed

    def _plan(self, inputs: Inputs, positions: Mapping[int, int], end: int) -> Plan:
        reads = tuple(inputs.read(self.spec.inputs[index], begin, end) for index, begin in positions.items())
        slices: tuple[int, ...] = ()
        limits = self._pace.limits
        if self.shape != "single":
            slices = slice_borders(reads, end, self.spec.tick, self.upper, self.shards, limits)
        return Plan(
            spec=self.spec,
            root=self._store.root,
            token=str(uuid.uuid4()),
            epoch=self._capability.epoch,
            transaction=next(self._transactions),
            shape=self.shape,
            shards=self.shards,
            tokens=self._tokens,
            clamp=self.upper,
            end=end,
            reads=reads,
            slices=slices,
            is_small=limits.is_small(size_of(reads)),
        )

    @staticmethod
    def _raise_first(messages: Sequence[Message]) -> None:
        errors = [FlowError.from_json(message.error) for message in messages if message.error]
        if errors:  # the same one whatever came first, and one that will not go away before one that may
            raise min(errors, key=lambda error: (error.heals, orjson.dumps(error.to_json())))

    def _commit(self, plan: Plan, messages: Sequence[Message]) -> TaskCommit:
        segments = [segment for each in messages for segment in each.segments]
        shards = {number: name for message in messages for number, name in message.shards.items()}
        taking_part = [self.spec.inputs[read.index] for read in plan.reads]
        positions = {**self._positions, **{transform.state_key: plan.end for transform in taking_part}}
        commit = TaskCommit(
            positions=positions,
            places=self._places,
            shards=shards,
            documents_in=sum(each.documents_in for each in messages),
            documents_out=sum(each.documents for each in segments),
            needs=needs(self.spec.inputs, self.spec.tick, positions),
        )
        last = max((each.clock_max for each in segments), default=BEGINNING)
        upper = max(self.upper, plan.end, last + 1)
        update = CollectionUpdate(self.spec.name, segments, upper)
        self._capability = self._store.commit_task(self._capability, commit, [update])
        self._positions = positions
        self._tokens.update(shards)
        return commit

    def fail(self, error: FlowError) -> None:
        """Record why the task stopped.

        Raises:
            FencedError: another run has taken over, and how it does is no longer for this one to say.
        """
        self.error = error
        self._log.write("error", str(error))
        with suppress(DiskFullError, BusyError):  # then it cannot be recorded, and is only told
            self._store.note_task(self._capability, Stopped(orjson.dumps(error.to_json()).decode()))

    def release(self) -> None:
        """Give up the right to run."""
        with suppress(DiskFullError, BusyError):  # the next holder supersedes it anyway
            self._store.release_task(self._capability)
