"""Positions of a task's inputs, in adjusted time, the history that the task still needs, and the reads of its sources.

An input reads documents by their *adjusted timestamp*: the timestamp plus the `readDelay`, plus one tick for a feedback
read. Only `offset_of` computes this sum. The position of an input is the adjusted timestamp below which the input has
processed all documents; it is stored by the input's `state_key`.

An input needs all documents from its position, less its read delay, on: the input has not processed these documents. A
stopped task keeps its read capability. A new or backfilled input begins with the known history of its source; the
compacted part of this history has one document per key.

A source read is the interval of time and the segments that one input reads in a transaction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from derive.document.clock import format_rfc3339
from derive.errors import TaskError
from derive.protocol.specs import InputSpec
from derive.time import BEGINNING, END_OF_TIME


class Switch(NamedTuple):
    """The switch of an input from one relation to another relation of the same name.

    Attributes:
        relation: the next relation.
        end: timestamp up to which the input processes the former relation; its earlier rows are retracted.
        at: timestamp of the retractions, and of the insertions of the next relation's rows.
    """

    relation: int
    end: int
    at: int


class Place(NamedTuple):
    """The source of an input's position, and the shuffle of its state.

    Attributes:
        source: name of the collection.
        offset: microseconds from a timestamp of the source to its adjusted timestamp.
        shuffle: description of the shuffle, for people; empty if unknown.
        relation: relation with the name; 0 if unknown.
        switch: switch to the relation with the name now; None without a switch in progress.
    """

    source: str
    offset: int
    shuffle: str = ""
    relation: int = 0
    switch: Switch | None = None

    @staticmethod
    def of(values: Sequence[Any]) -> Place:
        """Return the place that a JSON array describes."""
        *before, switch = values if len(values) == len(Place._fields) else (*values, None)
        place = Place(*before)
        return place if switch is None else place._replace(switch=Switch(*switch))

    def to_json(self) -> list[Any]:
        """Return the place as a JSON array, the inverse of `of`."""
        return [*self[:-1], None if self.switch is None else list(self.switch)]

    @property
    def relations(self) -> tuple[int, ...]:
        """Return the known relations that the input reads."""
        others = () if self.switch is None else (self.switch.relation,)
        return (self.relation, *others) if self.relation else ()

    def arrived(self, position: int) -> Place:
        """Return the place of an input at an adjusted timestamp; after a switch, the next relation."""
        if self.switch is None or position <= self.switch.at + self.offset:
            return self
        return self._replace(relation=self.switch.relation, switch=None)


def arrived_places(places: Mapping[str, Place], positions: Mapping[str, int]) -> dict[str, Place]:
    """Return the place of each input at its position; a run that was killed may not have recorded the end of a switch.

    Args:
        places: recorded places, by `state_key`.
        positions: recorded positions, by `state_key`.
    """
    return {key: place.arrived(positions.get(key, BEGINNING)) for key, place in places.items()}


def offset_of(spec: InputSpec, tick: int) -> int:
    """Return the microseconds from a document's timestamp to its adjusted timestamp: read delay and feedback tick."""
    return spec.read_delay + (tick if spec.feedback else 0)


