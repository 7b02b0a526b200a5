"""Read capabilities of tasks: holds on sources that last as long as the task exists.

A task holds a read capability on each of its sources beyond the end of a run. A task that was stopped for a week
therefore still finds its unprocessed documents. The capability moves up in the commit that advances the task.
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
"""Names of collections, and the timestamp from which they are read."""


class Rights:
    """Read capabilities of tasks and of materialized views on the collections of one data folder."""

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
        """Set the read capabilities of a task to exactly the given sources and frontiers.

        Args:
            task: name of the task.
            needs: source and first needed timestamp of each transform, by state key.
            capability: capability to run the task; None if the caller is no run.
            relations: relations that each started transform reads: the present one, and the next one if it switches.
                Other transforms read the relation with the source's name.
            keeps: keep the previous capabilities too, because the task may return to those sources.

        Returns:
            The granted capability of each transform, by state key.

        Raises:
            FencedError: the capability is no longer valid, so another run decides about the task.
        """
        rights = {}
        with self._metadata.transaction() as db:
            if capability is not None:
                require_run(db, capability)
            held = take_holds(db, task)
            desired = dict(held) if keeps else {}
            for transform, (source, frontier) in needs.items():
                read = [name_of_relation(db, relation) for relation in (relations or {}).get(transform, ())]
                names = [name for name in read if name is not None] or [source]
                frontiers = frontiers_of(db, names[0])
                since = frontiers[0] if frontiers else BEGINNING
                rights[transform] = Right(since, held.get((transform, names[0]), END_OF_TIME) <= frontier)
                for name in names if frontiers else ():
                    desired[transform, name] = min(frontier, desired.get((transform, name), frontier))
            for (transform, name), frontier in desired.items():
                hold(db, task, transform, name, frontier)
            forget_unread(db)
        return rights

    def holders(self) -> set[str]:
        """Return the names of the tasks that hold a read capability."""
        with self._metadata.snapshot() as db:
            return {task for task in holders(db) if view_of_holder(task) is None and index_of_holder(task) is None}

    def hold_for_dataflows(self, views: Mapping[int, MadeOf], indexes: Mapping[int, MadeOf]) -> None:
        """Give materialized views and indexes read capabilities on their inputs, in one transaction.

        A view holds them until it is dropped, and an index until `forget_index`. Previous capabilities are dropped.

        Args:
            views: inputs by the view's identifier.
            indexes: inputs by the index's identifier.
        """
        with self._metadata.transaction() as db:
            for identifier, (names, frontier) in views.items():
                view = read_table(db, identifier)
                if view is not None and view.upper < END_OF_TIME:
                    hold_only(db, holder_of_view(identifier), names, frontier)
            for identifier, (names, frontier) in indexes.items():
                hold_only(db, holder_of_index(identifier), names, frontier)

    def indexes(self) -> dict[int, int]:
        """Return the indexes that hold read capabilities, with the timestamp from which each may read its inputs."""
        with self._metadata.snapshot() as db:
            held = frontiers_of_holders(db)
        return {index: time for task, time in held.items() if (index := index_of_holder(task)) is not None}

    def views(self) -> dict[int, int]:
        """Return the materialized views that hold read capabilities, with the timestamp from which each may read."""
        with self._metadata.snapshot() as db:
            held = frontiers_of_holders(db)
        return {view: time for task, time in held.items() if (view := view_of_holder(task)) is not None}

    def forget_index(self, identifier: int) -> None:
        """Drop the read capabilities of an index."""
        self.forget(holder_of_index(identifier))

    def superseded(self, capabilities: Iterable[TaskCapability]) -> list[str]:
        """Return the names of the tasks whose run capabilities were fenced, or have ended."""
        with self._metadata.snapshot() as db:
            return [capability.task for capability in capabilities if not is_live(db, capability.id)]

    def runner(self, task: str) -> Runner | None:
        """Return the other process that holds the capability to run a task; None for none."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return runner_of(db, task)

    def runners(self, tasks: Iterable[str]) -> dict[str, Runner]:
        """Return the other processes that hold the capability to run tasks, by task."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return {task: runner for task in tasks if (runner := runner_of(db, task)) is not None}

    def is_at_work(self, task: str) -> bool:
        """Return true if a process holds the capability to run a task."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            return is_at_work(db, task)

    def readers(self, names: Sequence[str]) -> set[str]:
        """Return the names of the tasks that hold a read capability on any of these collections."""
        with self._metadata.snapshot() as db:
            return {task for task, collections in holders(db).items() if not collections.isdisjoint(names)}

    def forget(self, task: str) -> bool:
        """Drop the read capabilities of a task; return False if the task is running."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            if is_at_work(db, task):
                return False
            take_holds(db, task)
        return True
