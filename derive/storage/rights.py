"""Rights to read: who needs which past of a collection, and how far `since` may therefore move.

A task holds a right to read each of its sources that outlives it: stopped for a week, it still finds what it has not
processed. It moves up in the very commit that moves the task. Whoever reads once holds a lease instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import apsw

from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FrontierError, UsageError
from derive.storage.garbage import are_there, replace_segments
from derive.storage.metadata.capability import LEASE, ReadCapability, WriteCapability
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.lease import drop_ended, require
from derive.storage.metadata.process import show_process, this_process
from derive.storage.metadata.renewal import renewed
from derive.storage.timeline import wall_clock
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.needs import Right
from derive.time.segment import Segment


@dataclass(frozen=True, slots=True)
class Hold:
    """Who holds the `since` of a collection back.

    Attributes:
        frontier: clock from which on they need it.
        task: name of the task; None for a reader with a lease.
        holder: the process, `host:pid`.
    """

    frontier: int
    task: str | None
    holder: str


@dataclass(frozen=True, slots=True)
class Frontiers:
    """Between which times a collection is exact and final.

    Attributes:
        since: its contents are exact from here on.
        upper: everything below is final.
        holds: who holds `since` back, the least first.
    """

    since: int
    upper: int
    holds: tuple[Hold, ...]

    @property
    def bound(self) -> int:
        """How far `since` may move now."""
        return max(self.since, min([self.upper, *(each.frontier for each in self.holds)]))


class Rights:
    """Read capabilities of one data folder, and the `since` they hold back."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    # Leases

    def lease(self, name: str, frontier: int | None = None) -> ReadCapability:
        """Acquire a leased right to read a collection.

        Who may not write the metadata holds nothing back: files stay for as long as compaction keeps them anyway.

        Args:
            name: the collection.
            frontier: the least time that matters; None for the present contents.

        Raises:
            UsageError: nothing is stored under this name.
            FrontierError: the contents at that time are no longer known.
        """
        can_write = self._metadata.can_write
        with self._metadata.transaction() if can_write else self._metadata.snapshot() as db:
            row: Any = db.execute("SELECT since, upper FROM collection WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise UsageError(f"nothing is stored in collection '{name}' yet")
            since, upper = row
            if frontier is not None and frontier < since:
                raise FrontierError(
                    f"'{name}' is exact from {format_rfc3339(since)} on; what it held at"
                    f" {format_rfc3339(frontier)} was compacted",
                    hint="ask for a later time",
                )
            capability = ReadCapability(str(uuid.uuid4()), name, max(since, upper) if frontier is None else frontier)
            now = wall_clock()
            if can_write:
                _insert(db, capability, expires=now + LEASE, at=now)
        return capability

    def upper(self, capability: ReadCapability) -> int:
        """The `upper` of the collection that a lease is for.

        Raises:
            FencedError: the lease ran out, or the collection was reset.
        """
        with self._metadata.snapshot() as db:
            row: Any = db.execute(
                "SELECT since, upper, id FROM collection LEFT JOIN capability ON collection = name AND id = ?"
                " WHERE name = ?",
                (capability.id, capability.collection),
            ).fetchone()
        since, upper, identifier = row
        is_known = since <= capability.frontier <= upper
        if not (identifier if self._metadata.can_write else is_known):
            raise _ended(capability)
        return int(upper)

    def downgrade(self, capability: ReadCapability, frontier: int) -> ReadCapability:
        """Move a lease up to a later time, and renew it; what its holder read before may be compacted.

        Raises:
            FencedError: the lease ran out, or the collection was reset.
        """
        now = wall_clock()
        if self._metadata.can_write:
            with self._metadata.transaction() as db:
                db.execute(
                    "UPDATE capability SET frontier = max(frontier, ?), expires = ?, at = ? WHERE id = ?",
                    (frontier, now + LEASE, now, capability.id),
                )
                if not db.changes():
                    raise _ended(capability)
        return replace(capability, frontier=max(capability.frontier, frontier))

    def drop(self, capability: ReadCapability) -> None:
        """Give a lease back; `since` is no longer held by it."""
        with self._metadata.transaction() as db:
            db.execute("DELETE FROM capability WHERE id = ?", (capability.id,))

    @contextmanager
    def kept(self, capability: ReadCapability) -> Iterator[None]:
        """Renew a lease in the background for as long as the block takes, and give it back."""
        if not self._metadata.can_write:
            yield
            return
        try:
            with renewed(self._metadata.path, capability.id):
                yield
        finally:
            self.drop(capability)

    # Tasks

    def hold(
        self, task: str, needs: Mapping[str, tuple[str, int]], capability: WriteCapability | None = None
    ) -> dict[str, Right]:
        """Give a task the right to read its sources from where it needs them, and to read nothing else.

        Args:
            task: its name.
            needs: for each transform (by state key), its source and the least clock of it that it still needs.
            capability: the exclusive right of the run that asks; None if it is not a run.

        Returns:
            For each transform, what it finds.

        Raises:
            FencedError: the capability is no longer valid, and what the task needs is no longer for this run to say.
        """
        now = wall_clock()
        found = {}
        with self._metadata.transaction() as db:
            if capability is not None:
                require(db, capability)
            rows: list[Any] = db.execute(
                "DELETE FROM capability WHERE task = ? RETURNING transform, collection, frontier", (task,)
            ).fetchall()
            held = {(transform, name): frontier for transform, name, frontier in rows}
            for transform, (name, frontier) in needs.items():
                since: int | None = db.execute("SELECT since FROM collection WHERE name = ?", (name,)).get
                found[transform] = Right(since or BEGINNING, held.get((transform, name), END_OF_TIME) <= frontier)
                if since is not None:
                    right = ReadCapability(str(uuid.uuid4()), name, frontier)
                    _insert(db, right, at=now, task=task, transform=transform)
        return found

    def holders(self) -> set[str]:
        """Names of the tasks that hold a right to read anything."""
        with self._metadata.snapshot() as db:
            rows: list[Any] = db.execute("SELECT DISTINCT task FROM capability WHERE task IS NOT NULL").fetchall()
        return {row[0] for row in rows}

    def is_at_work(self, task: str) -> bool:
        """Whether a process holds the right to write for a task."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return _is_at_work(db, task)

    def readers(self, names: Sequence[str]) -> set[str]:
        """Names of the tasks that hold a right to read any of these collections."""
        with self._metadata.snapshot() as db:
            rows: list[Any] = db.execute(
                "SELECT DISTINCT collection, task FROM capability WHERE task IS NOT NULL"
            ).fetchall()
        return {task for collection, task in rows if collection in names}

    def forget(self, task: str) -> bool:
        """Take from a task that is gone its right to read; False if it is at work."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            if _is_at_work(db, task):
                return False
            db.execute("DELETE FROM capability WHERE task = ?", (task,))
        return True

    # Since

    def frontiers(self, name: str) -> Frontiers | None:
        """Between which times a collection is known, and who reads it; None if nothing is stored under this name."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return _frontiers(db, name)

    def advance_since(self, name: str, since: int, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Move `since` up, and replace the history below it; all in one commit.

        Args:
            name: the collection.
            since: clock; neither beyond `upper` nor beyond what anyone needs.
            old: every segment with clocks below `since`.
            new: what takes their place: exact at `since` and every later time.

        Returns:
            False if this is not possible any more: the collection was reset, or someone has begun to read it.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            known = _frontiers(db, name)
            count: int = db.execute(
                "SELECT count(*) FROM segment WHERE collection = ? AND clock_min < ?", (name, since)
            ).get
            if known is None or since > known.bound or count != len(old) or not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
            db.execute("UPDATE collection SET since = max(since, ?) WHERE name = ?", (since, name))
        return True


def move_task(db: apsw.Connection, task: str, reads: Mapping[str, int]) -> None:
    """Move a task's rights to read up to where it needs its sources now."""
    now = wall_clock()
    db.executemany(
        "UPDATE capability SET frontier = max(frontier, ?), at = ? WHERE task = ? AND transform = ?",
        [(frontier, now, task, transform) for transform, frontier in reads.items()],
    )


def rewind_task(db: apsw.Connection, task: str) -> None:
    """Move a task's rights to read back to the beginning of what its sources still know."""
    db.execute(
        "UPDATE capability SET at = NULL,"
        " frontier = (SELECT since FROM collection WHERE name = capability.collection) WHERE task = ?",
        (task,),
    )


def _ended(capability: ReadCapability) -> FencedError:
    return FencedError(
        f"'{capability.collection}' was reset, or the lease to read it ran out", hint="run the command again"
    )


def _insert(
    db: apsw.Connection,
    capability: ReadCapability,
    *,
    at: int,
    expires: int | None = None,
    task: str | None = None,
    transform: str | None = None,
) -> None:
    db.execute(
        "INSERT INTO capability (id, collection, kind, epoch, frontier, expires, holder, task, transform, at)"
        " VALUES (?, ?, 'read', 0, ?, ?, ?, ?, ?, ?)",
        (
            capability.id,
            capability.collection,
            capability.frontier,
            expires,
            this_process(),
            task,
            transform,
            at,
        ),
    )


def _is_at_work(db: apsw.Connection, task: str) -> bool:
    return db.execute("SELECT 1 FROM capability WHERE collection = ? AND kind = 'write'", (task,)).get is not None


def _frontiers(db: apsw.Connection, name: str) -> Frontiers | None:
    row: Any = db.execute("SELECT since, upper FROM collection WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    holds: list[Any] = db.execute(
        "SELECT min(frontier), task, holder FROM capability WHERE collection = ? AND kind = 'read'"
        " GROUP BY coalesce(task, id) ORDER BY 1, task, holder",
        (name,),
    ).fetchall()
    return Frontiers(
        row[0], row[1], tuple(Hold(frontier, task, show_process(holder)) for frontier, task, holder in holds)
    )
