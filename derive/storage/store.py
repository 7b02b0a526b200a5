"""The Storage interface: collections as durable time-varying collections.

The verbs are the formalism's: `create`, `acquire_capabilities`, `update_and_downgrade`, `subscribe_at`; with `seal`,
an update without updates. Each is one transaction of the metadata database, durable when it returns.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import orjson

from derive.document.clock import format_rfc3339
from derive.errors import FrontierError
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.garbage import Files, insert_segments
from derive.storage.metadata.binding import bind, check_partitions
from derive.storage.metadata.capability import LEASE, WriteCapability
from derive.storage.metadata.descriptions import Collection, Edit, TaskCommit, TaskState
from derive.storage.metadata.host import Host, this_host
from derive.storage.metadata.lease import drop_ended, renew_own, require, rest_task
from derive.storage.metadata.opening import open_metadata
from derive.storage.metadata.process import this_process
from derive.storage.metadata.renewal import renewed
from derive.storage.metadata.tasks import commit_task, read_task
from derive.storage.rights import Rights, rewind_task
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

    Raises:
        StorageError: another machine uses the data folder, or it cannot be used.

    Attributes:
        timeline: assigns clocks.
        rights: rights to read, and the `since` they hold back.
        files: what lies in the folder beside what is part of a collection.
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
    ) -> None:
        self.root = root
        self._metadata, self._lock = open_metadata(root, host or this_host(), durable=durable, reading=reading)
        self.timeline = Timeline(self._metadata, wall, elapsed)
        self.rights = Rights(self._metadata)
        self.files = Files(root, self._metadata)

    def version(self) -> int:
        """Differs from what it was before once another process has committed something."""
        return self._metadata.version()

    def close(self) -> None:
        """Release the metadata database."""
        self._metadata.close()
        if self._lock:
            self._lock.release()

    # Collections

    def create(self, spec: CollectionSpec) -> None:
        """Bind a collection's name to its key and partitions, which are fixed from its first document on.

        Raises:
            StorageError: it holds documents, or someone is writing some, with another key or other partitions.
        """
        with self._metadata.transaction() as db:
            bind(db, spec)

    def collection(self, name: str) -> Collection | None:
        """What is known of a collection; None if nothing is stored under this name."""
        with self._metadata.snapshot() as db:
            row: Any = db.execute(
                "SELECT name, since, upper, coalesce(sum(documents), 0), count(segment.id), coalesce(sum(bytes), 0)"
                " FROM collection LEFT JOIN segment ON collection = name WHERE name = ? GROUP BY name",
                (name,),
            ).fetchone()
        return Collection(*row) if row else None

    def upper(self, name: str) -> int:
        """The `upper` of a collection."""
        with self._metadata.snapshot() as db:
            found: int | None = db.execute("SELECT upper FROM collection WHERE name = ?", (name,)).get
        return BEGINNING if found is None else found

    def segments(
        self, name: str, partitions: Sequence[str], selector: SelectorSpec, begin: int = BEGINNING
    ) -> list[Segment]:
        """Segments of a collection, without those of logical partitions that are not selected, by clock.

        Args:
            name: the collection.
            partitions: its partition fields, sorted.
            selector: which logical partitions.
            begin: only those with clocks from here on.

        Raises:
            StorageError: it was stored with other partition fields.
        """
        with self._metadata.snapshot() as db:
            rows: list[Any] = db.execute(
                "SELECT path, partition, clock_min, clock_max, documents, bytes FROM segment"
                " WHERE collection = ? AND clock_max >= ? ORDER BY clock_min, id",
                (name, begin),
            ).fetchall()
            if rows:
                check_partitions(db, name, partitions)
        found = [Segment(name, row[0], tuple(orjson.loads(row[1])), *row[2:]) for row in rows]
        return [each for each in found if selector.selects(dict(zip(partitions, each.partition, strict=True)))]

    # Capabilities

    def acquire_shared(self, name: str) -> WriteCapability:
        """A leased right to ingest into a collection, at the present: until it is dropped, `upper` stays below.

        Raises:
            FrontierError: all of the collection that is before some later time is final.
        """
        with self._metadata.transaction() as db:
            upper: int = db.execute("SELECT upper FROM collection WHERE name = ?", (name,)).get
            now = self.timeline.advance(db)
            if upper > now:
                raise FrontierError(
                    f"'{name}' is final before {format_rfc3339(upper)}, and it is {format_rfc3339(now)}",
                    hint="it was loaded with times yet to come; load what it holds into another collection",
                )
            capability = WriteCapability(str(uuid.uuid4()), name, now)
            self._insert(db, capability, wall_clock() + LEASE)
        return capability

    def acquire_history(self, name: str) -> WriteCapability:
        """A leased right to load documents with times of their own, from the collection's `upper` on."""
        with self._metadata.transaction() as db:
            upper: int = db.execute("SELECT upper FROM collection WHERE name = ?", (name,)).get
            capability = WriteCapability(str(uuid.uuid4()), name, upper)
            self._insert(db, capability, wall_clock() + LEASE)
        return capability

    def acquire_exclusive(self, name: str) -> WriteCapability:
        """A task's right to write its collection; every earlier one is superseded (law L5)."""
        with self._metadata.transaction() as db:
            db.execute("UPDATE collection SET epoch = epoch + 1 WHERE name = ?", (name,))
            db.execute("DELETE FROM capability WHERE collection = ? AND kind = 'write'", (name,))
            row: Any = db.execute("SELECT epoch, upper FROM collection WHERE name = ?", (name,)).fetchone()
            epoch, upper = row
            capability = WriteCapability(str(uuid.uuid4()), name, upper, epoch)
            self._insert(db, capability, wall_clock() + LEASE)
        return capability

    @staticmethod
    def _insert(db: apsw.Connection, capability: WriteCapability, expires: int) -> None:
        db.execute(
            "INSERT INTO capability (id, collection, kind, epoch, frontier, expires, holder)"
            " VALUES (?, ?, 'write', ?, ?, ?, ?)",
            (
                capability.id,
                capability.collection,
                capability.epoch,
                capability.frontier,
                expires,
                this_process(),
            ),
        )

    def renewed(self, capability: WriteCapability, every: float) -> AbstractContextManager[None]:
        """Renew the lease of a shared capability, every so many seconds, for as long as the block takes."""
        return renewed(self._metadata.path, capability.id, every)

    def renew_exclusive(self) -> None:
        """Extend the leases of all exclusive capabilities that this process holds."""
        with self._metadata.transaction() as db:
            renew_own(db)

    def drop(self, capability: WriteCapability) -> None:
        """Give a capability back; `upper` is no longer held by it."""
        with self._metadata.transaction() as db:
            db.execute("DELETE FROM capability WHERE id = ?", (capability.id,))
            if capability.epoch and db.changes():
                rest_task(db, capability.collection)

    # Writing

    def update_and_downgrade(
        self,
        capability: WriteCapability,
        segments: Sequence[Segment],
        frontier: int,
        *,
        task: TaskCommit | None = None,
        ascending: bool = False,
    ) -> WriteCapability:
        """Add segments and move the capability's frontier up, which lets `upper` follow; all in one commit.

        Args:
            capability: names the collection; its frontier is not above any clock in `segments`.
            segments: durable files.
            frontier: the new frontier; above every clock in `segments`.
            task: what else commits with it.
            ascending: require that no document stored so far is as late as these.

        Returns:
            The capability at its new frontier.

        Raises:
            FencedError: the capability is no longer valid.
            FrontierError: a clock is out of bounds.
        """
        low = min((each.clock_min for each in segments), default=capability.frontier)
        high = max((each.clock_max for each in segments), default=capability.frontier - 1)
        with self._metadata.transaction() as db:
            require(db, capability)
            name = capability.collection
            upper: int = db.execute("SELECT upper FROM collection WHERE name = ?", (name,)).get
            if low < max(upper, capability.frontier) or high >= max(frontier, low):
                raise FrontierError(f"documents at {low} to {high} do not fit '{name}', whose upper is {upper}")
            last = db.execute("SELECT max(clock_max) FROM segment WHERE collection = ?", (name,)).get
            if ascending and segments and last is not None and low <= last:
                raise FrontierError(f"documents from {low} on are not later than those '{name}' already holds")
            insert_segments(db, name, segments)
            db.execute(
                "UPDATE capability SET frontier = ?, expires = ? WHERE id = ?",
                (frontier, wall_clock() + LEASE, capability.id),
            )
            self._advance_upper(db, name, frontier)
            if ascending:  # the last of these may be a little beyond the present, and what comes now is later
                db.execute("UPDATE timeline SET clock = max(clock, ?)", (frontier - 1,))
            if task:
                commit_task(db, task)
        return replace(capability, frontier=frontier)

    def seal(self, names: Sequence[str], frontier: int) -> dict[str, int]:
        """Advance collections to `frontier`, or as far as live write capabilities allow, with no new updates.

        It also extends the leases of the exclusive capabilities that this process holds.

        Returns:
            The `upper` of each.
        """
        with self._metadata.transaction() as db:
            return self._seal(db, names, frontier)

    def seal_now(self, names: Sequence[str]) -> int:
        """Read the present, and advance collections to it as far as live write capabilities allow; in one commit."""
        with self._metadata.transaction() as db:
            now = self.timeline.pass_now(db)
            self._seal(db, names, now)
        return now

    def _seal(self, db: apsw.Connection, names: Sequence[str], frontier: int) -> dict[str, int]:
        renew_own(db)
        drop_ended(db)
        return {name: self._advance_upper(db, name, frontier) for name in names}

    @staticmethod
    def _advance_upper(db: apsw.Connection, name: str, frontier: int) -> int:
        held = db.execute("SELECT min(frontier) FROM capability WHERE collection = ? AND kind = 'write'", (name,)).get
        bound = frontier if held is None else min(held, frontier)
        db.execute("UPDATE collection SET upper = max(upper, ?) WHERE name = ?", (bound, name))
        upper: int = db.execute("SELECT upper FROM collection WHERE name = ?", (name,)).get
        return upper

    # Tasks

    def task(self, name: str) -> TaskState | None:
        """What is known of a task; None if it has never run."""
        with self._metadata.snapshot() as db:
            return read_task(db, name)

    def create_task(self, name: str, shards: int) -> TaskState:
        """The task's state; its number of shards is fixed now if it has never run."""
        with self._metadata.transaction() as db:
            db.execute(
                "INSERT INTO task (name, shards, positions) VALUES (?, ?, '{}') ON CONFLICT DO NOTHING", (name, shards)
            )
        state = self.task(name)
        assert state is not None
        return state

    def set_shards(self, capability: WriteCapability, shards: int, tokens: Mapping[int, str]) -> None:
        """Give a task another number of shards.

        Args:
            capability: the exclusive right to write the task's collection.
            shards: how many.
            tokens: by number, the token that each shard's state is at; those without state have none.

        Raises:
            FencedError: the capability is no longer valid.
        """
        name = capability.collection
        with self._metadata.transaction() as db:
            require(db, capability)
            db.execute("UPDATE task SET shards = ? WHERE name = ?", (shards, name))
            db.execute("DELETE FROM shard WHERE task = ?", (name,))
            db.executemany("INSERT INTO shard VALUES (?, ?, ?)", [(name, *each) for each in tokens.items()])

    def set_edits(self, capability: WriteCapability, fingerprints: Mapping[str, str], edits: Sequence[Edit]) -> None:
        """Record what a task consists of as it begins to run, and what was edited under its output.

        Args:
            capability: the exclusive right to write the task's collection.
            fingerprints: as in `TaskState`.
            edits: as in `TaskState`.

        Raises:
            FencedError: the capability is no longer valid.
        """
        rows = [[edit.part, edit.message, edit.hint, edit.at] for edit in edits]
        with self._metadata.transaction() as db:
            require(db, capability)
            db.execute(
                "UPDATE task SET fingerprints = ?, edits = ? WHERE name = ?",
                (orjson.dumps(dict(fingerprints)).decode(), orjson.dumps(rows).decode(), capability.collection),
            )

    def set_error(self, capability: WriteCapability, error: str) -> None:
        """Record, as JSON, why a task stopped; its next commit removes it.

        Args:
            capability: the exclusive right to write the task's collection.
            error: JSON of a `FlowError`.

        Raises:
            FencedError: the capability is no longer valid.
        """
        with self._metadata.transaction() as db:
            require(db, capability)
            db.execute("UPDATE task SET error = ? WHERE name = ?", (error, capability.collection))

    def reset(self, names: Sequence[str]) -> None:
        """Forget all that tasks have derived and how far they were; who still writes for them is superseded.

        They need their sources from the beginning again, or what is known of it.
        """
        with self._metadata.transaction() as db:
            for name in names:
                db.execute(
                    "UPDATE collection SET since = ?, upper = ?, epoch = epoch + 1 WHERE name = ?",
                    (BEGINNING, BEGINNING, name),
                )
                db.execute("DELETE FROM capability WHERE collection = ? AND task IS NULL", (name,))
                db.execute("DELETE FROM segment WHERE collection = ?", (name,))
                db.execute("DELETE FROM replaced WHERE collection = ?", (name,))
                db.execute("DELETE FROM shard WHERE task = ?", (name,))
                db.execute("DELETE FROM task WHERE name = ?", (name,))
            for name in names:
                rewind_task(db, name)
