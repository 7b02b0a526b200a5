"""Cohorts that go on, tick by tick, or have come to a halt: why, and whether they can go on where they were."""

from __future__ import annotations

import apsw

from derive.compute.dataflow.cohort import Cohort
from derive.compute.dataflow.staging import as_failure
from derive.errors import FlowError
from derive.failpoint import reach

MOST_UPDATES = 20_000
"""After about so many updates a transaction ends."""


class Halts:
    """What keeps cohorts from going on.

    Args:
        connection: that writes to their database.

    Attributes:
        failures: by the cohort's number.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.failures: dict[int, FlowError] = {}
        self._waiting: set[int] = set()

    def advance(self, cohort: Cohort) -> bool:
        """Have a cohort go on for a moment, unless it has come to a halt; whether anything happened."""
        if cohort.id in self.failures:
            return False
        try:
            cohort.poll()
        except Exception as exc:  # whatever it is, updates may have been taken from inputs that are nowhere now
            self.halt(cohort, as_failure(exc))
            return True
        upper = cohort.upper
        if cohort.complete() <= upper:
            return False
        try:
            with self._connection:
                cohort.advance(MOST_UPDATES)
                reach("dataflow.committing")
        except Exception as exc:  # whatever it is, such as a full disk, may be over later
            cohort.go_back()
            self.halt(cohort, as_failure(exc))
            self._waiting.add(cohort.id)
            return True
        reach("dataflow.committed")
        cohort.keep()
        return cohort.upper > upper

    def has_more(self, cohort: Cohort) -> bool:
        """Whether a cohort can go on at once, though nothing new comes from elsewhere."""
        if cohort.id in self.failures:
            return False
        return cohort.complete() > cohort.upper or any(feed.input.has_more for feed in cohort.feeds.values())

    def halt(self, cohort: Cohort, failure: FlowError) -> None:
        """A cohort cannot go on."""
        self.failures[cohort.id] = failure

    def can_go_on(self, cohort: Cohort) -> bool:
        """Whether a cohort that has come to a halt would go on where it was."""
        return cohort.id in self._waiting

    def go_on(self, cohort: Cohort) -> None:
        """Have a cohort go on where it was, if it can: what kept it may be gone."""
        if cohort.id in self._waiting:
            self.forget(cohort)

    def forget(self, cohort: Cohort) -> None:
        """A cohort goes on, or is no more."""
        self.failures.pop(cohort.id, None)
        self._waiting.discard(cohort.id)
