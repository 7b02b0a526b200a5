"""Capabilities to read, to write, and to run a task, and the operations on them.

Capabilities are durable, are checked at every use, and have an identifier that another process can use. A capability
that expires is committed without a sync, because a loss of power ends such a capability.

A task keeps a read capability on each of its sources after the end of a run. So a task that was stopped for a week
still finds its unprocessed documents. The commit that advances the task also moves the capability up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, TypeAlias
from uuid import uuid4

from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FlowError, FrontierError, UsageError
from derive.protocol.specs import CollectionSpec
from derive.storage.capability.renewals import Renewals
from derive.storage.capability.table import (
    RENEW_SECONDS,
    Bound,
    Capability,
    TaskCapability,
    acquire,
    acquire_at,
    acquire_compaction,
    acquire_input,
    clone,
    dataflow_frontiers,
    downgrade,
    epochs_of,
    find,
    index_holder,
    is_late,
    is_live,
    keep,
    other_run,
    readers,
    release,
    release_all,
    release_expired,
    release_inputs,
    replace_inputs,
    require_held,
    require_run,
    run_capabilities,
    run_capability,
    take,
    view_holder,
)
from derive.storage.metadata.collection import advance_upper, frontiers_of, name_of_relation, relation_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.process import is_dead
from derive.storage.metadata.tables import forget_unread, name_of, read_table
from derive.storage.metadata.transaction import Transaction, nothing
from derive.storage.metadata.versions import version_at
from derive.storage.table_types import GlobalId, RowUpdate, TableColumn, TableUpdate
from derive.storage.tables import Tables, write_update
from derive.storage.timeline import assign_up_to
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import KeptHistory

Request: TypeAlias = tuple[Collection[GlobalId], int]
"""The first timestamp that a holder reads, by identifier of the collection."""


@dataclass(frozen=True, slots=True)
class Update:
    """Write to a table, and move the write capability up.

    Attributes:
        capability: write capability.
        updates: row updates with timestamps at or above the capability's frontier, and below the new frontier.
        frontier: the new frontier.
    """

    capability: Capability
    updates: Sequence[RowUpdate]
    frontier: int


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Move a capability up to a later frontier, and renew it."""

    capability: Capability
    frontier: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Restart the lifetime of a capability."""

    capability: Capability


@dataclass(frozen=True, slots=True)
class Release:
    """Drop a capability."""

    capability: Capability


Action: TypeAlias = Update | Downgrade | Renew | Release
"""An operation on a capability."""


class Capabilities:
    """Capabilities to read and write the collections of one data folder.

    Args:
        metadata: metadata database of the data folder.
        tables: tables of the data folder.
    """

    def __init__(self, metadata: Metadata, tables: Tables) -> None:
        self._metadata = metadata
        self._tables = tables
        self._renewals = Renewals(metadata)

    def create(
        self, name: str, columns: Sequence[TableColumn], *, purpose: str | None = None
    ) -> tuple[Capability, Capability]:
        """Create a table, and acquire the capabilities to read and to write it.

        Raises:
            UsageError: the name is in use.
        """
        return self.acquire(self._tables.create(name, columns).id, purpose=purpose)

    def acquire(
        self, collection: GlobalId, *, purpose: str | None = None, lasts: bool = False
    ) -> tuple[Capability, Capability]:
        """Acquire the capabilities to read and to write a collection, at its `since` and at its `upper`.

        The capabilities of a dropped collection have empty frontiers.

        Args:
            collection: identifier of the collection.
            purpose: description of the use, for people.
            lasts: whether the capabilities never expire.

        Raises:
            UsageError: the identifier is unknown.
        """
        return self.acquire_read(collection, purpose=purpose, lasts=lasts), self.acquire_write(
            collection, purpose=purpose, lasts=lasts
        )

    def acquire_read(
        self, collection: GlobalId, at: int | None = None, *, purpose: str | None = None, lasts: bool = False
    ) -> Capability:
        """Acquire the capability to read a collection from a timestamp on, or from its `since`.

        Raises:
            UsageError: the identifier is unknown.
            FrontierError: the contents at that timestamp are compacted.
        """
        identifier = str(uuid4())

        def body(db: Transaction) -> Callable[[], Capability]:
            name = _known(db, collection)
            if at is None:
                return acquire_at(db, "read", name, Bound.SINCE, purpose=purpose, lasts=lasts, identifier=identifier)
            if not db.expect("SELECT 1 FROM collection WHERE name = ? AND since <= ?", (name, at)):
                since, _ = frontiers_of(db, name) or (BEGINNING, BEGINNING)
                raise _compacted(name, since, at)
            capability = acquire(db, "read", name, at, purpose=purpose, lasts=lasts)
            return lambda: capability

        return self._metadata.commit(body, synced=lasts)

    def acquire_write(self, collection: GlobalId, *, purpose: str | None = None, lasts: bool = False) -> Capability:
        """Acquire a capability to write a table from its `upper` on; other writers may exist.

        Raises:
            UsageError: the identifier is unknown.
        """
        identifier = str(uuid4())

        def body(db: Transaction) -> Callable[[], Capability]:
            name = _known(db, collection)
            return acquire_at(db, "write", name, Bound.UPPER, purpose=purpose, lasts=lasts, identifier=identifier)

        return self._metadata.commit(body, synced=lasts)

    def find(self, identifier: str) -> Capability:
        """Return the present state of a capability.

        Raises:
            FencedError: the capability was dropped, or has expired.
        """
        with self._metadata.snapshot() as db:
            return find(db, identifier)

    def clone(self, capability: Capability) -> Capability:
        """Return a new capability of the same kind, on the same collection, at the same frontier.

        Raises:
            FencedError: the capability was dropped, or has expired.
        """
        with self._metadata.transaction() as db:
            release_expired(db)
            return clone(db, capability.id)

    def take(self, identifier: str) -> Capability:
        """Let this process hold a capability that another process has acquired.

        Raises:
            FencedError: the capability was dropped, or has expired.
        """
        with self._metadata.transaction() as db:
            return take(db, identifier)

    def downgrade(self, capability: Capability, frontier: int) -> Capability:
        """Move a capability up to a frontier, and renew it; `since` or `upper` may move up, too.

        Raises:
            FencedError: the capability was dropped, or has expired.
            FrontierError: the capability is already at a later frontier.
        """
        (moved,) = self.perform([Downgrade(capability, frontier)])
        assert moved is not None
        return moved

    def renew(self, *capabilities: Capability) -> None:
        """Restart the lifetime of capabilities.

        Raises:
            FencedError: a capability was dropped, or has expired.
        """
        self.perform([Renew(capability) for capability in capabilities])

    def release(self, *capabilities: Capability) -> None:
        """Drop capabilities; dropped and expired capabilities are skipped.

        The contents of a dropped table are deleted with its last read capability.
        """
        self.perform([Release(capability) for capability in capabilities])

    def update_and_downgrade(self, *updates: Update) -> list[Capability]:
        """Write to tables and move the write capabilities up, in one commit.

        Raises:
            FencedError: a capability was dropped, or has expired.
            FrontierError: a timestamp is out of bounds.
        """
        return [moved for moved in self.perform(updates) if moved is not None]

    def perform(self, actions: Sequence[Action]) -> list[Capability | None]:
        """Perform actions on capabilities in this order, in one commit.

        Returns:
            For each action, the capability after the action; None if the capability was dropped.

        Raises:
            FencedError: a capability was dropped, or has expired.
            FrontierError: a frontier would move back, or a timestamp is out of bounds.
        """

        def body(db: Transaction) -> Callable[[], list[Capability | None]]:
            done = [_perform(db, action) for action in actions]
            if any(isinstance(action, Release) for action in actions):
                forget_unread(db)
            ends = [
                action.frontier
                for action in actions
                if isinstance(action, Update | Downgrade)
                and action.capability.kind == "write"
                and action.frontier < END_OF_TIME
            ]
            assign_up_to(db, max(ends, default=BEGINNING) - 1)
            return lambda: [moved() for moved in done]

        return self._metadata.commit(body, wakes=True)

    # Renewed capabilities

    def keep(
        self, name: str, frontier: int | None = None, table: GlobalId | None = None, *, at: int | None = None
    ) -> KeptCapability:
        """Return a read capability on a collection that is renewed until it is closed.

        Args:
            name: the collection.
            frontier: first timestamp of the read; None for the present contents.
            table: identifier of a table, whatever its present name; None for the collection with the name.
            at: timestamp of the contents, which selects the version of the collection; None for the present version.

        Raises:
            UsageError: nothing is stored under this name.
            FrontierError: the contents at that timestamp are compacted.
        """
        return KeptCapability(self._metadata, self._renewals, name, frontier, table, at)

    @contextmanager
    def keep_all(self) -> Iterator[None]:
        """While the block runs, keep all files that are part of a collection at its begin."""
        with self._metadata.transaction(synced=False) as db:
            query = "SELECT name, since FROM collection WHERE since < ?"
            rows: list[Any] = db.execute(query, (END_OF_TIME,)).fetchall()
            kept = [acquire(db, "read", name, since) for name, since in rows]
        try:
            with ExitStack() as renewing:
                for capability in kept:
                    renewing.enter_context(self._renewals.renewed(capability.id))
                yield
        finally:
            with suppress(FlowError), self._metadata.transaction(synced=False) as db:  # otherwise they expire
                for capability in kept:
                    release(db, capability.id)

    @contextmanager
    def renewed(self, capability: Capability, every: float = RENEW_SECONDS) -> Iterator[None]:
        """Renew a capability at an interval of seconds while the block runs."""
        with Renewals(self._metadata, every).renewed(capability.id):
            yield

    def retain(
        self, present: Mapping[int, Sequence[Capability]], requests: Mapping[int, Request], *, purpose: str
    ) -> dict[int, list[Capability]]:
        """Give holders read capabilities on exactly the requested collections, in one commit.

        Each new capability begins at the requested timestamp, or at the last known timestamp if this is earlier; or at
        `since`, if the history is compacted up to a later timestamp. Dropped collections are skipped.

        Args:
            present: the present capabilities by holder, which are moved up, renewed or dropped.
            requests: the requests by holder.
            purpose: description of the use, for people.

        Returns:
            The capabilities of the holders in `requests`.
        """

        def body(db: Transaction) -> Callable[[], dict[int, list[Capability]]]:
            release_expired(db)
            retained = {
                holder: _retained(db, present.get(holder, ()), request, purpose) for holder, request in requests.items()
            }
            return lambda: retained

        return self._metadata.commit(body, synced=False)


class KeptCapability:
    """A read capability of this process, renewed in the background until it is closed.

    A process that cannot write the metadata has no capability, and relies on the grace period of replaced files.

    Args:
        metadata: metadata database.
        renewals: renewed capabilities.
        name: name of the collection.
        frontier: first timestamp of the read; None for the present contents.
        table: identifier of a table, whatever its present name; None for the collection with the name.
        at: timestamp of the contents, which selects the version of the collection; None for the present version.

    Attributes:
        frontier: timestamp that `since` does not pass.
        relation: the relation that can be read; another relation may have the name later.
        version: the version that can be read; None if the collection has never had several.

    Raises:
        UsageError: nothing is stored under this name.
        FrontierError: the contents at that timestamp are compacted.
    """

    def __init__(
        self,
        metadata: Metadata,
        renewals: Renewals,
        name: str,
        frontier: int | None,
        table: GlobalId | None = None,
        at: int | None = None,
    ) -> None:
        self._metadata = metadata
        self._capability: Capability | None = None
        can_write = metadata.can_write
        with metadata.transaction(synced=False) if can_write else metadata.snapshot() as db:
            name = (None if table is None else name_of(db, table)) or name
            self.version = version_at(db, name, at)
            name = self.version.stored if self.version else name
            self._name = name
            self.relation = relation_of(db, name) or 0
            frontiers = frontiers_of(db, name)
            if frontiers is None:
                raise UsageError(
                    f"nothing is stored in collection '{name}' yet",
                    hint="ingest documents, or derive them: flowctl run --until-idle",
                )
            since, upper = frontiers
            if frontier is not None and frontier < since:
                raise _compacted(name, since, frontier)
            self.frontier = max(since, upper) if frontier is None else frontier
            if can_write:
                self._capability = acquire(db, "read", name, self.frontier)
        self._moved = time.monotonic()
        self._stack = ExitStack()
        if self._capability is not None:
            self._stack.callback(self._release, self._capability.id)
            self._stack.enter_context(renewals.renewed(self._capability.id))

    def upper(self) -> int:
        """Return the `upper` of the relation, also after a rename and after the end of its version.

        Raises:
            FencedError: the capability has expired, or the collection was reset.
        """
        with self._metadata.snapshot() as db:
            is_ended = self._capability is not None and not is_live(db, self._capability.id)
            name = None if is_ended else name_of_relation(db, self.relation)
            frontiers = None if name is None else frontiers_of(db, name)
        if frontiers is None or (self._capability is None and not frontiers[0] <= self.frontier <= frontiers[1]):
            raise self._ended()
        return frontiers[1]

    def move(self, frontier: int) -> None:
        """Move the capability up to a timestamp, at most every `RENEW_SECONDS`, because each move costs a commit.

        Raises:
            FencedError: the capability has expired, or the collection was reset.
        """
        if frontier <= self.frontier or time.monotonic() - self._moved <= RENEW_SECONDS:
            return
        if self._capability is not None:
            self._metadata.commit(partial(self._downgrade, frontier), synced=False)
        self.frontier, self._moved = frontier, time.monotonic()

    def _downgrade(self, frontier: int, db: Transaction) -> Callable[[], None]:
        assert self._capability is not None
        if not is_live(db, self._capability.id):
            raise self._ended()
        downgrade(db, self._capability, frontier)
        return nothing

    def read_as(self, spec: CollectionSpec) -> CollectionSpec:
        """Return the definition under which the contents are read, of a collection that the catalog defines."""
        return self.version.read_as(spec) if self.version else spec

    def close(self) -> None:
        """Drop the capability."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self, identifier: str) -> None:
        # A capability that cannot be dropped expires; a capability of a fenced server ends with its process.
        with suppress(FlowError):
            self._metadata.commit(partial(release_all, [identifier]), synced=False)

    def _ended(self) -> FencedError:
        return FencedError(
            f"'{self._name}' was reset, or the capability to read it has expired", hint="run the command again"
        )


