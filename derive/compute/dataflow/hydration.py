"""Hydration: computes the first rows of dataflows, some at a time, in steps that block no other work."""

from __future__ import annotations

import shutil
import time as clock
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from derive.algebra.expression import Call, Case, Column, Expression
from derive.algebra.relation import GlobalId, Relation
from derive.algebra.rewrite import walk
from derive.compute.dataflow.database import folder_of
from derive.compute.dataflow.dataflow_group import DataflowGroup
from derive.compute.dataflow.input import Input, MovableInput
from derive.compute.dataflow.staging import Adoption, FirstDataflow, Order, Stage, as_failure, sources_of
from derive.compute.plans.plan import (
    Fixed,
    Grouped,
    Keyed,
    Linear,
    Plan,
    Recomputed,
    Source,
    Term,
    equated,
    inputs_of,
)
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


_LOADING_SECONDS = 0.02
"""Seconds for which rows of a prompt hydration are copied, while other dataflows wait."""


class Hydration:
    """The computation of the first rows of some dataflows.

    Args:
        connection: writing connection of the instance's database.
        order: the task.
        stage: computes rows in another process.

    Attributes:
        order: the task.
        remaining: its dataflows that were not dropped meanwhile.
        failures: errors of dataflows, once the rows are computed.
        is_complete: whether the hydration is complete, so that the inputs can be polled.
        is_unwanted: whether the hydration was cancelled.
    """

    def __init__(self, connection: apsw.Connection, order: Order, stage: Stage) -> None:
        self.order = order
        self.remaining = {first.identifier for first in order.dataflows}
        self.failures: Mapping[GlobalId, FlowError] = {}
        self._connection = connection
        order.folder.mkdir(parents=True)
        self._staging = stage(order)
        self._adoption: Adoption | None = None
        self.is_complete = False
        self.is_unwanted = False

    def place(self, identifier: GlobalId) -> Path:
        """Return the file of the stored snapshot of an input."""
        return place_of(self.order.folder, identifier)

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
            FlowError: no dataflow can start.
        """
        if self._adoption is None:
            failures = self._staging.outcome()
            if failures is None:
                return False
            self.failures = failures
            reach("hydration.staged")
            if self.order.dataflows:
                self._adoption = Adoption(self._connection, self.order)
            else:
                self.is_complete = True
            return True
        if self._adoption.load():
            reach("hydration.loaded")
            deadline = clock.monotonic() + _LOADING_SECONDS if self.order.is_prompt else 0.0
            while clock.monotonic() < deadline and self._adoption.load():
                pass
            return True
        reach("hydration.completing")
        self._adoption.complete({first.identifier for first in self.order.dataflows} - self.remaining)
        reach("hydration.completed")
        self._adoption = None
        self.is_complete = True
        return True

    def close(self) -> None:
        """Cancel the hydration unless it is complete, and remove its files."""
        if not self.is_complete:
            self._staging.stop()
        if self._adoption is not None:
            self._adoption.cancel()
        shutil.rmtree(self.order.folder, ignore_errors=True)


def place_of(folder: Path, identifier: GlobalId) -> Path:
    """Return the file in the folder of a hydration that stores the snapshot of an input."""
    return folder / f"input-{identifier}"


def clear(connection: apsw.Connection) -> None:
    """Remove the files of all hydrations."""
    shutil.rmtree(folder_of(connection) / FOLDER, ignore_errors=True)


def operators_of(plan: Plan) -> int:
    """Return an upper bound of the number of operators of a plan."""
    return 1 + sum(map(operators_of, inputs_of(plan)))


def _weight(plan: Plan) -> int:
    """Return a number that grows with the expected work of a plan for each row of its sources.

    Most work are function calls, aggregates, and joins. Joins of large inputs cost less than it seems, because
    conditions on single inputs are evaluated first.
    """
    own = 1 if isinstance(plan, Source | Fixed) else 0
    match plan:
        case Linear():
            own = sum(2 * (len(term.leaves) - 1) + _calls(term) for term in plan.terms)
        case Grouped():
            own = 1 + len(plan.aggregates)
        case Keyed() | Recomputed():
            own = _WEIGHT_OF_RECOMPUTATION
    return own + sum(map(_weight, inputs_of(plan)))


def _calls(term: Term) -> int:
    """Return the number of function calls for each row of a term; equations of columns are lookups."""
    return sum(
        isinstance(part, Call | Case)
        for expression in (*term.predicates, *term.outputs)
        if not all(isinstance(side, Column) for side in equated(expression) or (expression,))
        for part in walk(expression)
    )


_WEIGHT_OF_RECOMPUTATION = 4
"""Weight of a relation that is recomputed for each key, or as a whole."""
MOST_AT_ONCE = 2
"""Maximum number of hydrations that run at once."""
MOST_TOGETHER = 250_000
"""Maximum number of rows that the dataflows of a hydration read together; a dataflow alone may read more."""
_LEAST_COST, _MOST_COST = 3_000_000, 8_000_000
"""Costs above which a hydration gets no further dataflow: if there is work for another process, and in any case."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A large dataflow that may hydrate now.

    Attributes:
        identifier: identifier of the dataflow.
        relation: its relation.
        plan: its plan.
        sources: collections from which the dataflow derives.
        inputs: the inputs that its plan reads.
        counts: approximate number of rows of each input.
        indexes: expressions by which its rows are looked up.
    """

    identifier: GlobalId
    relation: Relation
    plan: Plan
    sources: frozenset[GlobalId]
    inputs: Mapping[GlobalId, MovableInput]
    counts: Mapping[GlobalId, int]
    indexes: tuple[tuple[Expression, ...], ...]

    @property
    def cost(self) -> int:
        """Return a number that grows with the expected work."""
        return sum(self.counts.values()) * _weight(self.plan)

    @property
    def group(self) -> tuple[frozenset[GlobalId], frozenset[GlobalId]]:
        """Return the sources, and the inputs from other groups; dataflows that have both in common share a group."""
        return self.sources, frozenset(self.inputs.keys() - self.sources)

    @property
    def stored(self) -> set[GlobalId]:
        """Return the inputs whose snapshots are stored; dataflows of one group share a stored snapshot."""
        return {identifier for identifier, source in self.inputs.items() if source.keeps}


def together(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return dataflows that hydrate in one process, the cheapest first.

    They read each input once, and leave work for the other processes.
    """
    chosen: list[Candidate] = []
    counts: dict[GlobalId, int] = {}
    stored: dict[GlobalId, object] = {}
    ordered = sorted(candidates, key=lambda one: (one.cost, one.identifier))
    most = min(_MOST_COST, max(_LEAST_COST, sum(one.cost for one in ordered) // MOST_AT_ONCE))
    for one in ordered:
        is_shared = all(stored.get(identifier, one.group) == one.group for identifier in one.stored)
        united = {**counts, **one.counts}
        if not chosen or (is_shared and sum(united.values()) <= MOST_TOGETHER):
            chosen.append(one)
            counts = united
            stored |= dict.fromkeys(one.stored, one.group)
        if sum(one.cost for one in chosen) >= most:
            break
    return chosen


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
        self._running: list[Hydration] = []
        self._begun = 0
        self._refilling: Hydration | None = None
        self._refills: deque[tuple[DataflowGroup, GlobalId, MovableInput]] = deque()
        self._large: dict[GlobalId, bool] = {}
        self._alone: set[GlobalId] = set()

    def close(self) -> None:
        """Cancel the running hydrations, and close waiting inputs."""
        for current in self._running:
            current.close()
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
        for identifier in [identifier for identifier, is_large in list(self._large.items()) if is_large]:
            since = self._since.get(identifier, 0)
            current = next((one for one in list(self._running) if identifier in one.remaining), None)
            if current is not None:
                yield Progress(identifier, current.stage, current.rows, since, current.running)
            else:
                yield Progress(identifier, "waiting", 0, since)

    # -- Hydrations

    @property
    def is_running(self) -> bool:
        """Return whether a hydration runs, which may end at any moment."""
        return bool(self._running)

    def is_free(self) -> bool:
        """Return whether a hydration may start now."""
        return len(self._running) < MOST_AT_ONCE and not self._refills

    def begins(self, identifier: GlobalId) -> bool:
        """Return whether this dataflow hydrates."""
        return any(identifier in current.remaining for current in self._running)

    def begin(self, time: int, candidates: Sequence[Candidate], group: int, operator: int) -> tuple[int, int]:
        """Start a hydration of some of the candidates, all at one time.

        Args:
            time: time of the first rows.
            candidates: at least one dataflow that does not hydrate; its inputs are known at that time.
            group: number of the first new group.
            operator: number of the first new operator.

        Returns:
            The next free numbers of a group and of an operator.
        """
        company = [one for one in candidates if one.identifier not in self._alone]
        chosen = together(company) if company else [candidates[0]]
        groups: dict[object, int] = {}
        dataflows = []
        for one in chosen:
            number = groups.setdefault(one.group, group + len(groups))
            dataflows.append(
                FirstDataflow(one.identifier, one.relation, one.plan, one.sources, number, operator, one.indexes)
            )
            operator += operators_of(one.plan)
        pairs = [pair for one in chosen for pair in one.inputs.items()]
        inputs = dict(sorted(pairs, key=lambda pair: pair[1].keeps))  # a stored snapshot serves all
        is_prompt = sum({key: count for one in chosen for key, count in one.counts.items()}.values()) <= MOST_TOGETHER
        self._running.append(self._hydration(time, inputs, tuple(dataflows), is_prompt=is_prompt))
        return group + len(groups), operator

    def _hydration(
        self,
        time: int,
        inputs: Mapping[GlobalId, MovableInput],
        dataflows: tuple[FirstDataflow, ...],
        *,
        is_prompt: bool,
    ) -> Hydration:
        self._begun += 1
        folder = folder_of(self._connection) / FOLDER / str(self._begun)
        columns = sources_of(first.plan for first in dataflows)
        openers = {
            identifier: source.opener(time, columns.get(identifier, ()), place_of(folder, identifier))
            for identifier, source in inputs.items()
        }
        order = Order(folder, time, openers, dataflows, self._is_limited and bool(dataflows), is_prompt)
        return Hydration(self._connection, order, self._stage)

    def refill(self, group: DataflowGroup, identifier: GlobalId, source: Input) -> bool:
        """Queue the hydration of an existing group's input from a snapshot; return False if the input is small."""
        if not isinstance(source, MovableInput) or not source.keeps or not self.has_many([source], source.since):
            return False
        if any(waiting is group and one == identifier for waiting, one, _ in self._refills):
            source.close()
        else:
            self._refills.append((group, identifier, source))
        return True

    def try_alone(self, identifier: GlobalId) -> bool:
        """Let a dataflow that was slow beside others hydrate again, alone; return False if that was tried."""
        if identifier in self._alone:
            return False
        self._alone.add(identifier)
        return True

    def forget(self, identifier: GlobalId) -> None:
        """Cancel the hydration of a dataflow, and of dataflows that read it."""
        self._large.pop(identifier, None)
        self._since.pop(identifier, None)
        self._alone.discard(identifier)
        for current in self._running:
            is_last = current.remaining == {identifier}
            current.remaining.discard(identifier)
            current.is_unwanted |= is_last or identifier in current.order.inputs

    def times_held(self, identifier: GlobalId) -> list[int]:
        """Return the times at which running hydrations read a dataflow."""
        return [current.order.time for current in self._running if identifier in current.order.inputs]

    def step(
        self,
        is_over: Callable[[Hydration], None],
        is_failed: Callable[[GlobalId, FlowError], None],
        is_refilled: Callable[[DataflowGroup, GlobalId, MovableInput, Path, FlowError | None], None],
    ) -> bool:
        """Advance the running hydrations.

        Args:
            is_over: called with a hydration whose dataflows are in the database.
            is_failed: called with a dataflow that cannot start.
            is_refilled: called with an input, the file of its snapshot, and its error if it cannot be polled.

        Returns:
            Whether a hydration has advanced.
        """
        happened = False
        for current in list(self._running):
            failure = None
            try:
                if not current.is_unwanted and not current.step():
                    continue
            except Exception as exc:
                failure = as_failure(exc)
            happened = True
            if not (failure or current.is_unwanted or current.is_complete):
                continue
            self._running.remove(current)
            if current is self._refilling:
                group, identifier, source = self._refills.popleft()
                self._refilling = None
                is_refilled(group, identifier, source, current.place(identifier), failure)
            elif failure is not None and len(current.order.dataflows) > 1:
                self._alone |= current.remaining  # one of them may have ended the process
            elif failure is not None:
                for identifier in sorted(current.remaining):
                    is_failed(identifier, failure)
            elif current.is_complete:
                is_over(current)
            current.close()
        if self._refills and self._refilling is None and len(self._running) < MOST_AT_ONCE:
            _, identifier, source = self._refills[0]
            self._refilling = self._hydration(source.since, {identifier: source}, (), is_prompt=False)
            self._running.append(self._refilling)
            happened = True
        return happened
