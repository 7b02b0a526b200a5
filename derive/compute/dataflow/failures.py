"""Groups that advance tick by tick or have failed: their errors, and whether they can resume."""

from __future__ import annotations

import apsw

from derive.compute.dataflow.dataflow_group import DataflowGroup
from derive.compute.dataflow.staging import as_failure
from derive.errors import FlowError
from derive.failpoint import reach

MOST_UPDATES = 20_000
"""Approximate number of updates after which a transaction ends."""


class GroupFailures:
    """Failures of dataflow groups.

    Args:
        connection: writing connection of their database.

    Attributes:
        failures: errors by the group's number.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.failures: dict[int, FlowError] = {}
        self._waiting: set[int] = set()

    def advance(self, group: DataflowGroup) -> bool:
        """Advance a group by a transaction, unless it has failed; return whether anything happened."""
        if group.id in self.failures:
            return False
        try:
            group.poll()
        except Exception as exc:  # after any error, updates taken from inputs may be lost
            self.fail(group, as_failure(exc))
            return True
        upper = group.upper
        if group.complete() <= upper:
            return False
        try:
            with self._connection:
                group.advance(MOST_UPDATES)
                reach("dataflow.committing")
        except Exception as exc:  # any error, such as a full disk, may be transient
            group.go_back()
            self.fail(group, as_failure(exc))
            self._waiting.add(group.id)
            return True
        reach("dataflow.committed")
        group.keep()
        return group.upper > upper

    def has_more(self, group: DataflowGroup) -> bool:
        """Return whether a group can advance at once, without new input."""
        if group.id in self.failures:
            return False
        return group.complete() > group.upper or any(feed.input.has_more for feed in group.feeds.values())

    def fail(self, group: DataflowGroup, failure: FlowError) -> None:
        """Record the failure of a group."""
        self.failures[group.id] = failure

    def can_go_on(self, group: DataflowGroup) -> bool:
        """Return whether a failed group could resume."""
        return group.id in self._waiting

    def go_on(self, group: DataflowGroup) -> None:
        """Resume a failed group, if possible: the cause may be gone."""
        if group.id in self._waiting:
            self.forget(group)

    def forget(self, group: DataflowGroup) -> None:
        """Remove the failure of a group that resumes or ends."""
        self.failures.pop(group.id, None)
        self._waiting.discard(group.id)