class RetainedCapabilities:
    """Read capabilities of several holders in this process, which all move in one commit.

    Args:
        capabilities: capabilities of the data folder.
        purpose: description of the use, for people.
    """

    def __init__(self, capabilities: Capabilities, purpose: str) -> None:
        self._capabilities, self._purpose = capabilities, purpose
        self._requests: dict[int, Request] = {}
        self._present: dict[int, Sequence[Capability]] = {}
        self._lock = threading.Lock()

    def __contains__(self, holder: int) -> bool:
        return holder in self._present

    def collections(self, holder: int) -> set[GlobalId]:
        """Return the collections on which a holder has capabilities."""
        return {capability.collection for capability in self._present.get(holder, ())}

    def request(self, requests: Mapping[int, Request]) -> set[int]:
        """Give holders capabilities like `Capabilities.retain`; return the holders that had capabilities before."""
        with self._lock:
            begun = requests.keys() & self._requests.keys()
            self._retain(requests)
        return begun

    def renew(self, requests: Mapping[int, Request] | None = None) -> None:
        """Renew the capabilities of all holders; `requests` has the changed requests of some holders."""
        with self._lock:
            self._retain({**self._requests, **(requests or {})})

    def release(self, *holders: int) -> None:
        """Drop the capabilities of holders; capabilities that cannot be dropped now will expire."""
        with self._lock:
            dropped = {holder: self._present.pop(holder) for holder in holders if holder in self._present}
            for holder in holders:
                self._requests.pop(holder, None)
            if dropped:
                with suppress(FlowError):
                    self._capabilities.retain(dropped, dict.fromkeys(dropped, ((), 0)), purpose=self._purpose)

    def close(self) -> None:
        """Drop all capabilities."""
        self.release(*self._requests)

    def _retain(self, requests: Mapping[int, Request]) -> None:
        if requests:
            self._present |= self._capabilities.retain(self._present, requests, purpose=self._purpose)
            self._requests |= requests


