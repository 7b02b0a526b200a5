"""The Storage interface: collections as durable time-varying collections, and the tasks that fill them.

The verbs are the formalism's: `create`, `acquire_…`, `update_and_downgrade`, `subscribe_at`; with `seal`, an update
without updates, and `commit_task`, which updates collections and moves a task on. Each is one transaction of the
metadata database, durable when it returns, unless it says when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as SomeOf
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import apsw

from derive.document.clock import format_rfc3339
from derive.errors import FrontierError
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.blobs import blobs_of, is_there
from derive.storage.capabilities import Capabilities
from derive.storage.changes import Changes
from derive.storage.fence import Fence
from derive.storage.garbage import Garbage
from derive.storage.history import History
from derive.storage.leases import Leases
from derive.storage.metadata.binding import bind, check_partitions
from derive.storage.metadata.capability import (
    TaskCapability,
    WriteCapability,
    downgrade_write,
    drop,
    drop_ended,
    drop_run,
    is_live,
    lease_run,
    lease_write,
    least_write_frontier,
    renew_runs,
    require_free,
    require_run,
    require_write,
)
from derive.storage.metadata.collection import (
    advance_upper,
    empty_collection,
    is_maintained,
    read_collection,
    upper_of,
)
from derive.storage.metadata.descriptions import (
    Collection,
    CollectionUpdate,
    TaskCommit,
    TaskMove,
    TaskNote,
    TaskState,
)
from derive.storage.metadata.host import Host, this_host
from derive.storage.metadata.identity import disown_files, read_commits
from derive.storage.metadata.moves import insert_update, move_task
from derive.storage.metadata.opening import open_metadata
from derive.storage.metadata.owner import Door, Owner, owner_of, require_open
from derive.storage.metadata.read_rights import rewind_holds
from derive.storage.metadata.relations import name_of_relation, relation_of, replaces_nothing, tell_fate
from derive.storage.metadata.renewal import Renewals
from derive.storage.metadata.segment import begin_writer, read_segments, segment_paths
from derive.storage.metadata.tables import has_appended
from derive.storage.metadata.tasks import begin_epoch, forget_task, read_task, rewind_task, write_note
from derive.storage.metadata.timeline import assign_up_to
from derive.storage.rights import Rights
from derive.storage.tables import Tables
from derive.storage.timeline import Elapsed, Timeline, wall_clock
from derive.time.frontier import BEGINNING
from derive.time.segment import Segment


class Store:
    """All collections of one data folder.

    Args:
        root: the data folder; created if it is missing, unless for `reading`.
        wall: tells the wall-clock time in microseconds.
        durable: survive a loss of power; False for data that is thrown away, such as a test's.
        elapsed: tells how much time has passed, as for `Timeline`.
        host: the machine; tests hand in others.
        reading: nothing is going to be written: no folder is created, and one that cannot be written will do.
        accept_older: also with a metadata database that is older than what lies beside it.

    Raises:
        StorageError: another machine uses the data folder, or it cannot be used, or its metadata database is missing,
            or is another one's, or is not the latest.

    Attributes:
        timeline: assigns clocks.
        leases: rights of readers.
        rights: rights of tasks to read.
        history: what compaction changes.
        garbage: what lies in the folder beside what is part of a collection.
        changes: tells whoever waits that something was committed.
        tables: multisets of rows, which are collections as well.
        capabilities: rights to read and to write, by their identifiers.
        fence: closes out whoever wrote for clients of SQL before.
    """

    def __init__(
        self,
        root: Path,
        wall: Callable[[], int] = wall_clock,
        *,
        durable: bool = True,
        elapsed: Elapsed | None = None,
        host: Host | None = None,
        reading: bool = False,
        accept_older: bool = False,
    ) -> None:
        self.root = root
        self._metadata, self._lock = open_metadata(
            root, host or this_host(), durable=durable, reading=reading, accept_older=accept_older
        )
        self.timeline = Timeline(self._metadata, wall, elapsed)
        self.leases = Leases(self._metadata)
        self.rights = Rights(self._metadata)
        self.history = History(self._metadata)
        self._blobs = blobs_of(root)
        self.garbage = Garbage(self._blobs, self._metadata)
        self.changes = Changes(self._metadata)
        self.tables = Tables(root, self._metadata, self.timeline)
        self.capabilities = Capabilities(self._metadata, self.tables)
        self.fence = Fence(self._metadata)

    def close(self) -> None:
        """Release the metadata database."""
        self._metadata.close()
        if self._lock:
            self._lock.release()

    def accept_metadata(self) -> None:
        """Go on with a metadata database that is older than the folder; none of what lies there is garbage then.

        The store was opened with `accept_older`.
        """
        counted = read_commits(self.root)
        with self._metadata.transaction() as db:
            disown_files(db, counted)

    # Collections

    def create(self, *specs: CollectionSpec) -> None:
        """Bind names of collections to their keys and partitions, which are fixed from the first document on.

        Raises:
            StorageError: one holds documents, or someone is writing some, with another key or other partitions.
        """
        with self._metadata.transaction() as db:
            for spec in specs:
                bind(db, spec)

    def collection(self, name: str) -> Collection | None:
        """What is known of a collection; None if nothing is stored under this name."""
        with self._metadata.snapshot() as db:
            return read_collection(db, name)

    def relation(self, name: str) -> int | None:
        """Return the relation for which a name stands; None if nothing is stored under it."""
        with self._metadata.snapshot() as db:
            return relation_of(db, name)

    def collection_of(self, relation: int) -> Collection | None:
        """Return what is known of the collection of a relation, whatever its name is; None if nothing of it is left."""
        with self._metadata.snapshot() as db:
            name = name_of_relation(db, relation)
            return None if name is None else read_collection(db, name)

    def replaces_nothing(self, name: str, relation: int) -> bool:
        """Return whether a table has its name from a relation that a catalog had named, and that nobody had filled."""
        with self._metadata.snapshot() as db:
            return replaces_nothing(db, name, relation)

    def tell_fate(self, name: str, relation: int) -> str:
        """Say what became of a relation for which a name stood, and what the name stands for now."""
        with self._metadata.snapshot() as db:
            return tell_fate(db, name, relation)

    def upper(self, name: str) -> int:
        """The `upper` of a collection."""
        with self._metadata.snapshot() as db:
            return upper_of(db, name)

    def segments(
        self,
        spec: CollectionSpec,
        selector: SelectorSpec | None = None,
        begin: int = BEGINNING,
        relation: int | None = None,
    ) -> list[Segment]:
        """Segments of a collection, without those of logical partitions that are not selected, by clock.

        Args:
            spec: the collection.
            selector: which logical partitions; None for all.
            begin: only those with clocks from here on.
            relation: those of this relation, whatever its name is now; None for the one that has the spec's name.

        Raises:
            StorageError: it was stored with other partition fields.
        """
        partitions = [projection.field for projection in spec.partitions]
        with self._metadata.snapshot() as db:
            name = spec.name if relation is None else name_of_relation(db, relation)
            table = None if name is None else has_appended(db, name)
        if table is not None:
            self.tables.flush_table(table)
        with self._metadata.snapshot() as db:
            name = spec.name if relation is None else name_of_relation(db, relation)
            segments = [] if name is None else read_segments(db, name, begin)
            if name is not None and segments:
                check_partitions(db, name, partitions)
        if selector is None:
            return segments
        return [
            segment for segment in segments if selector.selects(dict(zip(partitions, segment.partition, strict=True)))
        ]

    def missing(self, names: Iterable[str]) -> list[str]:
        """Paths of the segments of collections whose files are not there; none of them was reset or replaced."""
        with self._metadata.snapshot() as db:
            paths = [path for name in names for path in segment_paths(db, name)]
        return [path for path in paths if not is_there(self._blobs, path)]

    def seal(self, names: Sequence[str], frontier: int) -> dict[str, int]:
        """Advance collections to `frontier`, or as far as live write capabilities allow, with no new updates.

        No clock below it is assigned any more. It also extends the leases of the tasks that this process runs. It is
        durable once any later commit is.

        Returns:
            The `upper` of each.
        """
        with self._metadata.transaction(synced=False) as db:
            assign_up_to(db, frontier - 1)
            return self._seal(db, names, frontier)

    def seal_now(self, names: Sequence[str]) -> int:
        """Read the present, and advance collections to it as far as live write capabilities allow; in one commit.

        It is durable once any later commit is: nothing that lasts is built on it before.
        """
        with self._metadata.transaction(synced=False) as db:
            now = self.timeline.pass_now(db)
            self._seal(db, names, now)
        return now

    @staticmethod
    def _seal(db: apsw.Connection, names: Sequence[str], frontier: int) -> dict[str, int]:
        renew_runs(db)
        drop_ended(db)
        return {
            name: upper_of(db, name) if is_maintained(db, name) else advance_upper(db, name, frontier) for name in names
        }

    def held(self, name: str) -> int | None:
        """The clock that the `upper` of a collection does not pass, as somebody writes it; None if nobody does."""
        with self._metadata.snapshot() as db:
            return least_write_frontier(db, name)

    # Owners

    def owner(self, name: str) -> Owner:
        """Return who may write a collection, as it is now."""
        with self._metadata.snapshot() as db:
            return owner_of(db, name)

    def require_open(self, name: str, door: Door) -> None:
        """Require that a collection may be written through a door, as it is now; whoever acquires it asks again.

        Raises:
            OwnedError: it belongs to another writer.
        """
        if self._metadata.can_write:
            with self._metadata.transaction(synced=False) as db:
                drop_ended(db)
        with self._metadata.snapshot() as db:
            require_open(db, name, door)

    # Ingesting

    def acquire_write(self, name: str, *, history: bool = False, door: Door = Door.INGEST) -> WriteCapability:
        """A leased right to ingest into a collection: until it is dropped, `upper` does not pass its frontier.

        Args:
            name: the collection.
            history: documents bring times of their own, from the collection's `upper` on; else they are of the present.
            door: through which it is written.

        Raises:
            OwnedError: it belongs to another writer.
            FrontierError: all of the collection that is before some later time than the present is final.
        """
        with self._metadata.transaction(synced=False) as db:  # a loss of power ends it anyway
            drop_ended(db)
            require_open(db, name, door)
            upper = upper_of(db, name)
            now = upper if history else self.timeline.advance(db)
            if upper > now:
                raise FrontierError(
                    f"'{name}' is final before {format_rfc3339(upper)}, and it is {format_rfc3339(now)}",
                    hint="it was loaded with times yet to come; load what it holds into another collection",
                )
            return lease_write(db, name, now)

    def renewed(self, capability: WriteCapability, every: float) -> AbstractContextManager[None]:
        """Renew the lease to ingest, every so many seconds, for as long as the block takes."""
        return Renewals(self._metadata.path, every).renewed(capability.id)

    def update_and_downgrade(
        self,
        capability: WriteCapability,
        segments: Sequence[Segment],
        frontier: int,
        *,
        ascending: bool = False,
        is_last: bool = False,
    ) -> WriteCapability:
        """Add segments and move the capability's frontier up, which lets `upper` follow; all in one commit.

        Args:
            capability: names the collection; its frontier is not above any clock in `segments`.
            segments: durable files.
            frontier: the new frontier; above every clock in `segments`.
            ascending: require that no document stored so far is as late as these.
            is_last: give the capability back with that.

        Returns:
            The capability at its new frontier.

        Raises:
            FencedError: the capability is no longer valid.
            FrontierError: a clock is out of bounds.
        """
        name = capability.collection
        with self._metadata.transaction(calls=True) as db:
            require_write(db, capability)
            insert_update(db, CollectionUpdate(name, segments, frontier), capability.frontier, ascending=ascending)
            downgrade_write(db, capability, frontier)
            advance_upper(db, name, frontier)
            if ascending:  # the last of these may be a little beyond the present, and what comes now is later
                assign_up_to(db, frontier - 1)
            if is_last:
                drop(db, capability.id)
        return replace(capability, frontier=frontier)

    def drop(self, capability: WriteCapability) -> None:
        """Give a capability back; `upper` is no longer held by it."""
        with self._metadata.transaction(calls=True, synced=False) as db:
            drop(db, capability.id)

    # Tasks

    def task(self, name: str) -> TaskState | None:
        """What is known of a task; None if it has never run."""
        with self._metadata.snapshot() as db:
            return read_task(db, name)

    def acquire_task(
        self, name: str, shards: int, outputs: Sequence[str] = (), *, purpose: str | None = None, if_free: bool = False
    ) -> tuple[TaskCapability, TaskState]:
        """The right to run a task, and to write collections for it alone; every earlier one is superseded (law L5).

        Args:
            name: the task.
            shards: how many it gets if it has never run.
            outputs: names of the collections that it writes.
            purpose: what it is for, for people; None for a run.
            if_free: only if no other process has it.

        Returns:
            The right, and what is known of the task: whoever ran it may have committed until just now.

        Raises:
            FencedError: another process has it, which is not to be superseded.
            OwnedError: one of the collections belongs to another writer.
        """
        with self._metadata.transaction(calls=True) as db:
            drop_ended(db)
            for output in outputs:
                require_open(db, output, Door.TASK)
            if if_free:
                require_free(db, name)
            epoch = begin_epoch(db, name, shards)
            capability = lease_run(db, name, epoch, {output: upper_of(db, output) for output in outputs}, purpose)
            for output in outputs:
                begin_writer(db, capability.id, output)
            state = read_task(db, name)
        assert state is not None
        return capability, state

    def commit_task(
        self, capability: TaskCapability, commit: TaskCommit | None, updates: Sequence[CollectionUpdate] = ()
    ) -> TaskCapability:
        """Move a task on, and with it the collections that it writes, or none of them; all in one commit (law L2).

        Args:
            capability: the right to run the task, and to write those collections.
            commit: how far the task is; None if it is where it was.
            updates: at most one of each collection; none has a clock below the capability's frontier for it.

        Returns:
            The capability at its new frontiers.

        Where only time moves, it is durable once any later commit is.

        Raises:
            FencedError: the capability is no longer valid.
            FrontierError: a clock is out of bounds, or a transform would step back.
        """
        (moved,) = self.commit_tasks([TaskMove(capability, commit, updates)])
        return moved

    def commit_tasks(self, moves: Sequence[TaskMove]) -> list[TaskCapability]:
        """Move several tasks on, and with them the collections that they write, or none of them; all in one commit.

        Args:
            moves: at most one of each task.

        Returns:
            The capability of each at its new frontiers.

        Raises:
            FencedError: one of the capabilities is no longer valid.
            FrontierError: a clock is out of bounds, or a transform would step back.
        """
        is_more = any(move.is_more for move in moves)
        with self._metadata.transaction(calls=is_more, synced=is_more) as db:
            for move in moves:
                move_task(db, move)
        return [move.moved() for move in moves]

    def renew_tasks(self) -> None:
        """Extend the leases of all tasks that this process runs."""
        with self._metadata.transaction(synced=False) as db:
            renew_runs(db)

    def release_task(self, capability: TaskCapability) -> None:
        """Give up the right to run a task, unless it was superseded; no `upper` is held by it any more."""
        with self._metadata.transaction(calls=True) as db:
            if is_live(db, capability.id):
                drop_run(db, capability.task)

    def note_task(self, capability: TaskCapability, note: TaskNote) -> None:
        """Record something about a task that is no progress of it.

        Raises:
            FencedError: the capability is no longer valid.
        """
        with self._metadata.transaction() as db:
            require_run(db, capability)
            write_note(db, capability.task, note)

    def reset(self, names: Sequence[str], parts: Mapping[str, SomeOf[str]] | None = None) -> None:
        """Forget all that tasks have derived and how far they were; who still writes for them is superseded.

        They need their sources from the beginning again, or what is known of it.

        Args:
            names: of the tasks.
            parts: of other tasks, by name, the inputs (by state key) that begin again.

        Raises:
            OwnedError: one has the name of a collection that belongs to another writer; nothing was forgotten.
        """
        with self._metadata.transaction(calls=True) as db:
            drop_ended(db)
            for name in names:
                require_open(db, name, Door.TASK)
            for name in names:
                empty_collection(db, name)
                forget_task(db, name)
            for name in names:
                rewind_holds(db, name)
            for name, keys in (parts or {}).items():
                rewind_task(db, name, keys)
                rewind_holds(db, name, keys)
