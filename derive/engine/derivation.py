"""Derivations: the transactor that runs lambdas, and publishes their documents to shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from derive.engine.edits import edits_of, fingerprints_of, reset_command
from derive.engine.rereading import carried_over, find_rereadings, renaming_of
from derive.engine.transactor import Opened, Prepared, Transaction
from derive.errors import FencedError, FlowError, OwnedError, StorageError, TaskError
from derive.protocol.collection import quarantine_name, quarantine_spec
from derive.protocol.definition_text import Definition, definition_of
from derive.protocol.derive import AppliesMigrations
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec, TransformSpec
from derive.shard.plan import Plan, Shape
from derive.shard.progress import PartBegin, progress_folder, raise_first, work_of
from derive.shard.state import (
    current_epoch,
    publish_epoch,
    remove_objects,
    remove_shards,
    remove_state,
    shadow_states,
    shard_folder,
    task_folder,
)
from derive.shard.state_store import read_state
from derive.storage.capability.table import TaskCapability
from derive.storage.metadata.chain import paths_of
from derive.storage.metadata.descriptions import CollectionUpdate, Derived, TaskCommit, TaskState
from derive.storage.roles import Folder, Runnable
from derive.time import BEGINNING
from derive.time.extent import Limits, Load, Size, size_of, slice_borders
from derive.time.positions import Place, offset_of

if TYPE_CHECKING:
    from derive.engine.executor import Executor  # imports Arrow


def default_shards(spec: DerivationSpec, cores: int) -> int:
    """Return the number of shards of a task that has never run.

    A task on a cycle has one shard, because the steps of a cycle are sequential.
    """
    return 1 if has_feedback(spec) else cores


def has_feedback(spec: DerivationSpec) -> bool:
    """Return whether a derivation is on a cycle: it reads itself, directly or through other derivations."""
    return any(read.feedback for read in spec.inputs)


def keeps_state(spec: DerivationSpec) -> bool:
    """Return whether a result can depend on several documents: through a shuffle key, state or feedback."""
    state = find_runtime(spec.connector).keeps_state(spec)
    return state or any(transform.shuffle.kind != "any" or transform.input.feedback for transform in spec.transforms)


def shape_of(spec: DerivationSpec, shards: int) -> Shape:
    """Return how transactions of this task are cut."""
    if not keeps_state(spec):
        return "slices"
    return "single" if shards == 1 else "sharded"


@dataclass(slots=True)
class DerivationFacts:
    """Facts about a derivation found during a run.

    Attributes:
        is_shared: whether several shards have published documents with the same key in one tick.
        definition: the definition of the derivation; None before the first commit.
    """

    is_shared: bool = False
    definition: Definition | None = None


@dataclass(frozen=True, slots=True)
class Derivation:
    """The transactor of one derivation.

    Attributes:
        store: the data folder.
        executor: executes transactions.
        spec: the derivation.
        shards: number of shards if it has never run.
        shadow: digest of the definition of the shadow that it has or is; empty for none.
        facts: facts found during this run.
    """

    store: Runnable
    executor: Executor
    spec: DerivationSpec
    shards: int
    shadow: str = ""
    facts: DerivationFacts = field(default_factory=DerivationFacts, compare=False)

    @property
    def has_to_execute(self) -> bool:
        """Return False: a transaction without documents publishes nothing."""
        return False

    @property
    def refills(self) -> Mapping[str, int]:
        """Return no refills: a derivation publishes to one collection only, which starts over at once."""
        return {}

    def complete(self, positions: Mapping[str, int]) -> tuple[str, ...]:
        """Return no inputs: a derivation has no refills."""
        return ()

    @property
    def suspended(self) -> tuple[str, ...]:
        """Return no inputs: an error of one input stops all of them."""
        return ()

    def open(self, *, if_free: bool = False) -> Opened:
        """Fence earlier runs of the task, and remove their uncommitted files and state.

        If the collection belongs to another writer, the opened task has this error, and writes nothing.
        """
        store, spec, refused, outputs = self.store, self.spec, None, [self.spec.name]
        try:
            if spec.quarantines:
                store.create(quarantine_spec(spec.name))
                outputs.append(quarantine_name(spec.name))
            capability, state = store.acquire_task(spec.name, self.shards, outputs, if_free=if_free, shadow=self.shadow)
        except OwnedError as error:
            refused = OwnedError(error.message, position=spec.collection.position, hint=error.hint)
            capability, state = store.acquire_task(spec.name, self.shards, if_free=if_free, shadow=self.shadow)
        epoch = capability.epoch
        publish_epoch(store.root, state.folder, epoch)
        if refused is None:
            for collection in (spec.name, *store.internal_collections(spec.name)):
                store.garbage.collect_uncommitted(collection, (spec.name, epoch))
        remove_shards(store.root, state.folder, state.shards, epoch)
        self._remove_former_states()
        for shadow in store.shadows.leftovers(spec.name):
            store.shadows.settle(shadow, (spec.name, epoch))
        shutil.rmtree(progress_folder(store.root, spec.name), ignore_errors=True)
        traveled = [shard_folder(store.root, state.folder, number, state.shards) for number in state.chains]
        remove_objects(store.location, state.folder, epoch, keep=paths_of(state.chains.values()), traveled=traveled)
        return self._opened(capability, state, refused)

    def _remove_former_states(self) -> None:
        """Remove the states of former shadows, and the state that a swap has replaced."""
        store, name = self.store, self.spec.name
        folders = [name, *shadow_states(store.root, name)]
        known = store.task_capabilities.epochs(folders)
        published = {folder: current_epoch(task_folder(store.root, folder)) or 0 for folder in folders}
        homes = store.shadows.homes(name)  # read after the epochs: a shadow that begins later has a later epoch
        for folder in folders:
            if folder not in homes:
                with suppress(FencedError):  # it is the state of a new shadow
                    remove_state(store.root, folder, store.location, max(known.get(folder, 0), published[folder]))

    def _opened(self, capability: TaskCapability, state: TaskState, refused: OwnedError | None) -> Opened:
        """Return the opened task, with the present names of the transforms."""
        store, spec = self.store, self.spec
        renamed = renaming_of(spec, state)
        if renamed is not None:
            state = carried_over(state, renamed)
        unaccepted = find_rereadings(store, spec, state)
        reset = reset_command(store, spec.name)
        return Opened(
            capability=capability,
            state=state,
            places={transform.input.state_key: place_of(spec, transform) for transform in spec.transforms},
            fingerprints=fingerprints_of(spec),
            edits=edits_of(
                spec,
                state,
                capability.frontiers.get(spec.name),
                reset=reset,
                reported={edit.former for edit in unaccepted if edit.former is not None},
            ),
            error=refused or misplaced(spec, state, reset) or self._check_migrations(state, capability.epoch),
            unaccepted=unaccepted,
            renamed=renamed,
            reset=reset,
        )

    def _check_migrations(self, state: TaskState, epoch: int) -> FlowError | None:
        return check_migrations(self.store, self.spec, state, epoch, self.store.cache)[1]

    def prepare(self, waiting: Size, shards: int, limits: Limits) -> Limits:
        """Prepare the executor."""
        parts = 1 if shape_of(self.spec, shards) == "single" else shards
        return self.executor.prepare(Load(self.spec.name, waiting, parts), limits)

    def execute(self, transaction: Transaction, progress: Callable[[int], None]) -> Prepared:
        """Run the lambdas on workers, and write their documents."""
        messages = self.executor.execute(self.plan(transaction), progress)
        self.facts.is_shared |= any(message.is_shared for message in messages)
        raise_first(messages)
        return Prepared(
            documents_in=sum(message.documents_in for message in messages),
            segments=tuple(segment for message in messages for segment in message.segments),
            tokens={number: name for message in messages for number, name in message.shards.items()},
            rejected=tuple(segment for message in messages for segment in message.rejected),
            work=work_of(messages, [transform.input.state_key for transform in self.spec.transforms]),
            links={number: links for message in messages for number, links in message.links.items()},
        )

    def plan(self, transaction: Transaction) -> Plan:
        """Return the plan of a transaction, for workers."""
        checkpoint, reads, limits = transaction.checkpoint, transaction.reads, transaction.limits
        shape = shape_of(self.spec, checkpoint.shards)
        upper = transaction.capability.frontiers[self.spec.name]
        slices: tuple[int, ...] = ()
        if shape != "single":
            slices = slice_borders(reads, transaction.end, self.spec.tick, upper, checkpoint.shards, limits)
        return Plan(
            spec=self.spec,
            root=self.store.root,
            location=self.store.location,
            token=transaction.token,
            epoch=transaction.capability.epoch,
            transaction=transaction.number,
            shape=shape,
            shards=checkpoint.shards,
            tokens=checkpoint.tokens,
            clamp=upper,
            end=transaction.end,
            reads=reads,
            slices=slices,
            is_conflict_free=not self.facts.is_shared,
            is_small=limits.is_small(size_of(reads)),
            home=checkpoint.home,
            chains=checkpoint.chains,
            cache=self.store.cache,
        )

    def commit(self, transaction: Transaction, prepared: Prepared, commit: TaskCommit) -> TaskCapability:
        """Commit segments, state, checkpoint and `upper` together."""
        capability = transaction.capability
        written = [*prepared.segments, *prepared.rejected]
        last = max((segment.clock_max for segment in written), default=BEGINNING)
        upper = max(capability.frontiers[self.spec.name], transaction.end, last + 1)
        return self.store.commit_task(capability, self.recorded(transaction, commit), self.updates(prepared, upper))

    def updates(self, prepared: Prepared, upper: int) -> list[CollectionUpdate]:
        """Return the updates of the derived collection and of its quarantine, up to the same time."""
        updates = [CollectionUpdate(self.spec.name, prepared.segments, upper)]
        if self.spec.quarantines:
            updates.append(CollectionUpdate(quarantine_name(self.spec.name), prepared.rejected, upper))
        return updates

    def recorded(self, transaction: Transaction, commit: TaskCommit, later: Sequence[PartBegin] = ()) -> TaskCommit:
        """Return a commit that also records the facts that a replay needs.

        Args:
            transaction: the transaction.
            commit: the commit without these facts.
            later: begins of the parts of the past after the first, in order.
        """
        if self.facts.definition is None:
            self.facts.definition = definition_of(self.spec)
        definition, inputs = self.facts.definition, self.spec.inputs
        first = PartBegin(
            {item.index: transaction.checkpoint.position(item) for item in inputs},
            transaction.capability.frontiers[self.spec.name],
        )
        parts = [
            (part.upper, {item.state_key: part.positions[item.index] for item in inputs}) for part in (first, *later)
        ]
        ends = [*(begins for _, begins in parts[1:]), commit.positions]
        is_one_level = len({item.priority for item in inputs}) == 1
        derived = tuple(
            Derived(definition, is_one_level and _is_above(clamp, begins, end), clamp, begins)
            for (clamp, begins), end in zip(parts, ends, strict=True)
        )
        return replace(commit, derived=derived)

    def cancel(self) -> None:
        """Cancel the executor's work."""
        self.executor.cancel()


