"""Rights of tasks to read: who needs which past of a collection, for as long as the task exists.

A task holds a right to read each of its sources that outlives its runs: stopped for a week, it still finds what it has
not processed. The right moves up in the very commit that moves the task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from derive.storage.metadata.capability import TaskCapability, drop_ended, is_at_work, require_run
from derive.storage.metadata.collection import frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.read_rights import hold, holders, take_holds
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.needs import Right

_VIEW = "view:"
"""Begins the name under which a materialized view holds rights; no task of a catalog has a colon in its name."""


class Rights:
    """Rights of tasks and of materialized views to read the collections of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

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
            return {task for task in holders(db) if not task.startswith(_VIEW)}

    def hold_for_view(self, identifier: int, names: Collection[str], frontier: int) -> None:
        """Give a materialized view the right to read what it is made of, from a time on, until it is forgotten."""
        self.hold(f"{_VIEW}{identifier}", {name: (name, frontier) for name in names})

    def views(self) -> set[int]:
        """Identifiers of the materialized views that hold a right to read anything."""
        with self._metadata.snapshot() as db:
            return {int(task.removeprefix(_VIEW)) for task in holders(db) if task.startswith(_VIEW)}

    def forget_view(self, identifier: int) -> None:
        """Take from a materialized view that is gone its right to read."""
        self.forget(f"{_VIEW}{identifier}")

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
