"""The queue of hydrations: first inputs of existing dataflows, then new dataflows in the order of their requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import apsw

from derive.algebra.relation import GlobalId
from derive.compute.dataflow.cohort import Cohort
from derive.compute.dataflow.hydration import Hydration, Progress
from derive.compute.dataflow.input import Input, MovableInput
from derive.compute.dataflow.staging import FirstDataflow, Stage, as_failure
from derive.errors import FlowError

MOST_HERE = 20_000
"""Maximum number of rows computed while others wait."""


class Hydrations:
    """All hydrations of an instance.

    Args:
        connection: writing connection of its database.
        most_here: maximum number of rows computed while others wait.
        stage: computes larger dataflows in another process.
    """

    def __init__(self, connection: apsw.Connection, most_here: int, stage: Stage) -> None:
        self._connection = connection
        self._stage = stage
        self._most_here = most_here
        self._current: Hydration | None = None
        self._refills: deque[tuple[Cohort, GlobalId, MovableInput]] = deque()
        self._large: dict[GlobalId, bool] = {}

    def close(self) -> None:
        """Cancel the running hydration, and close waiting inputs."""
        if self._current is not None:
            self._current.cancel()
        for _, _, source in self._refills:
            source.close()

    # -- Size

    def has_many(self, inputs: Sequence[Input], time: int) -> bool:
        """Return whether inputs have so many rows that another process must read them, and can.

        Raises:
            FrontierError: an input is not known at that time yet.
        """
        counts = [source.count(time) for source in inputs if isinstance(source, MovableInput)]
        return len(counts) == len(inputs) and sum(counts) > self._most_here

    def is_large(self, identifier: GlobalId, inputs: Sequence[Input], time: int) -> bool:
        """Return whether the inputs of a dataflow are large; the answer is cached.

        Raises:
            FrontierError: an input is not known at that time yet.
        """
        if identifier not in self._large:
            self._large[identifier] = self.has_many(inputs, time)
        return self._large[identifier]

    def progress(self) -> Iterator[Progress]:
        """Yield the progress of large dataflows that have not started."""
        current = self._current
        for identifier in [identifier for identifier, is_large in list(self._large.items()) if is_large]:
            if current is not None and current.begins(identifier):
                yield Progress(identifier, current.stage, current.rows)
            else:
                yield Progress(identifier, "waiting", 0)

    # -- Hydrations

    def is_free(self) -> bool:
        """Return whether a hydration may start now."""
        return self._current is None and not self._refills

    def begins(self, identifier: GlobalId) -> bool:
        """Return whether this dataflow hydrates."""
        return self._current is not None and self._current.begins(identifier)

    def begin(self, time: int, inputs: Mapping[GlobalId, MovableInput], dataflow: FirstDataflow) -> None:
        """Start the hydration of a dataflow.

        Args:
            time: time of its first rows.
            inputs: its inputs.
            dataflow: the new dataflow.
        """
        self._current = Hydration(self._connection, time, inputs, dataflow, self._stage)

    def refill(self, cohort: Cohort, identifier: GlobalId, source: Input) -> bool:
        """Queue the hydration of an existing group's input from a snapshot; return False if the input is small."""
        if not isinstance(source, MovableInput) or not source.keeps or not self.has_many([source], source.since):
            return False
        if any(waiting is cohort and one == identifier for waiting, one, _ in self._refills):
            source.close()
        else:
            self._refills.append((cohort, identifier, source))
        return True

    def forget(self, identifier: GlobalId) -> None:
        """Cancel the hydration of a dataflow, or one that reads it."""
        self._large.pop(identifier, None)
        if self._current is not None and (self._current.begins(identifier) or identifier in self._current.inputs):
            self._current.is_unwanted = True

    def time_held(self, identifier: GlobalId) -> int | None:
        """Return the time from which the running hydration reads a dataflow; None if it does not."""
        return self._current.time if self._current is not None and identifier in self._current.inputs else None

    def step(
        self,
        is_begun: Callable[[FirstDataflow, Hydration], None],
        is_failed: Callable[[FirstDataflow, FlowError], None],
        is_refilled: Callable[[Cohort, GlobalId, MovableInput, FlowError | None], None],
    ) -> bool:
        """Advance the running hydration.

        Args:
            is_begun: called with a dataflow that is in the database.
            is_failed: called with a dataflow that cannot start.
            is_refilled: called with an input that can be polled, or its error.

        Returns:
            Whether anything happened.
        """
        current, failure = self._current, None
        if current is None:
            if self._refills:
                _, identifier, source = self._refills[0]
                self._current = Hydration(self._connection, source.since, {identifier: source}, None, self._stage)
            return self._current is not None
        try:
            if not current.is_unwanted and not current.step():
                return False
        except Exception as exc:
            failure = as_failure(exc)
        if not (failure or current.is_unwanted or current.is_complete):
            return True
        self._current = None
        if not current.is_complete:
            current.cancel()
        if current.dataflow is None:
            is_refilled(*self._refills.popleft(), failure)
        elif failure is not None:
            is_failed(current.dataflow, failure)
        elif current.is_complete:
            is_begun(current.dataflow, current)
        return True
