"""Cycles: tasks that read one another, or themselves, and what bounds them.

On a cycle nothing can be published before the earliest document that any of its tasks has yet to process. So ticks
without documents are skipped, and each tick that has some is a transaction of its own, unless a task is alone on its
cycle and can run many ticks in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from derive.protocol.specs import InputSpec
from derive.time.frontier import END_OF_TIME
from derive.time.positions import offset_of


def feeds_back_in_memory(inputs: Sequence[InputSpec], shards: int, cycle: Sequence[str]) -> bool:
    """Whether a task runs many ticks in one transaction: alone on its cycle, with one shard and one priority.

    Differing priorities take turns after each tick.
    """
    one_priority = len({spec.priority for spec in inputs}) == 1
    return shards == 1 and len(cycle) == 1 and one_priority and any(spec.feedback for spec in inputs)


def earliest_cause(inputs: Sequence[InputSpec], tick: int, uppers: Mapping[str, int], stored: int | None) -> int:
    """The least adjusted clock of a document, stored or still to come, that a task on a cycle has yet to process.

    What is still to come on the cycle itself is left out: it has a cause, which comes first.

    Args:
        inputs: of the task.
        tick: length of its ticks, microseconds.
        uppers: of its sources, by name.
        stored: the least adjusted clock among documents that are stored; None if none waits.
    """
    to_come = [uppers[spec.source] + offset_of(spec, tick) for spec in inputs if not spec.feedback]
    return min([END_OF_TIME if stored is None else stored, *to_come])


def frontier_of(spec: InputSpec, tick: int, upper: int, earliest: int, now: int) -> int:
    """The adjusted clock below which what an input reads is final.

    Args:
        spec: the input.
        tick: length of its task's ticks, microseconds.
        upper: of its source.
        earliest: nothing is published on the task's cycle before it; `now` where that does not matter, because the task
            feeds back in memory.
        now: up to which the sources are sealed.
    """
    if spec.feedback:
        upper = max(upper, earliest)
    return min(upper + offset_of(spec, tick), now)