def _compacted(name: str, since: int, at: int) -> FrontierError:
    what = f"'{name}' is exact from {format_rfc3339(since)} on; its history at {format_rfc3339(at)} was compacted"
    return FrontierError(what, hint="ask for a later time")


def _known(db: Transaction, collection: GlobalId) -> str:
    """Return the name of a collection, after expired capabilities were dropped.

    Raises:
        UsageError: the identifier is unknown.
    """
    release_expired(db)
    name = name_of(db, collection)
    if name is None:
        raise UsageError(f"there is no collection {collection}")
    return name


def _retained(db: Transaction, present: Sequence[Capability], request: Request, purpose: str) -> list[Capability]:
    desired, frontier = set(request[0]), request[1]
    kept = {}
    for capability in present:
        if capability.collection not in desired or not is_live(db, capability.id):
            release(db, capability.id)
        else:
            kept[capability.collection] = capability
    for collection in desired:
        name = name_of(db, collection)
        frontiers = None if name is None else frontiers_of(db, name)
        if name is None or frontiers is None:
            continue
        since, upper = frontiers
        bound = max(since, min(frontier, upper - 1))
        before = kept.get(collection)
        if before is None:
            kept[collection] = acquire(db, "read", name, bound, purpose=purpose)
        else:
            kept[collection] = downgrade(db, before, max(bound, before.frontier))
    return list(kept.values())


