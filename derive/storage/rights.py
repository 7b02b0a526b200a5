"""Rights of tasks to read: who needs which past of a collection, for as long as the task exists.

A task holds a right to read each of its sources that outlives its runs: stopped for a week, it still finds what it has
not processed. The right moves up in the very commit that moves the task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from derive.storage.metadata.capability import (
    Runner,
    TaskCapability,
    drop_ended,
    is_at_work,
    is_live,
    require_run,
    runner_of,
)
from derive.storage.metadata.collection import frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.read_rights import (
    frontiers_of_holders,
    hold,
    hold_only,
    holder_of_index,
    holder_of_view,
    holders,
    index_of_holder,
    take_holds,
    view_of_holder,
)
from derive.storage.metadata.relations import name_of_relation
from derive.storage.metadata.tables import forget_unread, read_table
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.needs import Right

MadeOf: TypeAlias = tuple[Collection[str], int]
"""Collections, and the time from which on they are read."""


class Rights:
    """Rights of tasks and of materialized views to read the collections of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def hold(
        self,
        task: str,
        needs: Mapping[str, tuple[str, int]],
        capability: TaskCapability | None = None,
        relations: Mapping[str, Sequence[int]] | None = None,
        *,
        keeps: bool = False,
    ) -> dict[str, Right]:
        """Give a task the right to read its sources from where it needs them, and to read nothing else.

        Args:
            task: its name.
            needs: for each transform (by state key), its source and the least clock of it that it still needs.
            capability: the right to run the task, of the run that asks; None if it is not a run.
            relations: for each transform that has begun with one, the relation that it reads, and another one that it
                is on its way to; other transforms read the one for which the source's name stands.
            keeps: the task also keeps the rights that it has had, as it may yet go on with those.

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
            wanted = dict(held) if keeps else {}
            for transform, (source, frontier) in needs.items():
                read = [name_of_relation(db, relation) for relation in (relations or {}).get(transform, ())]
                names = [name for name in read if name is not None] or [source]
                frontiers = frontiers_of(db, names[0])
                since = frontiers[0] if frontiers else BEGINNING
                rights[transform] = Right(since, held.get((transform, names[0]), END_OF_TIME) <= frontier)
                for name in names if frontiers else ():
                    wanted[transform, name] = min(frontier, wanted.get((transform, name), frontier))
            for (transform, name), frontier in wanted.items():
                hold(db, task, transform, name, frontier)
            forget_unread(db)
        return rights

    def holders(self) -> set[str]:
        """Names of the tasks that hold a right to read anything."""
        with self._metadata.snapshot() as db:
            return {task for task in holders(db) if view_of_holder(task) is None and index_of_holder(task) is None}

    def hold_for_dataflows(self, views: Mapping[int, MadeOf], indexes: Mapping[int, MadeOf]) -> None:
        """Give materialized views and indexes the right to read what they are made of, in one transaction.

        A view has it until it is dropped, an index until it is taken away. What they held before is given back.

        Args:
            views: by identifier.
            indexes: by identifier.
        """
        with self._metadata.transaction() as db:
            for identifier, (names, frontier) in views.items():
                view = read_table(db, identifier)
                if view is not None and view.upper < END_OF_TIME:
                    hold_only(db, holder_of_view(identifier), names, frontier)
            for identifier, (names, frontier) in indexes.items():
                hold_only(db, holder_of_index(identifier), names, frontier)

    def indexes(self) -> dict[int, int]:
        """Identifiers of the indexes that hold a right to read anything, and from which time on they may read all."""
        with self._metadata.snapshot() as db:
            held = frontiers_of_holders(db)
        return {index: time for task, time in held.items() if (index := index_of_holder(task)) is not None}

    def views(self) -> dict[int, int]:
        """The same for materialized views."""
        with self._metadata.snapshot() as db:
            held = frontiers_of_holders(db)
        return {view: time for task, time in held.items() if (view := view_of_holder(task)) is not None}

    def forget_index(self, identifier: int) -> None:
        """Take from an index that is gone its right to read."""
        self.forget(holder_of_index(identifier))

    def superseded(self, capabilities: Iterable[TaskCapability]) -> list[str]:
        """Names of the tasks of which these rights to run have been taken away, or have ended."""
        with self._metadata.snapshot() as db:
            return [capability.task for capability in capabilities if not is_live(db, capability.id)]

    def runner(self, task: str) -> Runner | None:
        """Who else has the right to run a task than this process; None if nobody has."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return runner_of(db, task)

    def runners(self, tasks: Iterable[str]) -> dict[str, Runner]:
        """Return the other process that has the right to run each of some tasks, if one has."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return {task: runner for task in tasks if (runner := runner_of(db, task)) is not None}

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