def _is_above(clamp: int, begins: Mapping[str, int], ends: Mapping[str, int]) -> bool:
    """Return whether no input was read from below a timestamp."""
    return all(begin >= clamp or ends.get(key, begin) <= begin for key, begin in begins.items())


def place_of(spec: DerivationSpec, transform: TransformSpec) -> Place:
    """Return the relation and the shuffle that a transform's position refers to."""
    shuffle = transform.shuffle
    ways = {"any": "any", "key": f"key [{', '.join(shuffle.key)}]", "lambda": shuffle.script and shuffle.script.text}
    return Place(transform.input.source, offset_of(transform.input, spec.tick), ways[shuffle.kind] or "")


def misplaced(spec: DerivationSpec, state: TaskState, reset: str) -> TaskError | None:
    """Return the error of a task whose edited shuffle separates keys from their state; None otherwise."""
    for transform in spec.transforms:
        before, now = state.places.get(transform.input.state_key), place_of(spec, transform)
        if state.shards > 1 and state.tokens and before and before.shuffle and before.shuffle != now.shuffle:
            return TaskError(
                f"'{transform.name}' of '{spec.name}' was shuffled by {before.shuffle}, and is now shuffled by"
                f" {now.shuffle}: the state of its {state.shards} shards is divided by the former shuffle",
                position=transform.position,
                hint=f"shuffle as before, or start over: {reset}",
            )
    return None


