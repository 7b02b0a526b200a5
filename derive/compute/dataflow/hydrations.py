"""What is hydrated, one after the other: first inputs of dataflows that are there, then new dataflows as they came."""

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
"""So many rows at most are worked out where others wait for that."""


class Hydrations:
    """All hydrations of an instance.

    Args:
        connection: that writes to its database.
        most_here: so many rows at most are worked out where others wait for that.
        stage: has more of them worked out.
    """

    def __init__(self, connection: apsw.Connection, most_here: int, stage: Stage) -> None:
        self._connection = connection
        self._stage = stage
        self._most_here = most_here
        self._current: Hydration | None = None
        self._refills: deque[tuple[Cohort, GlobalId, MovableInput]] = deque()
        self._large: dict[GlobalId, bool] = {}

    def close(self) -> None:
        """End what is hydrated."""
        if self._current is not None:
            self._current.cancel()
        for _, _, source in self._refills:
            source.close()

    # -- What is large

    def has_many(self, inputs: Sequence[Input], time: int) -> bool:
        """Whether inputs have so many rows that another process is to read them, and can.

        Raises:
            FrontierError: not all of them are known at that time yet.
        """
        counts = [source.count(time) for source in inputs if isinstance(source, MovableInput)]
        return len(counts) == len(inputs) and sum(counts) > self._most_here

    def is_large(self, identifier: GlobalId, inputs: Sequence[Input], time: int) -> bool:
        """The same of the inputs of a dataflow, which are asked once.

        Raises:
            FrontierError: not all of them are known at that time yet.
        """
        if identifier not in self._large:
            self._large[identifier] = self.has_many(inputs, time)
        return self._large[identifier]

    def progress(self) -> Iterator[Progress]:
        """How far large dataflows are that have yet to begin."""
        current = self._current
        for identifier in [identifier for identifier, is_large in list(self._large.items()) if is_large]:
            if current is not None and current.begins(identifier):
                yield Progress(identifier, current.stage, current.rows)
            else:
                yield Progress(identifier, "waiting", 0)

    # -- What is hydrated

    def is_free(self) -> bool:
        """Whether a dataflow may be hydrated now."""
        return self._current is None and not self._refills

    def begins(self, identifier: GlobalId) -> bool:
        """Whether it is this dataflow that is hydrated."""
        return self._current is not None and self._current.begins(identifier)

    def begin(self, time: int, inputs: Mapping[GlobalId, MovableInput], dataflow: FirstDataflow) -> None:
        """Hydrate a dataflow.

        Args:
            time: of its first rows.
            inputs: what it reads.
            dataflow: new.
        """
        self._current = Hydration(self._connection, time, inputs, dataflow, self._stage)

    def refill(self, cohort: Cohort, identifier: GlobalId, source: Input) -> bool:
        """Have an input of a cohort that is there go on once what it keeps is read anew; False if that is little."""
        if not isinstance(source, MovableInput) or not source.keeps or not self.has_many([source], source.since):
            return False
        if any(waiting is cohort and one == identifier for waiting, one, _ in self._refills):
            source.close()
        else:
            self._refills.append((cohort, identifier, source))
        return True

    def forget(self, identifier: GlobalId) -> None:
        """A dataflow has begun, or is dropped: nothing is hydrated for it, or reads it."""
        self._large.pop(identifier, None)
        if self._current is not None and (self._current.begins(identifier) or identifier in self._current.inputs):
            self._current.is_unwanted = True

    def time_held(self, identifier: GlobalId) -> int | None:
        """From which time on a dataflow is read by what is hydrated; None if it is not."""
        return self._current.time if self._current is not None and identifier in self._current.inputs else None

    def step(
        self,
        is_begun: Callable[[FirstDataflow, Hydration], None],
        is_failed: Callable[[FirstDataflow, FlowError], None],
        is_refilled: Callable[[Cohort, GlobalId, MovableInput, FlowError | None], None],
    ) -> bool:
        """Go on for a moment.

        Args:
            is_begun: is told of a dataflow that is in the database by now.
            is_failed: is told of one that cannot begin.
            is_refilled: is told of an input that goes on, or why it does not.

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
