"""Hydration: computes the first rows of dataflows, one dataflow after the other, in steps that block no other work."""

from __future__ import annotations

import shutil
import time as clock
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from derive.algebra.relation import GlobalId
from derive.compute.dataflow.database import folder_of
from derive.compute.dataflow.dataflow_group import DataflowGroup
from derive.compute.dataflow.input import Input, MovableInput
from derive.compute.dataflow.staging import Adoption, FirstDataflow, Order, Stage, as_failure
from derive.compute.plans.plan import Plan, Source, inputs_of
from derive.errors import FlowError
from derive.failpoint import reach

FOLDER = "hydrating"
ISOLATED = "isolated"
"""Stage of a slow view that has its first rows, and is maintained in an instance of its own."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a dataflow that hydrates.

    Attributes:
        identifier: identifier of the dataflow.
        stage: the stage: `waiting`, `reading`, `computing`, `loading`, or `isolated`.
        rows: number of rows read from its inputs, or copied.
        since: clock at which the hydration was requested; 0 if unknown.
        running: clock at which the running operator has begun; 0 if none runs.
    """

    identifier: GlobalId
    stage: str
    rows: int
    since: int = 0
    running: int = 0

    @property
    def is_hydrating(self) -> bool:
        """Return whether the dataflow has no rows yet."""
        return self.stage != ISOLATED


