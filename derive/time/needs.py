"""What a task still needs of its sources, which is what keeps their history from being compacted.

An input needs what it has not processed: clocks at or above its position, less its read delay. A task that stops keeps
that right. An input that is new, or backfilled, begins with what its source still knows: one document per key of what
was compacted. What is derived is then exactly what follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from derive.document.clock import format_rfc3339
from derive.errors import TaskError
from derive.protocol.specs import InputSpec
from derive.time.frontier import BEGINNING
from derive.time.positions import offset_of


@dataclass(frozen=True, slots=True)
class Right:
    """What an input finds of its source.

    Attributes:
        since: below it, the source is not known as it was.
        is_kept: the input has held this right, or one to more, until now, so nothing it has yet to process went
            meanwhile.
    """

    since: int
    is_kept: bool


def needs(inputs: Sequence[InputSpec], tick: int, positions: Mapping[str, int]) -> dict[str, int]:
    """For each input of a task (by `state_key`), the least clock of its source that it has yet to process.

    Args:
        inputs: of the task.
        tick: length of its ticks, microseconds.
        positions: by `state_key`, the adjusted clock below which an input has processed everything.
    """
    return {spec.state_key: _need(spec, tick, positions) for spec in inputs}


def _need(spec: InputSpec, tick: int, positions: Mapping[str, int]) -> int:
    position = positions.get(spec.state_key, BEGINNING)
    return max(position - offset_of(spec, tick), spec.not_before or BEGINNING, BEGINNING)


def compacted(
    inputs: Sequence[InputSpec], positions: Mapping[str, int], rights: Mapping[str, Right]
) -> list[tuple[InputSpec, int]]:
    """Inputs that begin with a history that was compacted, each with the `since` of its source."""
    return [
        (spec, rights[spec.state_key].since)
        for spec in inputs
        if spec.state_key not in positions and rights[spec.state_key].since > (spec.not_before or BEGINNING)
    ]


def lost(
    task: str, inputs: Sequence[InputSpec], tick: int, positions: Mapping[str, int], rights: Mapping[str, Right]
) -> TaskError | None:
    """The error of a task that has to go on in the midst of a history that was compacted while it was away.

    What is left of that history stands for documents it has processed and for others at once.
    """
    for spec in inputs:
        right = rights[spec.state_key]
        if spec.state_key in positions and not right.is_kept and _need(spec, tick, positions) < right.since:
            return TaskError(
                f"'{spec.name}' of '{task}' was not in the catalog, or left it out by 'notBefore', when the"
                f" history of '{spec.source}' before {format_rfc3339(right.since)} was compacted, and has yet to read"
                " some of it",
                position=spec.position,
                hint="raise its 'backfill' to read what there is from the start, or start over: flowctl reset",
            )
    return None