def check_migrations(
    store: Folder, spec: DerivationSpec, state: TaskState, epoch: int | None = None, cache: Path | None = None
) -> tuple[Sequence[str], FlowError | None]:
    """Compare the migrations of a task with the migrations that were applied to its shards.

    Shards without state would apply edited migrations, so the task must not process any document (law L1).

    Args:
        store: the data folder.
        spec: the derivation.
        state: its recorded state.
        epoch: epoch of the run that opens the task; None for other readers.
        cache: folder of the caches of states that travel; None for none.

    Returns:
        The texts of the migrations that were applied to the most advanced shard; the error of an applied migration
        that was edited, moved or removed, or of a damaged database, or None.

    Raises:
        HeldError: another process holds the folder of a shard.
    """
    runtime = find_runtime(spec.connector)
    longest: Sequence[str] = ()
    if not isinstance(runtime, AppliesMigrations):
        return longest, None
    for number in sorted(state.tokens):
        try:
            with read_state(store, state, number, epoch=epoch, cache=cache) as database:
                applied = () if database is None else runtime.applied_migrations(database)
        except StorageError as exc:
            if exc.heals:
                raise
            return longest, exc
        longest = max(longest, applied, key=len)
        error = runtime.find_edited_migration(spec, applied)
        if error is not None:
            return longest, error
    return longest, None