def _perform(db: Transaction, action: Action) -> Callable[[], Capability | None]:
    """Perform an action; return a function that returns the capability after the action."""
    identifier = action.capability.id
    match action:
        case Release():
            release(db, identifier)
            return nothing
        case Renew():
            return keep(db, action.capability)
        case Downgrade(_, frontier):
            moved = downgrade(db, action.capability, frontier)
        case Update(_, updates, frontier):
            _require_writable(db, identifier, updates)
            moved = downgrade(db, action.capability, frontier)
            write_update(db, TableUpdate(moved.collection, None, frontier, tuple(updates)), None)
    if moved.kind == "write":
        name = name_of(db, moved.collection)
        assert name is not None
        advance_upper(db, name, moved.frontier)
    return lambda: moved


def _require_writable(db: Transaction, identifier: str, updates: Sequence[RowUpdate]) -> None:
    """Raise an error if a capability does not allow updates."""
    first = min((update.clock for update in updates), default=END_OF_TIME)
    if db.expect("SELECT 1 FROM capability WHERE id = ? AND kind = 'write' AND frontier <= ?", (identifier, first)):
        return
    current = find(db, identifier)
    if current.kind != "write":
        raise FencedError(f"capability {identifier} is to read, not to write")
    raise FrontierError(f"capability {identifier} is at {current.frontier}, and an update is earlier")


