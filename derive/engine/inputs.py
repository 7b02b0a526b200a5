"""What a task reads, as of one look at the store: segments of its sources, and how far those are final."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from derive.engine.transactor import TaskSpec
from derive.errors import ViewError
from derive.protocol.specs import InputSpec
from derive.storage.roles import View
from derive.storage.segments.clocks import count_documents, first_clock
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.positions import offset_of
from derive.time.segment import Segment
from derive.time.source_read import SourceRead, read_input


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the inputs of a task have yet to read at one moment.

    Attributes:
        root: the data folder.
        tick: length of the task's ticks, microseconds.
        uppers: of its sources, by name.
        segments: for each input (by index), those with documents that it has yet to read.
        failures: of materialized views that have an error in the place of rows, by name, the error. To the task they
            are final up to where that has come, as it may be corrected.
    """

    root: Path
    tick: int
    uppers: Mapping[str, int]
    segments: Mapping[int, tuple[Segment, ...]]
    failures: Mapping[str, ViewError] = field(default_factory=dict)

    def read(self, spec: InputSpec, begin: int, end: int) -> SourceRead:
        """What an input reads for adjusted clocks in `[begin, end)`."""
        return read_input(spec, self.tick, self.segments[spec.index], begin, end)

    def earliest(self, spec: InputSpec, begin: int) -> int | None:
        """The least adjusted clock at or above `begin` of a stored document this input reads; None if none is.

        Raises:
            SegmentError: a file of the source cannot be read.
        """
        read = self.read(spec, begin, END_OF_TIME)
        clock = first_clock(self.root, read)
        return None if clock is None else clock + read.offset

    def pending(self, spec: InputSpec, begin: int) -> int:
        """How many stored documents wait for this input at or above the adjusted clock `begin`.

        Raises:
            SegmentError: a file of the source cannot be read.
        """
        return count_documents(self.root, self.read(spec, begin, END_OF_TIME))


def look(store: View, task: TaskSpec, positions: Mapping[str, int]) -> Inputs:
    """What there is to read now.

    Args:
        store: the data folder.
        task: whose inputs.
        positions: by `state_key`, the adjusted clock below which an input has processed everything.
    """
    uppers: dict[str, int] = {}
    failures: dict[str, ViewError] = {}
    segments: dict[int, tuple[Segment, ...]] = {}
    for spec in task.inputs:
        source = task.sources[spec.source]
        if source.name not in uppers:
            known = store.collection(source.name)
            uppers[source.name] = known.sound if known else BEGINNING
            if known is not None and known.failure is not None:
                failures[source.name] = known.failure[1]
        begin = positions.get(spec.state_key, BEGINNING) - offset_of(spec, task.tick)
        segments[spec.index] = tuple(store.segments(source, spec.selector, begin))
    return Inputs(store.root, task.tick, uppers, segments, failures)
