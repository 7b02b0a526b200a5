"""Cycles: bounds for tasks that read one another, or themselves.

A task on a cycle publishes no document before the earliest document that a task of the cycle must still process. This
time is a bound for all tasks of the cycle. So the tasks take turns: in each round every task advances up to the bound,
and ticks without documents are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from derive.protocol.specs import InputSpec
from derive.time import BEGINNING, END_OF_TIME, tick_begin
from derive.time.positions import offset_of


@dataclass(frozen=True, slots=True)
class Horizon:
    """The progress of time for a task, at one look.

    Attributes:
        uppers: `upper` of each source, by name.
        earliest: lower bound of later publications on the task's cycle; `now` if the task is on no cycle, or if its
            documents are fed back in memory.
        now: timestamp up to which the sources are sealed.
    """

    uppers: Mapping[str, int]
    earliest: int
    now: int


@dataclass(frozen=True, slots=True)
class Step:
    """The next step of a task: some of its inputs advance.

    Attributes:
        behind: the inputs that advance.
        bound: upper bound of their adjusted timestamps, a tick boundary.
        first: least adjusted timestamp of a document to process; equal to the bound if there is none.
    """

    behind: tuple[InputSpec, ...]
    bound: int
    first: int

    @property
    def has_documents(self) -> bool:
        """Return true if the step has documents; other steps only advance time."""
        return self.first < self.bound


class Level:
    """The inputs of a task with the same priority, which advance together.

    Args:
        specs: the inputs.
        tick: length of the task's ticks, microseconds.

    Attributes:
        specs: the inputs.
        tick: length of the task's ticks, microseconds.
    """

    __slots__ = ("_reads", "specs", "tick")

    def __init__(self, specs: Sequence[InputSpec], tick: int) -> None:
        self.specs = tuple(specs)
        self.tick = tick
        self._reads = [(spec.source, offset_of(spec, tick), spec.feedback) for spec in specs]

    def bound(self, horizon: Horizon) -> int:
        """Return the tick boundary below which all sources are final."""
        frontier, earliest, uppers = horizon.now, horizon.earliest, horizon.uppers
        for source, offset, feedback in self._reads:
            upper = uppers[source]
            if feedback and upper < earliest:
                upper = earliest
            frontier = min(frontier, upper + offset)
        return tick_begin(frontier, self.tick)


def by_priority(inputs: Sequence[InputSpec], tick: int) -> tuple[Level, ...]:
    """Return the inputs of a task by priority, the highest first.

    Args:
        inputs: inputs of the task.
        tick: length of its ticks, microseconds.
    """
    priorities = sorted({spec.priority for spec in inputs}, reverse=True)
    return tuple(Level([spec for spec in inputs if spec.priority == priority], tick) for priority in priorities)


def earliest_to_come(inputs: Sequence[InputSpec], tick: int, uppers: Mapping[str, int]) -> int:
    """Return the least adjusted timestamp of a document that can still arrive at a cycle's task from outside the cycle.

    Documents from the cycle itself are ignored, because their causes are earlier.

    Args:
        inputs: inputs of the task.
        tick: length of its ticks, microseconds.
        uppers: `upper` of each source, by name.
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
    """Return the next step of a task within its frontiers; None if time cannot advance either.

    The step has the inputs of the highest priority with a document to process. Without documents, time advances as far
    as all inputs allow.

    Args:
        levels: inputs of the task, from `by_priority`.
        position: returns the adjusted timestamp below which an input has processed all documents.
        first: returns the least adjusted timestamp of a document that some inputs must still process; None for none.
        horizon: progress of time.
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


def next_step_per_input(
    levels: Sequence[Level],
    position: Callable[[InputSpec], int],
    first: Callable[[Sequence[InputSpec]], int | None],
    horizon: Horizon,
) -> Step | None:
    """Return the next step of a task with independent inputs, which do not wait for one another's sources.

    Inputs of one priority with documents advance up to the least of their bounds.

    Args:
        levels: inputs of the task, from `by_priority`.
        position: as for `next_step`.
        first: as for `next_step`.
        horizon: progress of time.
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
