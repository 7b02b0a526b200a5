"""Rights to read: who needs which past of a collection, and how far `since` may therefore move.

A task holds a right to read each of its sources that outlives it: stopped for a week, it still finds what it has not
processed. It moves up in the very commit that moves the task. Whoever reads once holds a lease instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import apsw

from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FrontierError, UsageError
from derive.storage.metadata.capability import (
    ReadCapability,
    TaskCapability,
    drop,
    drop_ended,
    is_at_work,
    is_live,
    require_run,
)
from derive.storage.metadata.collection import advance_since, frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.descriptions import Frontiers
from derive.storage.metadata.read_rights import downgrade_read, hold, holders, lease_read, read_holds, take_holds
from derive.storage.metadata.renewal import renewed
from derive.storage.metadata.segment import are_there, count_below, replace_segments
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.needs import Right
from derive.time.segment import Segment


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
            frontiers = frontiers_of(db, name)
            if frontiers is None:
                raise UsageError(f"nothing is stored in collection '{name}' yet")
            since, upper = frontiers
            if frontier is not None and frontier < since:
                raise FrontierError(
                    f"'{name}' is exact from {format_rfc3339(since)} on; what it held at"
                    f" {format_rfc3339(frontier)} was compacted",
                    hint="ask for a later time",
                )
            begin = max(since, upper) if frontier is None else frontier
            return lease_read(db, name, begin) if can_write else ReadCapability("", name, begin)

    def upper(self, capability: ReadCapability) -> int:
        """The `upper` of the collection that a lease is for.

        Raises:
            FencedError: the lease ran out, or the collection was reset.
        """
        with self._metadata.snapshot() as db:
            frontiers = frontiers_of(db, capability.collection)
            is_leased = is_live(db, capability.id)
        assert frontiers is not None  # there was a right to read it
        since, upper = frontiers
        is_known = since <= capability.frontier <= upper
        if not (is_leased if self._metadata.can_write else is_known):
            raise _ended(capability)
        return upper

    def downgrade(self, capability: ReadCapability, frontier: int) -> ReadCapability:
        """Move a lease up to a later time, and renew it; what its holder read before may be compacted.

        Raises:
            FencedError: the lease ran out, or the collection was reset.
        """
        if self._metadata.can_write:
            with self._metadata.transaction() as db:
                if not downgrade_read(db, capability, frontier):
                    raise _ended(capability)
        return replace(capability, frontier=max(capability.frontier, frontier))

    def drop(self, capability: ReadCapability) -> None:
        """Give a lease back; `since` is no longer held by it."""
        with self._metadata.transaction() as db:
            drop(db, capability.id)

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
        self, task: str, needs: Mapping[str, tuple[str, int]], capability: TaskCapability | None = None
    ) -> dict[str, Right]:
        """Give a task the right to read its sources from where it needs them, and to read nothing else.

        Args:
            task: its name.
            needs: for each transform (by state key), its source and the least clock of it that it still needs.
            capability: the right to run the task, of the run that asks; None if it is not a run.

        Returns:
            For each transform, what it finds.

        Raises:
            FencedError: the capability is no longer valid, and what the task needs is no longer for this run to say.
        """
        rights = {}
        with self._metadata.transaction() as db:
            if capability is not None:
                require_run(db, capability)
            held = take_holds(db, task)
            for transform, (name, frontier) in needs.items():
                frontiers = frontiers_of(db, name)
                since = frontiers[0] if frontiers else BEGINNING
                rights[transform] = Right(since, held.get((transform, name), END_OF_TIME) <= frontier)
                if frontiers:
                    hold(db, task, transform, name, frontier)
        return rights

    def holders(self) -> set[str]:
        """Names of the tasks that hold a right to read anything."""
        with self._metadata.snapshot() as db:
            return set(holders(db))

    def is_at_work(self, task: str) -> bool:
        """Whether a process holds the right to run a task."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return is_at_work(db, task)

    def readers(self, names: Sequence[str]) -> set[str]:
        """Names of the tasks that hold a right to read any of these collections."""
        with self._metadata.snapshot() as db:
            return {task for task, collections in holders(db).items() if not collections.isdisjoint(names)}

    def forget(self, task: str) -> bool:
        """Take from a task that is gone its right to read; False if it is at work."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            if is_at_work(db, task):
                return False
            take_holds(db, task)
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
            if known is None or since > known.bound or count_below(db, name, since) != len(old):
                return False
            if not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
            advance_since(db, name, since)
        return True


def _ended(capability: ReadCapability) -> FencedError:
    return FencedError(
        f"'{capability.collection}' was reset, or the lease to read it ran out", hint="run the command again"
    )


def _frontiers(db: apsw.Connection, name: str) -> Frontiers | None:
    frontiers = frontiers_of(db, name)
    return Frontiers(*frontiers, read_holds(db, name)) if frontiers else None