class TaskCapabilities:
    """Capabilities of the tasks, materialized views and indexes of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    # Tasks

    def require(self, capability: TaskCapability) -> None:
        """Raise an error if a run capability has ended, as of a moment after this call.

        Raises:
            FencedError: the capability has ended or was fenced.
        """
        with self._metadata.snapshot() as db:
            require_held(db, capability)

    def acquire_inputs(
        self,
        task: str,
        needs: Mapping[str, tuple[str, int]],
        capability: TaskCapability | None = None,
        relations: Mapping[str, Sequence[int]] | None = None,
        *,
        begun: Collection[str] = (),
        keeps: bool = False,
    ) -> dict[str, KeptHistory]:
        """Replace the read capabilities of a task by capabilities on exactly the given sources, at these frontiers.

        A transform that has begun, and has lost history that it needs, gets no capability, because a later run must
        find that the history is lost.

        Args:
            task: name of the task.
            needs: source and first needed timestamp of each transform, by state key.
            capability: capability to run the task; None if the caller is not a run.
            relations: the relations that each started transform reads: the present relation, and after a switch the
                next one. Other transforms read the relation with the source's name.
            begun: state keys of the transforms that have begun to read.
            keeps: whether to keep the previous capabilities, too, because the task may read the previous sources again.

        Returns:
            The history of the source that each transform finds, by state key.

        Raises:
            FencedError: the run capability is no longer valid, so another run decides about the task.
        """
        histories = {}
        with self._metadata.transaction() as db:
            if capability is not None:
                require_run(db, capability)
            before = release_inputs(db, task)
            desired = dict(before) if keeps else {}
            for transform, (source, frontier) in needs.items():
                read = [name_of_relation(db, relation) for relation in (relations or {}).get(transform, ())]
                names = [name for name in read if name is not None] or [source]
                frontiers = frontiers_of(db, names[0])
                since = frontiers[0] if frontiers else BEGINNING
                is_kept = before.get((transform, names[0]), END_OF_TIME) <= frontier
                histories[transform] = KeptHistory(since, is_kept)
                is_lost = transform in begun and not is_kept and frontier < since
                for name in names if frontiers and not is_lost else ():
                    desired[transform, name] = min(frontier, desired.get((transform, name), frontier))
            for (transform, name), frontier in desired.items():
                acquire_input(db, task, transform, name, frontier)
            forget_unread(db)
        return histories

    def release_inputs(self, task: str) -> bool:
        """Drop the read capabilities of a task; return False if the task is running."""
        with self._metadata.transaction() as db:
            release_expired(db)
            if run_capability(db, task) is not None:
                return False
            release_inputs(db, task)
        return True

    def readers(self, names: Sequence[str] | None = None) -> set[str]:
        """Return the names of the tasks with a read capability on any of these collections; None for all."""
        with self._metadata.snapshot() as db:
            read = readers(db)
        return {task for task, collections in read.items() if names is None or not collections.isdisjoint(names)}

    def runs(self, tasks: Iterable[str]) -> dict[str, Capability]:
        """Return the run capabilities of other processes, by task."""
        with self._metadata.transaction() as db:
            release_expired(db)
            return {task: run for task in tasks if (run := other_run(db, task)) is not None}

    def runners(self, tasks: Iterable[str]) -> set[str]:
        """Return the names of the processes that run one of these tasks, without a write."""
        with self._metadata.snapshot() as db:
            now, known = db.now(), set(tasks)
            runs = [run for run in run_capabilities(db) if run.task in known and not is_late(run, now)]
        return {process for process in {run.process for run in runs} if not is_dead(process)}

    def is_running(self, task: str) -> bool:
        """Return true if a process has the capability to run a task."""
        with self._metadata.transaction() as db:
            release_expired(db)
            return run_capability(db, task) is not None

    def superseded(self, capabilities: Iterable[TaskCapability]) -> list[str]:
        """Return the names of the tasks whose run capabilities were fenced, or have ended."""
        with self._metadata.snapshot() as db:
            return [capability.task for capability in capabilities if not is_live(db, capability.id)]

    @contextmanager
    def compacting(self) -> Iterator[TaskCapability | None]:
        """Yield the exclusive right to compact while the block runs; None if another process or thread has it."""
        with self._metadata.transaction(synced=False) as db:
            capability = acquire_compaction(db)
        if capability is None:
            yield None
            return
        try:
            with Renewals(self._metadata).renewed(capability.id):
                yield capability
        finally:
            with suppress(FlowError), self._metadata.transaction(synced=False) as db:  # otherwise it expires
                release(db, capability.id)

    def epochs(self, tasks: Iterable[str]) -> dict[str, int]:
        """Return the epochs of the tasks that have ever run, also after a reset."""
        with self._metadata.snapshot() as db:
            return epochs_of(db, tasks)

    # Materialized views and indexes

    def acquire_dataflow_inputs(
        self, views: Mapping[int, tuple[Collection[str], int]], indexes: Mapping[int, tuple[Collection[str], int]]
    ) -> None:
        """Replace the read capabilities of materialized views and indexes, in one commit.

        A view keeps the capabilities until it is dropped, and an index until `release_index`.

        Args:
            views: for each view (by identifier), the names of its inputs and the first timestamp that it reads.
            indexes: for each index (by identifier), the names of its inputs and the first timestamp that it reads.
        """
        with self._metadata.transaction() as db:
            for identifier, (names, frontier) in views.items():
                view = read_table(db, identifier)
                if view is not None and view.upper < END_OF_TIME:
                    replace_inputs(db, view_holder(identifier), names, frontier)
            for identifier, (names, frontier) in indexes.items():
                replace_inputs(db, index_holder(identifier), names, frontier)

    def dataflows(self, kind: Literal["view", "index"]) -> dict[int, int]:
        """Return the views or indexes with read capabilities, each with the timestamp from which it may read."""
        with self._metadata.snapshot() as db:
            return dataflow_frontiers(db, kind)

    def release_index(self, identifier: int) -> None:
        """Drop the read capabilities of an index."""
        with self._metadata.transaction() as db:
            release_inputs(db, index_holder(identifier))