class Hydration:
    """The computation of one dataflow's first rows. At most one hydration runs at a time.

    Args:
        connection: writing connection of the instance's database.
        time: time of the rows.
        inputs: inputs; the caller holds the capability to read them.
        dataflow: the dataflow to hydrate; None to hydrate only inputs.
        stage: computes rows in another process.
        is_limited: whether a slow dataflow is refused.

    Attributes:
        is_complete: whether the hydration is complete, so that the inputs can be polled.
        is_unwanted: whether the hydration was cancelled.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        time: int,
        inputs: Mapping[GlobalId, MovableInput],
        dataflow: FirstDataflow | None,
        stage: Stage,
        *,
        is_limited: bool,
    ) -> None:
        self.time = time
        self.inputs = inputs
        self.dataflow = dataflow
        self._connection = connection
        self._folder = clear(connection)
        self._folder.mkdir()
        columns = sources_of(dataflow.plan) if dataflow else {}
        openers = {
            identifier: source.opener(time, columns.get(identifier, ()), self._place(identifier))
            for identifier, source in inputs.items()
        }
        self._staging = stage(Order(self._folder, time, openers, dataflow, is_limited))
        self._adoption: Adoption | None = None
        self.is_complete = False
        self.is_unwanted = False

    def _place(self, identifier: GlobalId) -> Path:
        return self._folder / f"input-{identifier}"

    def begins(self, identifier: GlobalId) -> bool:
        """Return whether the hydration computes the rows of this dataflow."""
        return self.dataflow is not None and self.dataflow.identifier == identifier

    @property
    def stage(self) -> str:
        """Return the present stage: `reading` the inputs, or `loading` the computed rows."""
        return "reading" if self._adoption is None else "loading"

    @property
    def rows(self) -> int:
        """Return the number of rows read, or copied."""
        return self._staging.rows if self._adoption is None else self._adoption.loaded

    @property
    def running(self) -> int:
        """Return the clock at which the running operator has begun; 0 if none runs."""
        return self._staging.running if self._adoption is None else 0

    def step(self) -> bool:
        """Advance by a batch; return whether the hydration has advanced.

        Raises:
            FlowError: the dataflow cannot start.
        """
        if self._adoption is None:
            if not self._staging.is_over():
                return False
            reach("hydration.staged")
            if self.dataflow is None:
                self._end()
            else:
                self._adoption = Adoption(self._connection, self._folder)
            return True
        if self._adoption.load():
            reach("hydration.loaded")
            return True
        reach("hydration.completing")
        self._adoption.complete()
        reach("hydration.completed")
        self._adoption = None
        self._end()
        return True

    def _end(self) -> None:
        for identifier, source in self.inputs.items():
            source.adopt(self.time, self._place(identifier))
        clear(self._connection)
        self.is_complete = True

    def cancel(self) -> None:
        """Cancel the hydration."""
        self._staging.stop()
        if self._adoption is not None:
            self._adoption.cancel()
        clear(self._connection)


def clear(connection: apsw.Connection) -> Path:
    """Remove the files of a hydration; return the path of the folder, which no longer exists."""
    folder = folder_of(connection) / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def operators_of(plan: Plan) -> int:
    """Return an upper bound of the number of operators of a plan."""
    return 1 + sum(map(operators_of, inputs_of(plan)))


def sources_of(plan: Plan) -> dict[GlobalId, tuple[int, ...] | None]:
    """Return the sources of a plan, each with the columns that are read; None for all columns."""
    read: dict[GlobalId, tuple[int, ...] | None] = {}
    if isinstance(plan, Source):
        read[plan.id] = plan.columns
    for source in inputs_of(plan):
        for identifier, columns in sources_of(source).items():
            known = read.get(identifier, ())
            read[identifier] = None if known is None or columns is None else (*known, *columns)
    return read


MOST_HERE = 20_000
"""Maximum number of rows computed in this process, while other dataflows wait."""


class Hydrations:
    """All hydrations of an instance.

    Args:
        connection: writing connection of its database.
        most_here: maximum number of rows computed in this process, while other dataflows wait.
        stage: computes the rows of larger dataflows in another process.
        is_limited: whether slow dataflows are refused.
    """

    def __init__(self, connection: apsw.Connection, most_here: int, stage: Stage, *, is_limited: bool) -> None:
        self._connection = connection
        self._stage = stage
        self._is_limited = is_limited
        self._since: dict[GlobalId, int] = {}
        self._most_here = most_here
        self._current: Hydration | None = None
        self._refills: deque[tuple[DataflowGroup, GlobalId, MovableInput]] = deque()
        self._large: dict[GlobalId, bool] = {}

    def close(self) -> None:
        """Cancel the running hydration, and close waiting inputs."""
        if self._current is not None:
            self._current.cancel()
        for _, _, source in self._refills:
            source.close()

    # -- Size

    def has_many(self, inputs: Sequence[Input], time: int) -> bool:
        """Return whether another process must read the inputs, because they have many rows and can be opened there.

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
            self._since[identifier] = clock.time_ns() // 1000
        return self._large[identifier]

    def progress(self) -> Iterator[Progress]:
        """Yield the progress of large dataflows that have not started."""
        current = self._current
        for identifier in [identifier for identifier, is_large in list(self._large.items()) if is_large]:
            since = self._since.get(identifier, 0)
            if current is not None and current.begins(identifier):
                yield Progress(identifier, current.stage, current.rows, since, current.running)
            else:
                yield Progress(identifier, "waiting", 0, since)

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
        self._current = Hydration(self._connection, time, inputs, dataflow, self._stage, is_limited=self._is_limited)

    def refill(self, group: DataflowGroup, identifier: GlobalId, source: Input) -> bool:
        """Queue the hydration of an existing group's input from a snapshot; return False if the input is small."""
        if not isinstance(source, MovableInput) or not source.keeps or not self.has_many([source], source.since):
            return False
        if any(waiting is group and one == identifier for waiting, one, _ in self._refills):
            source.close()
        else:
            self._refills.append((group, identifier, source))
        return True

    def forget(self, identifier: GlobalId) -> None:
        """Cancel the hydration of a dataflow, or of a dataflow that reads it."""
        self._large.pop(identifier, None)
        self._since.pop(identifier, None)
        if self._current is not None and (self._current.begins(identifier) or identifier in self._current.inputs):
            self._current.is_unwanted = True

    def time_held(self, identifier: GlobalId) -> int | None:
        """Return the time at which the running hydration reads a dataflow; None if it does not read the dataflow."""
        return self._current.time if self._current is not None and identifier in self._current.inputs else None

    def step(
        self,
        is_begun: Callable[[FirstDataflow, Hydration], None],
        is_failed: Callable[[FirstDataflow, FlowError], None],
        is_refilled: Callable[[DataflowGroup, GlobalId, MovableInput, FlowError | None], None],
    ) -> bool:
        """Advance the running hydration.

        Args:
            is_begun: called with a dataflow that is in the database.
            is_failed: called with a dataflow that cannot start.
            is_refilled: called with an input that can be polled, or its error.

        Returns:
            Whether the hydration has advanced.
        """
        current, failure = self._current, None
        if current is None:
            if self._refills:
                _, identifier, source = self._refills[0]
                self._current = Hydration(
                    self._connection, source.since, {identifier: source}, None, self._stage, is_limited=False
                )
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
