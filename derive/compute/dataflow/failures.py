"""Groups that advance tick by tick or have failed: their errors, and whether they can resume."""

from __future__ import annotations

import apsw

from derive.compute.dataflow.cohort import Cohort
from derive.compute.dataflow.staging import as_failure
from derive.errors import FlowError
from derive.failpoint import reach

MOST_UPDATES = 20_000
"""Approximate number of updates after which a transaction ends."""


class Halts:
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

    def advance(self, cohort: Cohort) -> bool:
        """Advance a group by a transaction, unless it has failed; return whether anything happened."""
        if cohort.id in self.failures:
            return False
        try:
            cohort.poll()
        except Exception as exc:  # after any error, updates taken from inputs may be lost
            self.halt(cohort, as_failure(exc))
            return True
        upper = cohort.upper
        if cohort.complete() <= upper:
            return False
        try:
            with self._connection:
                cohort.advance(MOST_UPDATES)
                reach("dataflow.committing")
        except Exception as exc:  # any error, such as a full disk, may be transient
            cohort.go_back()
            self.halt(cohort, as_failure(exc))
            self._waiting.add(cohort.id)
            return True
        reach("dataflow.committed")
        cohort.keep()
        return cohort.upper > upper

    def has_more(self, cohort: Cohort) -> bool:
        """Return whether a group can advance at once, without new input."""
        if cohort.id in self.failures:
            return False
        return cohort.complete() > cohort.upper or any(feed.input.has_more for feed in cohort.feeds.values())

    def halt(self, cohort: Cohort, failure: FlowError) -> None:
        """Record the failure of a group."""
        self.failures[cohort.id] = failure

    def can_go_on(self, cohort: Cohort) -> bool:
        """Return whether a failed group could resume."""
        return cohort.id in self._waiting

    def go_on(self, cohort: Cohort) -> None:
        """Resume a failed group, if possible: the cause may be gone."""
        if cohort.id in self._waiting:
            self.forget(cohort)

    def forget(self, cohort: Cohort) -> None:
        """Remove the failure of a group that resumes or ends."""
        self.failures.pop(cohort.id, None)
        self._waiting.discard(cohort.id)
