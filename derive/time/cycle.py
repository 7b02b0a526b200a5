"""Cycles: tasks that read one another, or themselves, and what bounds them.

On a cycle nothing can be published before the earliest document that any of its tasks has yet to process. So its tasks
take turns: in each round every one of them goes as far as that allows, and ticks without documents are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from derive.protocol.specs import InputSpec
from derive.time.frontier import BEGINNING, END_OF_TIME, tick_begin
from derive.time.positions import offset_of


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far time has come for a task, as of one look.

    Attributes:
        uppers: of its sources, by name.
        earliest: nothing is published on the task's cycle before it; `now` where that does not matter, because the task
            is on none, or feeds back in memory.
        now: up to which the sources are sealed.
    """

    uppers: Mapping[str, int]
    earliest: int
    now: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a task does next: some of its inputs go on to a time.

    Attributes:
        behind: those that have yet to go there.
        bound: the adjusted clock to which they go at most, a tick boundary.
        first: the least adjusted clock of a document that they have to process, if that is before the bound.
    """

    behind: tuple[InputSpec, ...]
    bound: int
    first: int

    @property
    def has_documents(self) -> bool:
        """Whether there is more to do than to let time pass."""
        return self.first < self.bound


class Level:
    """The inputs of one priority of a task, which go on together.

    Args:
        specs: the inputs.
        tick: length of the task's ticks, microseconds.

    Attributes:
        specs: the inputs.
        tick: as above.
    """

    __slots__ = ("_reads", "specs", "tick")

    def __init__(self, specs: Sequence[InputSpec], tick: int) -> None:
        self.specs = tuple(specs)
        self.tick = tick
        self._reads = [(spec.source, offset_of(spec, tick), spec.feedback) for spec in specs]

    def bound(self, horizon: Horizon) -> int:
        """The tick boundary below which all that they read is final."""
        frontier, earliest, uppers = horizon.now, horizon.earliest, horizon.uppers
        for source, offset, feedback in self._reads:
            upper = uppers[source]
            if feedback and upper < earliest:
                upper = earliest
            frontier = min(frontier, upper + offset)
        return tick_begin(frontier, self.tick)


def by_priority(inputs: Sequence[InputSpec], tick: int) -> tuple[Level, ...]:
    """The inputs of a task by priority, the highest first.

    Args:
        inputs: of the task.
        tick: length of its ticks, microseconds.
    """
    priorities = sorted({spec.priority for spec in inputs}, reverse=True)
    return tuple(Level([spec for spec in inputs if spec.priority == priority], tick) for priority in priorities)


def earliest_to_come(inputs: Sequence[InputSpec], tick: int, uppers: Mapping[str, int]) -> int:
    """The least adjusted clock that a document may have which a task on a cycle has yet to be given from outside.

    What is still to come on the cycle itself is left out: it has a cause, which comes first.

    Args:
        inputs: of the task.
        tick: length of its ticks, microseconds.
        uppers: of its sources, by name.
    """
    return min(
        (uppers[spec.source] + offset_of(spec, tick) for spec in inputs if not spec.feedback), default=END_OF_TIME
    )


def next_step(
    levels: Sequence[Level],
    position: Callable[[InputSpec], int],
    first: Callable[[Sequence[InputSpec]], int | None],
    horizon: Horizon,
) -> Step | None:
    """What a task does next, as far as frontiers allow; None if nothing can move, not even time.

    It belongs to the highest priority that has a document to process. Where none has, time moves as far as all of them
    allow: what they publish later has its own time, and no later one.

    Args:
        levels: the task's inputs, `by_priority`.
        position: says below which adjusted clock an input has processed everything.
        first: says the least adjusted clock of a stored document that some inputs have yet to process, if any waits.
        horizon: how far time has come.
    """
    bounds: list[int] = []
    for level in levels:
        bound = level.bound(horizon)
        behind = tuple([spec for spec in level.specs if position(spec) < bound])
        clock = first(behind) if behind else None
        if clock is not None and clock < bound:
            return Step(behind, bound, clock)
        bounds.append(bound)
    bound = min(bounds)
    behind = tuple([spec for level in levels for spec in level.specs if position(spec) < bound])
    return Step(behind, bound, bound) if behind else None


def next_step_apart(
    levels: Sequence[Level],
    position: Callable[[InputSpec], int],
    first: Callable[[Sequence[InputSpec]], int | None],
    horizon: Horizon,
) -> Step | None:
    """The same for a task whose inputs have nothing to do with one another: none waits for the source of another.

    Those of one priority that have documents go on as far as the one of them that can go least far.

    Args:
        levels: the task's inputs, `by_priority`.
        position: as for `next_step`.
        first: as for `next_step`.
        horizon: how far time has come.
    """
    for level in levels:
        ready: list[tuple[int, int, InputSpec]] = []
        for spec in level.specs:
            bound = Level([spec], level.tick).bound(horizon)
            clock = first([spec]) if position(spec) < bound else None
            if clock is not None and clock < bound:
                ready.append((bound, clock, spec))
        if ready:
            bound = min(bound for bound, _, _ in ready)
            behind = [(clock, spec) for _, clock, spec in ready if position(spec) < bound]
            return Step(tuple(spec for _, spec in behind), bound, min(clock for clock, _ in behind))
    bound = min((level.bound(horizon) for level in levels), default=BEGINNING)
    behind_time = tuple([spec for level in levels for spec in level.specs if position(spec) < bound])
    return Step(behind_time, bound, bound) if behind_time else None