def current_positions(
    inputs: Sequence[InputSpec],
    tick: int,
    positions: Mapping[str, int],
    places: Mapping[str, Place],
    relations: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the position of each input, also after a change of its delay or its source.

    After a change of the delay, processed documents stay processed. Another source is read from its start, or from the
    last position of the input in this source. The position in the old source is kept under `former_key`. A renamed
    source is the same source.

    Args:
        inputs: present inputs of the task.
        tick: length of its ticks, microseconds.
        positions: positions at the last commit, by `state_key`.
        places: places of these positions, by `state_key`.
        relations: present relation of each source, by name; unknown relations are omitted.
    """
    current = dict(positions)
    known = relations or {}
    for spec in inputs:
        key, place = spec.state_key, places.get(spec.state_key)
        if place is not None and _has_left(spec, place, known) and key in current:
            current[former_key(key, place.source)] = current.pop(key)
            former = former_key(key, spec.source)
            place = places.get(former)
            if former in current:
                current[key] = current.pop(former)
        if place is not None and key in current:
            current[key] += offset_of(spec, tick) - place.offset
    return current


def current_places(
    inputs: Sequence[InputSpec], places: Mapping[str, Place], relations: Mapping[str, int] | None = None
) -> dict[str, Place]:
    """Return the place in its source of each position that `current_positions` returns, by state key."""
    left = {
        spec.state_key
        for spec in inputs
        if (place := places.get(spec.state_key)) is not None and _has_left(spec, place, relations or {})
    }
    current = {former_key(key, place.source) if key in left else key: place for key, place in places.items()}
    for spec in inputs:
        former = former_key(spec.state_key, spec.source)
        if spec.state_key in left and former in current:
            current[spec.state_key] = current.pop(former)
    return current


def _has_left(spec: InputSpec, place: Place, relations: Mapping[str, int]) -> bool:
    """Return true if an input reads another source than before. A renamed source is the same source."""
    is_renamed = place.relation != 0 and relations.get(spec.source) == place.relation
    return place.source != spec.source and not is_renamed


def former_key(key: str, source: str) -> str:
    """Return the key under which an input's position in a former source is kept."""
    return f"{key} of {source}"


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The history of an input's source when the input acquires the capability to read it.

    Attributes:
        since: timestamp below which the source's history is compacted.
        is_kept: true if the input already had a read capability, so that no unprocessed document was compacted.
    """

    since: int
    is_kept: bool


def needs(inputs: Sequence[InputSpec], tick: int, positions: Mapping[str, int]) -> dict[str, int]:
    """Return the least timestamp that each input of a task must still process, by `state_key`.

    Args:
        inputs: inputs of the task.
        tick: length of its ticks, microseconds.
        positions: adjusted timestamp below which each input has processed all documents, by `state_key`.
    """
    return {spec.state_key: _need(spec, tick, positions) for spec in inputs}


def _need(spec: InputSpec, tick: int, positions: Mapping[str, int]) -> int:
    position = positions.get(spec.state_key, BEGINNING)
    return max(position - offset_of(spec, tick), spec.not_before or BEGINNING, BEGINNING)


def _has_begun(spec: InputSpec, tick: int, positions: Mapping[str, int]) -> bool:
    """Return whether an input has read a part of its source. A position may also record only the source's relation."""
    return positions.get(spec.state_key, BEGINNING) - offset_of(spec, tick) > BEGINNING


def compacted(
    inputs: Sequence[InputSpec], tick: int, positions: Mapping[str, int], histories: Mapping[str, KeptHistory]
) -> list[tuple[InputSpec, int]]:
    """Return the inputs that begin with a compacted history, each with the `since` of its source."""
    return [
        (spec, histories[spec.state_key].since)
        for spec in inputs
        if not _has_begun(spec, tick, positions) and histories[spec.state_key].since > (spec.not_before or BEGINNING)
    ]


def lost(
    task: str,
    inputs: Sequence[InputSpec],
    tick: int,
    positions: Mapping[str, int],
    histories: Mapping[str, KeptHistory],
    *,
    reset: str,
) -> TaskError | None:
    """Return the error of a task whose unread history was compacted while the task had no capability; None otherwise.

    The compacted history mixes processed documents with unprocessed documents. A position at the beginning of the
    source counts, too, because a position is recorded before an endpoint stores its first rows.
    """
    for spec in inputs:
        history = histories[spec.state_key]
        if spec.state_key in positions and not history.is_kept and _need(spec, tick, positions) < history.since:
            return TaskError(
                f"'{spec.name}' of '{task}' still needs history of '{spec.source}' before"
                f" {format_rfc3339(history.since)}, which was compacted while the input was not in the catalog, or was"
                " bounded by 'notBefore'",
                position=spec.position,
                hint=f"raise its 'backfill' to read the kept history from its start, or start over: {reset}",
            )
    return None


class Segment(NamedTuple):
    """One immutable file of a collection: a tuple, because a look for work makes thousands.

    Attributes:
        collection: name of the collection.
        path: path relative to the data folder.
        partition: values of its logical partition, in field order.
        clock_min: least timestamp.
        clock_max: greatest timestamp.
        documents: number of updates.
        bytes: size of the file.
        checksum: SHA-256 of the file, hexadecimal; empty for files of old versions.
    """

    collection: str
    path: str
    partition: tuple[Any, ...]
    clock_min: int
    clock_max: int
    documents: int
    bytes: int
    checksum: str = ""

    def to_json(self) -> list[Any]:
        """Return the description as JSON, for the transfer from a worker to the driver."""
        values = (self.clock_min, self.clock_max, self.documents, self.bytes, self.checksum)
        return [self.collection, self.path, list(self.partition), *values]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Segment:
        """Return the segment that `to_json` described."""
        return Segment(value[0], value[1], tuple(value[2]), *value[3:])


class ManySegments(Sequence[Segment]):
    """Segments in order, which are not stored as objects."""

    __slots__ = ()

    @abstractmethod
    def between(self, begin: int, end: int) -> Sequence[Segment]:
        """Return the segments that may have timestamps in `[begin, end)`."""


@dataclass(frozen=True, slots=True)
class SourceRead:
    """The documents that one input reads.

    Attributes:
        index: index of the input in its task.
        offset: microseconds from a document's timestamp to its adjusted timestamp.
        clock_begin: first timestamp.
        clock_end: exclusive upper bound of the timestamps.
        segments: files that may contain such documents.
    """

    index: int
    offset: int
    clock_begin: int
    clock_end: int
    segments: Sequence[Segment]

    def within(self, adjusted_begin: int, adjusted_end: int) -> SourceRead:
        """Return the part of this read with adjusted timestamps in `[adjusted_begin, adjusted_end)`."""
        begin = max(self.clock_begin, adjusted_begin - self.offset)
        end = min(self.clock_end, adjusted_end - self.offset)
        return SourceRead(self.index, self.offset, begin, end, _between(self.segments, begin, end))


def _between(segments: Sequence[Segment], begin: int, end: int) -> Sequence[Segment]:
    """Return the segments that may have timestamps in `[begin, end)`."""
    if isinstance(segments, ManySegments):
        return segments.between(begin, end)
    return tuple(segment for segment in segments if segment.clock_max >= begin and segment.clock_min < end)


def read_input(spec: InputSpec, tick: int, segments: Sequence[Segment], begin: int, end: int) -> SourceRead:
    """Return the read of an input for adjusted timestamps in `[begin, end)`, within the input's own bounds.

    Args:
        spec: the input.
        tick: length of its task's ticks, microseconds.
        segments: segments of its source; segments outside of the interval are dropped.
        begin: first adjusted timestamp.
        end: exclusive upper bound of the adjusted timestamps.
    """
    offset = offset_of(spec, tick)
    clock_begin, clock_end = spec.not_before or BEGINNING, END_OF_TIME if spec.not_after is None else spec.not_after
    return SourceRead(spec.index, offset, clock_begin, clock_end, segments).within(begin, end)
