"""Capabilities of tasks, materialized views and indexes, which last as long as the object exists.

A task has a read capability on each of its sources beyond the end of a run. A task that was stopped for a week
therefore still finds its unprocessed documents. The capability moves up in the commit that advances the task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from derive.storage.capability.table import (
    Capability,
    TaskCapability,
    acquire_input,
    dataflow_frontiers,
    index_holder,
    is_live,
    other_run,
    readers,
    release_expired,
    release_inputs,
    replace_inputs,
    require_run,
    run_capability,
    view_holder,
)
from derive.storage.metadata.collection import frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.relations import name_of_relation
from derive.storage.metadata.tables import forget_unread, read_table
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.positions import KeptHistory


class TaskCapabilities:
    """Capabilities of the tasks, materialized views and indexes of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    # Tasks

    def acquire_inputs(
        self,
        task: str,
        needs: Mapping[str, tuple[str, int]],
        capability: TaskCapability | None = None,
        relations: Mapping[str, Sequence[int]] | None = None,
        *,
        keeps: bool = False,
    ) -> dict[str, KeptHistory]:
        """Replace the read capabilities of a task by capabilities on exactly the given sources, at these frontiers.

        Args:
            task: name of the task.
            needs: source and first needed timestamp of each transform, by state key.
            capability: capability to run the task; None if the caller is no run.
            relations: relations that each started transform reads: the present one, and the next one if it switches.
                Other transforms read the relation with the source's name.
            keeps: keep the previous capabilities too, because the task may return to those sources.

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
                for name in names if frontiers else ():
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

    def is_running(self, task: str) -> bool:
        """Return true if a process has the capability to run a task."""
        with self._metadata.transaction() as db:
            release_expired(db)
            return run_capability(db, task) is not None

    def superseded(self, capabilities: Iterable[TaskCapability]) -> list[str]:
        """Return the names of the tasks whose run capabilities were fenced, or have ended."""
        with self._metadata.snapshot() as db:
            return [capability.task for capability in capabilities if not is_live(db, capability.id)]

    # Materialized views and indexes

    def acquire_dataflow_inputs(
        self, views: Mapping[int, tuple[Collection[str], int]], indexes: Mapping[int, tuple[Collection[str], int]]
    ) -> None:
        """Replace the read capabilities of materialized views and indexes, in one commit.

        A view has them until it is dropped, and an index until `release_index`.

        Args:
            views: names of the inputs and the first timestamp that is read, by the view's identifier.
            indexes: the same by the index's identifier.
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
