"""Needs: the history that tasks still need of their sources, which must not be compacted.

An input needs the documents that it has not processed: timestamps at or above its position, less its read delay. A
stopped task keeps its read capability. A new or backfilled input begins with the known history of its source, which has
one document per key where it was compacted. The derived documents follow from exactly that history.
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
class KeptHistory:
    """The history of an input's source when the input acquires the capability to read it.

    Attributes:
        since: timestamp below which the source's history is compacted.
        is_kept: true if the input has had a read capability until now, so that no unprocessed document was compacted.
    """

    since: int
    is_kept: bool


def needs(inputs: Sequence[InputSpec], tick: int, positions: Mapping[str, int]) -> dict[str, int]:
    """Return the least timestamp that each input of a task has yet to process, by `state_key`.

    Args:
        inputs: inputs of the task.
        tick: length of its ticks, microseconds.
        positions: adjusted timestamp below which each input has processed everything, by `state_key`.
    """
    return {spec.state_key: _need(spec, tick, positions) for spec in inputs}


def _need(spec: InputSpec, tick: int, positions: Mapping[str, int]) -> int:
    position = positions.get(spec.state_key, BEGINNING)
    return max(position - offset_of(spec, tick), spec.not_before or BEGINNING, BEGINNING)


def compacted(
    inputs: Sequence[InputSpec], positions: Mapping[str, int], histories: Mapping[str, KeptHistory]
) -> list[tuple[InputSpec, int]]:
    """Return the inputs that begin with a compacted history, each with the `since` of its source."""
    return [
        (spec, histories[spec.state_key].since)
        for spec in inputs
        if spec.state_key not in positions and histories[spec.state_key].since > (spec.not_before or BEGINNING)
    ]


def lost(
    task: str,
    inputs: Sequence[InputSpec],
    tick: int,
    positions: Mapping[str, int],
    histories: Mapping[str, KeptHistory],
) -> TaskError | None:
    """Return the error of a task that must resume within a history that was compacted in its absence; None otherwise.

    The compacted history mixes documents that the task has processed with others.
    """
    for spec in inputs:
        history = histories[spec.state_key]
        if spec.state_key in positions and not history.is_kept and _need(spec, tick, positions) < history.since:
            return TaskError(
                f"'{spec.name}' of '{task}' still needs history of '{spec.source}' before"
                f" {format_rfc3339(history.since)}, which was compacted while the input was not in the catalog, or was"
                " bounded by 'notBefore'",
                position=spec.position,
                hint="raise its 'backfill' to read the kept history from its start, or start over: flowctl reset",
            )
    return None
