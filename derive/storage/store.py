"""The Storage interface: durable time-varying collections, and the tasks that write them.

The main operations are `create`, `acquire_…`, `update_and_downgrade` and `subscribe_at`. `seal` is an update without
rows, and `commit_task` updates collections and advances a task. Each operation is one transaction of the metadata
database, and is durable when it returns, unless its docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as SomeOf
from functools import partial
from pathlib import Path

from derive.document.clock import format_rfc3339
from derive.errors import FrontierError, HeldError, StorageError
from derive.protocol.collection import retried_specs
from derive.protocol.specs import CollectionSpec, SelectorSpec, TransformSpec
from derive.storage.blobs import is_there
from derive.storage.capability.acquisition import acquire
from derive.storage.capability.capabilities import Capabilities, TaskCapabilities
from derive.storage.capability.table import (
    Bound,
    Capability,
    TaskCapability,
    acquire_at,
    downgrade,
    find_ended,
    is_live,
    least_write_frontier,
    read_capabilities,
    release,
    release_expired,
    release_run,
    renew_runs,
    require_epochs,
    require_live,
    require_run,
)
from derive.storage.changes import Changes
from derive.storage.folder_id import cache_name
from derive.storage.history import Garbage, History
from derive.storage.location import Location, blobs_of
from derive.storage.metadata.collection import (
    advance_upper,
    delete_collection,
    describe_fate,
    empty_collection,
    name_of_relation,
    read_collection,
    relation_of,
    replaces_nothing,
    seal_collections,
    truncate_collection,
    upper_of,
)
from derive.storage.metadata.descriptions import (
    Collection,
    CollectionUpdate,
    MaterializationRecord,
    PastPart,
    ResetTask,
    TaskCommit,
    TaskMove,
    TaskNote,
    TaskState,
    Work,
)
from derive.storage.metadata.followed import FileMove, FilePosition, move_positions, read_positions
from derive.storage.metadata.identity import disown_files, read_commits
from derive.storage.metadata.ingestions import Load, LoadedFile, find_load, loads_of_content, read_loads, record_load
from derive.storage.metadata.materializations import adopt_files, find_record, read_record, remove_adopted
from derive.storage.metadata.opening import Host, open_metadata, this_host
from derive.storage.metadata.owner import Door, Owner, owner_of, require_ingested, require_open
from derive.storage.metadata.quarantine import (
    Retried,
    decided_entries,
    internal_collections,
    open_counts,
    record_decisions,
)
from derive.storage.metadata.recorded_location import read_location
from derive.storage.metadata.segment import (
    count_documents_from,
    is_segment,
    read_segments,
    read_until,
    span_of,
)
from derive.storage.metadata.table_copy import raise_epochs
from derive.storage.metadata.tables import bind, check_partitions, find_conflict, has_appended
from derive.storage.metadata.tasks import (
    insert_update,
    move_task,
    read_applied,
    read_past,
    read_task,
    read_tasks,
    read_work,
    reset_tasks,
    write_note,
)
from derive.storage.metadata.transaction import Transaction, nothing
from derive.storage.metadata.undo import describe_reader, undo_load
from derive.storage.metadata.versions import version_at
from derive.storage.serving import Serving
from derive.storage.shadows import Shadows
from derive.storage.sql_catalog import Fence, SqlCatalog
from derive.storage.tables import Tables
from derive.storage.timeline import Elapsed, Timeline, assign_up_to, wall_clock
from derive.time import BEGINNING, END_OF_TIME
from derive.time.extent import Enough
from derive.time.positions import Segment


class Store:
    """All collections of one data folder.

    Args:
        root: the data folder; created if missing, unless `reading`.
        wall: returns the wall-clock time in microseconds.
        durable: whether commits are synced; false for temporary data, such as the data of a test.
        elapsed: monotonic clock, as for `Timeline`.
        host: the machine; tests pass others.
        reading: whether to open only for reads: then no folder is created, and a read-only folder suffices.
        accept_older: whether to accept a metadata database that is older than the files beside it.
        cache: folder for caches of the states of shards on each machine, which lets the states travel as objects; None
            for states that stay in the data folder.

    Raises:
        StorageError: another machine uses the data folder, the folder cannot be used, or its metadata database is
            missing, foreign or outdated.

    Attributes:
        cache: folder of this data folder's caches on each machine; None for states that stay in the data folder.
        location: location of the segments.
        metadata: metadata database, for copies and checks of the whole.
        timeline: source of timestamps.
        history: history, which compaction rewrites.
        garbage: garbage collector of files.
        shadows: derivations that run beside the live derivations until a swap.
        changes: notifications of commits.
        tables: tables, which are multisets of rows, and also collections.
        capabilities: capabilities to read and to write, by identifier.
        task_capabilities: capabilities of tasks, materialized views and indexes.
        fence: fence against earlier SQL servers.
        sql_catalog: names of SQL.
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
        cache: Path | None = None,
    ) -> None:
        self.root = root
        self._metadata, self._lock = open_metadata(
            root, host or this_host(), durable=durable, reading=reading, accept_older=accept_older
        )
        self.metadata = self._metadata
        self.location = self._find_location()
        self.cache = None if cache is None else cache.absolute() / cache_name(root)
        self.timeline = Timeline(self._metadata, wall, elapsed)
        self.history = History(self._metadata)
        self._blobs = blobs_of(self.location)
        self.garbage = Garbage(self._blobs, self._metadata)
        self.shadows = Shadows(self._metadata, self.garbage)
        self.changes = Changes(self._metadata)
        self.tables = Tables(self.location, self._metadata, self.timeline)
        self.capabilities = Capabilities(self._metadata, self.tables)
        self.task_capabilities = TaskCapabilities(self._metadata)
        self.fence = Fence(self._metadata)
        self.serving = Serving(self._metadata, self.fence, root)
        self.sql_catalog = SqlCatalog(self._metadata)

    def close(self) -> None:
        """Release the metadata database."""
        self._metadata.close()
        if self._lock:
            self._lock.release()

    def _find_location(self) -> Location:
        with self._metadata.snapshot() as db:
            return read_location(db) or self.root

    def accept_metadata(self) -> None:
        """Accept a metadata database that is older than the folder; then the present files are not garbage.

        All epochs are raised, because the folder may have had epochs that the database lacks. The store must have been
        opened with `accept_older`.
        """
        counted = read_commits(self.root)
        with self._metadata.transaction() as db:
            raise_epochs(db)
            disown_files(db, counted)

    # Collections

    def create(self, *specs: CollectionSpec) -> None:
        """Bind names of collections to their keys and partitions. The first document fixes the binding.

        Raises:
            StorageError: a collection has documents or a writer, and another key or other partitions.
        """
        with self._metadata.transaction() as db:
            for spec in specs:
                bind(db, spec)

    def find_conflict(self, spec: CollectionSpec) -> StorageError | None:
        """Return the error with which `create` would refuse a collection that has documents; None for no error."""
        with self._metadata.snapshot() as db:
            return find_conflict(db, spec)

    def collection(self, name: str) -> Collection | None:
        """Return the description of a collection; None if nothing is stored under this name."""
        with self._metadata.snapshot() as db:
            return read_collection(db, name)

    def relation(self, name: str) -> int | None:
        """Return the relation with a name; None if nothing is stored under it."""
        with self._metadata.snapshot() as db:
            return relation_of(db, name)

    def collection_of(self, relation: int) -> Collection | None:
        """Return the description of a relation's collection, also after a rename; None if it was removed."""
        with self._metadata.snapshot() as db:
            name = name_of_relation(db, relation)
            return None if name is None else read_collection(db, name)

    def replaces_nothing(self, name: str, relation: int) -> bool:
        """Return true if a table has its name from a relation that a catalog declared, and that was never written."""
        with self._metadata.snapshot() as db:
            return replaces_nothing(db, name, relation)

    def describe_fate(self, name: str, relation: int) -> str:
        """Return a text: the fate of a relation that once had the name, and the relation that has the name now."""
        with self._metadata.snapshot() as db:
            return describe_fate(db, name, relation)

    def read_as(self, spec: CollectionSpec, clock: int | None = None) -> CollectionSpec:
        """Return the definition under which the documents of a collection at a time are read; None for the present."""
        with self._metadata.snapshot() as db:
            version = version_at(db, spec.name, clock)
        return version.read_as(spec) if version else spec

    def upper(self, name: str) -> int:
        """Return the `upper` of a collection."""
        with self._metadata.snapshot() as db:
            return upper_of(db, name)

    def segments(
        self,
        spec: CollectionSpec,
        selector: SelectorSpec | None = None,
        begin: int = BEGINNING,
        relation: int | None = None,
        end: int = END_OF_TIME,
        until: Enough | None = None,
    ) -> Sequence[Segment]:
        """Return the segments of a collection in selected logical partitions, ordered by least timestamp.

        Args:
            spec: the collection.
            selector: selection of logical partitions; None for all.
            begin: first timestamp of interest.
            relation: relation to read, which may have been renamed; None for the present version of the name.
            end: exclusive upper bound of the timestamps of interest.
            until: decides when the first segments are enough; then the later segments are not read. Such a read has no
                upper bound.

        Raises:
            StorageError: the collection was stored with other partition fields.
        """

        def selects(values: tuple[object, ...]) -> bool:
            return selector is None or selector.selects(dict(zip(partitions, values, strict=True)))

        def read(db: Transaction, name: str | None) -> Sequence[Segment]:
            if name is None:
                return []
            check = partial(check_partitions, db, name, partitions)
            if until is not None:
                return read_until(db, name, begin, until, None if has_all else selects, check)
            segments = read_segments(db, name, begin, end)
            if segments:
                check()
            return segments if has_all else [segment for segment in segments if selects(segment.partition)]

        partitions = [projection.field for projection in spec.partitions]
        has_all = selector is None or selector.selects_all
        with self._metadata.snapshot() as db:
            name = spec.name if relation is None else name_of_relation(db, relation)
            table = None if name is None else has_appended(db, name)
            if table is None:
                return read(db, name)
        self.tables.flush_table(table)
        with self._metadata.snapshot() as db:
            return read(db, spec.name if relation is None else name_of_relation(db, relation))

    def count_documents(
        self, spec: CollectionSpec, selector: SelectorSpec | None, begin: int, end: int, relation: int | None = None
    ) -> int:
        """Return the number of documents in the segments that `segments` returns, without their descriptions."""
        partitions = [projection.field for projection in spec.partitions]
        with self._metadata.snapshot() as db:
            name = spec.name if relation is None else name_of_relation(db, relation)
            if name is None:
                return 0
            if selector is None or selector.selects_all:
                return count_documents_from(db, name, begin, end)
            check_partitions(db, name, partitions)
            selects = selector.selects
            return count_documents_from(
                db, name, begin, end, lambda values: selects(dict(zip(partitions, values, strict=True)))
            )

    def span(self, name: str) -> tuple[int, int]:
        """Return the greatest timestamps of the first and the last segment of a collection with segments."""
        with self._metadata.snapshot() as db:
            return span_of(db, name)

    def is_missing(self, path: str) -> bool:
        """Return true if the file of a segment is missing; false if the file is no longer a segment."""
        with self._metadata.snapshot() as db:
            if not is_segment(db, path):
                return False
        return not is_there(self._blobs, path)

    def seal(self, names: Sequence[str], frontier: int) -> dict[str, int]:
        """Advance collections without updates to `frontier`, or as far as write capabilities allow.

        The timeline must no longer assign a timestamp below `frontier`. The call also renews the run capabilities of
        this process. The commit is durable as soon as a later commit is durable.

        Returns:
            The `upper` of each collection, by name.
        """

        def body(db: Transaction) -> Callable[[], dict[str, int]]:
            assign_up_to(db, frontier - 1)
            return self._seal(db, names, frontier)

        return self._metadata.commit(body, synced=False)

    def seal_now(self, names: Sequence[str]) -> int:
        """Read the present, and advance collections to it as far as write capabilities allow, in one commit.

        The commit is durable as soon as a later commit is durable; before that, no durable state depends on it.
        """

        def body(db: Transaction) -> Callable[[], int]:
            now = self.timeline.pass_now(db)
            self._seal(db, names, None)
            return now

        return self._metadata.commit(body, synced=False)

    @staticmethod
    def _seal(db: Transaction, names: Sequence[str], frontier: int | None) -> Callable[[], dict[str, int]]:
        renew_runs(db)
        release_expired(db)
        return seal_collections(db, names, frontier)

    def write_frontier(self, name: str) -> int | None:
        """Return the least frontier of a collection's writers, which its `upper` cannot pass; None without writers."""
        with self._metadata.snapshot() as db:
            return least_write_frontier(db, name)

    # Owners

    def owner(self, name: str) -> Owner:
        """Return the present owner of a collection."""
        with self._metadata.snapshot() as db:
            return owner_of(db, name)

    def require_open(self, name: str, door: Door) -> None:
        """Raise an error if a kind of writer may not write a collection now; `acquire_write` checks this again.

        Raises:
            OwnedError: the collection belongs to another writer.
        """
        with self._metadata.snapshot() as db:
            require_open(db, name, door, find_ended(db))

    # Ingesting

    def acquire_write(self, name: str, *, history: bool = False, door: Door = Door.INGEST) -> Capability:
        """Acquire the capability to ingest into a collection; the process of the caller renews and releases it.

        Args:
            name: the collection.
            history: whether documents have their own times, from the collection's `upper` on; otherwise, their time is
                the present.
            door: kind of writer.

        Raises:
            OwnedError: the collection belongs to another writer.
            FrontierError: the collection is final up to a time later than the present.
        """

        def body(db: Transaction) -> Callable[[], Capability]:
            release_expired(db)
            require_open(db, name, door)
            if not history:
                self._require_past(db, name, self.timeline.pass_now(db))
            return acquire_at(db, "write", name, Bound.UPPER if history else Bound.PRESENT)

        return self._metadata.commit(body, synced=False)  # a loss of power ends the capability anyway

    @staticmethod
    def _require_past(db: Transaction, name: str, now: Callable[[], int]) -> None:
        """Raise an error if a collection is final up to a time later than the present, which was just passed."""
        later = "SELECT 1 FROM collection WHERE name = ? AND upper > (SELECT clock + 1 FROM timeline)"
        if not db.expect(f"SELECT 1 WHERE NOT EXISTS ({later})", (name,)):
            raise FrontierError(
                f"'{name}' takes documents only from {format_rfc3339(upper_of(db, name))} on, but the time is now"
                f" {format_rfc3339(now())}",
                hint="earlier documents have times in the future; ingest into another collection",
            )

    def update_and_downgrade(
        self,
        capability: Capability,
        segments: Sequence[Segment],
        frontier: int,
        *,
        ascending: bool = False,
        is_last: bool = False,
        file: LoadedFile | None = None,
        moves: Sequence[FileMove] = (),
    ) -> Capability:
        """Add segments and move the capability's frontier up, so that `upper` may follow; in one commit.

        Args:
            capability: write capability on the collection; its frontier is at most every timestamp in `segments`.
            segments: durable files.
            frontier: the new frontier, above every timestamp in `segments`.
            ascending: whether to require that all stored documents are earlier than the new documents.
            is_last: whether to drop the capability in the same commit.
            file: input to record as a load, with all of its segments; None to record none.
            moves: moves of the positions of followed files.

        Returns:
            The capability at its new frontier.

        Raises:
            FencedError: the capability is no longer valid.
            FrontierError: a timestamp is out of bounds.
            RepeatedLoadError: another process has committed the load.
            StorageError: another process has committed a load with the same identifier and other content.
            MovedPositionError: another process has moved the position of a followed file.
        """

        def body(db: Transaction) -> Callable[[], Capability]:
            name = require_live(db, capability)
            move_positions(db, name, moves)
            if file is not None:
                record_load(db, name, file, capability.id, segments)
            insert_update(db, CollectionUpdate(name, segments, frontier), capability.frontier, ascending=ascending)
            moved = downgrade(db, capability, frontier)
            advance_upper(db, name, frontier)
            # A document's own time may be slightly after the present, and later timestamps must be above this time.
            if ascending:
                assign_up_to(db, frontier - 1)
            if is_last:
                release(db, capability.id)
            return lambda: moved

        return self._metadata.commit(body, wakes=True)

    def load(self, name: str, load_id: str | None) -> Load | None:
        """Return the load of a collection with an identifier; None if no load has it, or if the load was undone."""
        with self._metadata.snapshot() as db:
            return find_load(db, name, load_id)

    def loads_of_content(self, name: str, digest: str) -> list[Load]:
        """Return the present loads of a collection whose content has a digest, the latest first."""
        with self._metadata.snapshot() as db:
            return loads_of_content(db, name, digest)

    def loads(self, name: str | None = None) -> list[Load]:
        """Return the loads of a collection, or of all collections, in the order of their commits."""
        with self._metadata.snapshot() as db:
            return read_loads(db, name)

    def positions(self, name: str | None = None) -> list[tuple[str, FilePosition]]:
        """Return the names of collections with the positions of their followed files; None for all collections."""
        with self._metadata.snapshot() as db:
            return read_positions(db, name)

    def truncate(self, name: str) -> None:
        """Begin a new history of an ingested collection, without documents; running ingestions are fenced.

        Raises:
            OwnedError: the collection belongs to another writer.
        """
        with self._metadata.transaction(wakes=True) as db:
            release_expired(db)
            require_ingested(db, name)
            truncate_collection(db, name)

    def drop(self, name: str, *, force: bool = False) -> None:
        """Remove an ingested collection with its files; a crash may leave the collection, or an empty collection.

        Args:
            name: the collection.
            force: whether to remove it although tasks of a catalog or processes read it.

        Raises:
            OwnedError: the collection belongs to another writer.
            HeldError: the collection has readers, or was written during the removal.
        """
        with self._metadata.transaction(wakes=True) as db:
            release_expired(db)
            require_ingested(db, name)
            held = read_capabilities(db, name)
            readers = [reader for reader in held if not force or ":" in (reader.task or "")]
            if readers:
                names = ", ".join(sorted({describe_reader(db, reader) for reader in readers}))
                hint = "end them first, or drop the views of SQL"
                if not force:
                    hint = "end them first, or add --force; views and indexes of SQL must be dropped"
                raise HeldError(f"'{name}' has readers: {names}", hint=hint)
            empty_collection(db, name)
        self.garbage.collect_abandoned(name)
        self.garbage.collect_uncommitted(name)
        with self._metadata.transaction(wakes=True) as db:
            is_gone = delete_collection(db, name)
        if not is_gone:
            raise HeldError(
                f"'{name}' could not be dropped, because a task or a load wrote to it meanwhile",
                hint="end them, and drop it again",
            )

    # Quarantines

    def internal_collections(self, task: str) -> list[str]:
        """Return the names of a task's quarantine and of its collections of retried documents, as far as they exist."""
        with self._metadata.snapshot() as db:
            return internal_collections(db, task)

    def retried(self, task: str, transform: TransformSpec, source: CollectionSpec, begin: int) -> Retried:
        """Return the retried documents that a transform reads besides its source.

        Args:
            task: name of the derivation.
            transform: the transform.
            source: its source.
            begin: first timestamp of interest.
        """
        existing = self.internal_collections(task)
        specs = [spec for spec in retried_specs(task, transform.state_keys, source) if spec.name in existing]
        # A retry that commits between the two steps is among the segments.
        frontiers = [frontier for spec in specs if (frontier := self.write_frontier(spec.name)) is not None]
        segments = [segment for spec in specs for segment in self.segments(spec, transform.input.selector, begin)]
        return Retried(min(frontiers, default=None), tuple(segments))

    def retry(
        self, task: str, capability: Capability, segments: Sequence[Segment], frontier: int, entries: Mapping[str, str]
    ) -> bool:
        """Add retried documents, and record that their entries are retried, in one commit.

        Args:
            task: name of the derivation.
            capability: write capability on a collection of retried documents, which is dropped.
            segments: durable files with the documents.
            frontier: exclusive upper bound of the timestamps.
            entries: state key of the input, by the identifier of each entry.

        Returns:
            False if another process has decided about one of the entries; nothing was committed.

        Raises:
            FencedError: the capability is no longer valid.
        """
        with self._metadata.transaction(wakes=True) as db:
            name = require_live(db, capability)
            is_done = record_decisions(db, task, entries, "retry")
            if is_done:
                insert_update(db, CollectionUpdate(name, segments, frontier), capability.frontier)
                downgrade(db, capability, frontier)
                advance_upper(db, name, frontier)
            release(db, capability.id)
        return is_done

    def drop_quarantined(self, task: str, entries: Mapping[str, str]) -> bool:
        """Record that entries are dropped; return False if another process has decided about one of them.

        Args:
            task: name of the derivation.
            entries: state key of the input, by the identifier of each entry.
        """
        with self._metadata.transaction() as db:
            return record_decisions(db, task, entries, "drop")

    def decided(self, task: str) -> set[str]:
        """Return the identifiers of the retried and dropped entries of a task's quarantine."""
        with self._metadata.snapshot() as db:
            return decided_entries(db, task)

    def quarantined(self, task: str) -> dict[str, int]:
        """Return the number of open entries of a task's quarantine, by the state key of the input."""
        with self._metadata.snapshot() as db:
            return open_counts(db, task)

    # Tasks

    def task(self, name: str) -> TaskState | None:
        """Return the state of a task; None if the task has never run."""
        with self._metadata.snapshot() as db:
            return read_task(db, name)

    def work(self, name: str) -> dict[str, Work]:
        """Return the work of each lambda of a derivation since its last reset, by state key."""
        with self._metadata.snapshot() as db:
            return read_work(db, name)

    def tasks(self) -> list[TaskState]:
        """Return the states of all tasks that have run since their last reset, by name."""
        with self._metadata.snapshot() as db:
            return read_tasks(db)

    def past(self, name: str) -> list[PastPart]:
        """Return the recorded parts of a derivation's past, in order."""
        with self._metadata.snapshot() as db:
            return read_past(db, name)

    def applied(self, name: str) -> str | None:
        """Return the text of a materialization's definition at its last commit; None if none is recorded."""
        with self._metadata.snapshot() as db:
            return read_applied(db, name)

    def materialization(self, name: str) -> MaterializationRecord:
        """Return the facts about a materialization that its endpoint does not store."""
        return find_record(self._metadata.snapshot, self.root, name)

    def adopt_materialization(self, name: str) -> MaterializationRecord:
        """Return the facts about a materialization, after the move of files of an earlier release into the metadata."""
        record = self.materialization(name)
        if not record.is_stored:
            with self._metadata.transaction() as db:
                adopt_files(db, self.root, name)
                record = read_record(db, name)
            remove_adopted(self.root, [name])
        return record

    def acquire_task(
        self,
        name: str,
        shards: int,
        outputs: Sequence[str] = (),
        *,
        purpose: str | None = None,
        if_free: bool = False,
        shadow: str | None = None,
    ) -> tuple[TaskCapability, TaskState]:
        """Acquire the exclusive capability to run a task and to write its collections.

        Earlier capabilities of the task are fenced (law L5).

        Args:
            name: the task.
            shards: number of shards for a task that has never run.
            outputs: names of the collections that the task writes.
            purpose: description of the use, for people; None for a run.
            if_free: whether to fail if another process holds the capability.
            shadow: digest of the definition of the shadow beside which the caller runs the task, or as which the caller
                runs the task; empty for none. None to acquire the task with any shadow.

        Returns:
            The capability and the state of the task, including the last commits of the fenced run.

        Raises:
            FencedError: another process holds the capability, and `if_free` is set.
            OwnedError: one of the collections belongs to another writer.
            UsageError: the task has another shadow.
        """
        with self._metadata.transaction(wakes=True) as db:
            return acquire(db, name, shards, outputs, purpose=purpose, if_free=if_free, shadow=shadow)

    def commit_task(
        self, capability: TaskCapability, commit: TaskCommit | None, updates: Sequence[CollectionUpdate] = ()
    ) -> TaskCapability:
        """Advance a task and the collections that it writes, all or none, in one commit (law L2).

        A commit that only advances time is durable as soon as a later commit is durable.

        Args:
            capability: capability to run the task, and to write the collections of `updates`.
            commit: progress of the task; None for none.
            updates: at most one update of each collection, with timestamps at or above the capability's frontier for
                it.

        Returns:
            The capability at its new frontiers.

        Raises:
            FencedError: the capability is no longer valid.
            FrontierError: a timestamp is out of bounds, or a transform would move back.
        """
        (moved,) = self.commit_tasks([TaskMove(capability, commit, updates)])
        return moved

    def commit_tasks(self, moves: Sequence[TaskMove]) -> list[TaskCapability]:
        """Advance several tasks and the collections that they write, all or none, in one commit.

        Args:
            moves: at most one move of each task.

        Returns:
            The capability of each task at its new frontiers.

        Raises:
            FencedError: one of the capabilities is no longer valid.
            FrontierError: a timestamp is out of bounds, or a transform would move back.
        """

        def body(db: Transaction) -> Callable[[], list[TaskCapability]]:
            for move in moves:
                move_task(db, move)
            return lambda: [move.moved() for move in moves]

        is_more = any(move.is_more for move in moves)
        return self._metadata.commit(body, wakes=is_more, synced=is_more)

    def renew_tasks(self) -> None:
        """Renew the run capabilities of this process."""

        def body(db: Transaction) -> Callable[[], None]:
            renew_runs(db)
            return nothing

        self._metadata.commit(body, synced=False)

    def release_task(self, capability: TaskCapability) -> None:
        """Release the capability to run a task, unless it was fenced; then the task no longer bounds an `upper`."""
        with self._metadata.transaction(wakes=True) as db:
            if is_live(db, capability.id):
                release_run(db, capability.task)

    def note_task(self, capability: TaskCapability, note: TaskNote) -> None:
        """Record a note about a task, such as an error, without progress.

        Raises:
            FencedError: the capability is no longer valid.
        """
        with self._metadata.transaction() as db:
            require_run(db, capability)
            write_note(db, capability.task, note)

    def reset(
        self,
        names: Sequence[str],
        parts: Mapping[str, SomeOf[str]] | None = None,
        undone: tuple[str, str] | None = None,
        epochs: Mapping[str, int] | None = None,
        restarts: Mapping[str, str] | None = None,
    ) -> dict[str, ResetTask]:
        """Delete the derived data and the progress of tasks; their running processes are fenced.

        The tasks read their sources again from the beginning, as far as the history is kept.

        Args:
            names: names of the tasks.
            parts: for other tasks (by name), the state keys of the inputs that begin again.
            undone: collection and identifier of a load to undo in the same commit; None for none.
            epochs: epochs that tasks must have, by name; 0 for a task that has never run.
            restarts: JSON of the reset of each materialization among the tasks, by name.

        Returns:
            The tasks of `names` that had ever run, by name.

        Raises:
            FencedError: a task has another epoch; nothing was deleted.
            ReadLoadError: the load has readers that were not reset; nothing was deleted.
            StorageError: compaction has merged the load with other documents; nothing was deleted.
            UsageError: the load does not exist; nothing was deleted.
            OwnedError: a task has the name of another writer's collection; nothing was deleted.
        """
        with self._metadata.transaction(wakes=True) as db:
            release_expired(db)
            require_epochs(db, epochs or {})
            for name in names:
                require_open(db, name, Door.TASK)
            done = reset_tasks(db, names, parts or {}, restarts or {})
            if undone is not None:
                undo_load(db, *undone)
            return done
