"""Those who ask: peeks that somebody waits for, and tails that somebody follows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from oracle import RowsAt

from derive.algebra.types import Row
from derive.compute.protocol.messages import Dataflow, TailResponse
from derive.errors import FlowError, SqlError


@dataclass
class Asked:
    """A peek that somebody waits for, and the answers that have come.

    Attributes:
        rows_at: what is to be answered.
        time: at which.
        is_sure: whether some replica knows it, or will, unless something happens to replicas.
        disturbances: how much had happened to them.
    """

    rows_at: RowsAt
    time: int
    is_sure: bool
    disturbances: int
    answers: list[list[Row] | FlowError] = field(default_factory=list)
    parts: list[Row] = field(default_factory=list)
    is_cancelled: bool = False
    is_given_up: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.answers and not self.is_given_up


@dataclass
class Followed:
    """A tail, and what was handed on of it."""

    dataflow: Dataflow
    rows_at: RowsAt
    has_snapshot: bool
    frontier: int
    updates: list[tuple[int, Row, int]] = field(default_factory=list)
    failure: FlowError | None = None

    def receive(self, response: TailResponse) -> None:
        """Take what is new."""
        assert self.failure is None or response.failure is not None, "a tail goes on after its end"
        if response.failure is not None:
            self.failure = response.failure
            return
        assert response.lower == self.frontier, "a tail has a gap, or repeats itself"
        as_of = self.dataflow.as_of
        first = as_of if self.frontier == as_of else self.frontier
        assert all(first <= time < max(response.upper, as_of + 1) for time, _, _ in response.updates)
        self.frontier = response.upper
        self.updates += response.updates

    def check(self) -> None:
        """All that was handed on was so, at each time."""
        if isinstance(self.failure, SqlError):
            assert self.rows_at(self.frontier) is None, "a tail ended with an error that is not there"
        as_of = self.dataflow.as_of
        begun = Counter[Row]() if self.has_snapshot else self.rows_at(as_of)
        for time in range(as_of, self.frontier):
            expected = self.rows_at(time)
            if begun is None:  # an error at the time before the first update
                return
            rows = Counter(begun)
            for when, row, diff in self.updates:
                if when <= time:
                    rows[row] += diff
            assert expected is not None, "a tail hides an error"
            assert +rows == +expected, ("a tail is wrong", time)
