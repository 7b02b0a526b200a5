"""Inputs of a task at one time, and read capabilities, which keep the source history that the task still needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from derive.engine.edits import reset_command
from derive.engine.following import way_to
from derive.engine.transactor import TaskSpec
from derive.errors import SegmentMissingError, SourceReplacedError, ViewError
from derive.protocol.specs import CatalogSpec, DerivationSpec, InputSpec
from derive.storage.capability.table import TaskCapability
from derive.storage.location import Location
from derive.storage.metadata.descriptions import Collection
from derive.storage.roles import Maintainable, Runnable
from derive.storage.segments.clocks import count_documents, first_clock
from derive.time import BEGINNING, END_OF_TIME, tick_begin
from derive.time.extent import Enough, Limits, Size, size_of
from derive.time.positions import (
    KeptHistory,
    Place,
    Segment,
    SourceRead,
    arrived_places,
    current_positions,
    needs,
    offset_of,
    read_input,
)


def acquire_inputs(
    store: Maintainable | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    capability: TaskCapability | None = None,
    places: Mapping[str, Place] | None = None,
    *,
    keeps: bool = False,
) -> dict[str, KeptHistory]:
    """Acquire read capabilities for the needs of a task, and return the history of each input (by `state_key`).

    Args:
        store: the data folder.
        task: the reading task.
        positions: positions of its inputs, by `state_key`.
        capability: the capability to run the task; None outside of a run.
        places: relations of the positions, by `state_key`; an input reads its relation even after a rename.
        keeps: whether to keep earlier capabilities, because the task still runs by an earlier definition.

    Raises:
        FencedError: the capability is no longer valid.
    """
    desired = needs(task.inputs, task.tick, positions)
    sources = {spec.state_key: (spec.source, desired[spec.state_key]) for spec in task.inputs}
    relations = {key: read for key, place in (places or {}).items() if (read := place.relations)}
    return store.task_capabilities.acquire_inputs(
        task.name, sources, capability, relations, begun=positions.keys(), keeps=keeps
    )


def gone(catalog: CatalogSpec, store: Maintainable) -> list[str]:
    """Return tasks with read capabilities that are not in the catalog and do not run.

    `settle` drops the capabilities.
    """
    others = sorted(store.task_capabilities.readers() - set(catalog.tasks))
    return [name for name in others if not store.task_capabilities.is_running(name)]


def settle(catalog: CatalogSpec, store: Maintainable) -> list[str]:
    """Acquire read capabilities for the needs of every task of a catalog, and drop the capabilities of other tasks.

    Returns:
        Names of tasks that are no longer in the catalog, and whose capabilities were dropped.
    """
    readers = store.task_capabilities.readers()
    for name, task in catalog.tasks.items():
        state = store.task(name)
        if state is not None and name not in readers:  # the task last ran before read capabilities existed
            places = arrived_places(state.places, state.positions)
            positions = current_positions(task.inputs, task.tick, state.positions, places)
            acquire_inputs(store, task, positions, places=places)
    return [name for name in sorted(readers - set(catalog.tasks)) if store.task_capabilities.release_inputs(name)]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The unread segments of a task's inputs at one time.

    Attributes:
        location: location of the segments.
        tick: length of the task's ticks, microseconds.
        uppers: uppers of its sources, by name.
        segments: for each input (by index), segments with unread documents.
        failures: errors of materialized views, by name. The upper of such a view is the time at which its error begins,
            because the error may be corrected.
        others: for each input (by index) that will move to another relation, the approximate number of its documents.
        left: for inputs (by index), the approximate size of later segments that were left out.
    """

    location: Location
    tick: int
    uppers: Mapping[str, int]
    segments: Mapping[int, Sequence[Segment]]
    failures: Mapping[str, ViewError] = field(default_factory=dict)
    others: Mapping[int, int] = field(default_factory=dict)
    left: Mapping[int, Size] = field(default_factory=dict)

    def read(self, spec: InputSpec, begin: int, end: int) -> SourceRead:
        """Return the read of an input for adjusted timestamps in `[begin, end)`."""
        return read_input(spec, self.tick, self.segments[spec.index], begin, end)

    def earliest(self, spec: InputSpec, begin: int) -> int | None:
        """Return the least adjusted timestamp at or after `begin` of a stored document of this input; None if missing.

        Raises:
            SegmentError: a file of the source cannot be read.
        """
        read = self.read(spec, begin, END_OF_TIME)
        clock = first_clock(self.location, read)
        return None if clock is None else clock + read.offset

    def pending(self, spec: InputSpec, begin: int) -> int:
        """Return the number of stored documents of this input at or after the adjusted timestamp `begin`.

        Raises:
            SegmentError: a file of the source cannot be read.
        """
        return count_documents(self.location, self.read(spec, begin, END_OF_TIME))


def look(  # noqa: PLR0913 (three callers, each with other options)
    store: Maintainable | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    places: Mapping[str, Place] | None = None,
    switched: Mapping[str, Sequence[Segment]] | None = None,
    limits: Limits | None = None,
    *,
    counts: bool = False,
    is_joint: bool = False,
    raised: Mapping[str, int] | None = None,
) -> Inputs:
    """Return the inputs of a task now.

    Args:
        store: the data folder.
        task: the task.
        positions: adjusted timestamp before which an input has processed all documents, by `state_key`.
        places: relation of the position, by `state_key`; None to read the relations that the sources name now.
        switched: segments of an input's switch to another relation, by `state_key`.
        limits: greatest limits of a transaction: later segments, which no such transaction reads, are left out; None
            for all unread segments.
        counts: whether to count the documents of these segments, and not to estimate their number.
        is_joint: whether the inputs are for a cycle transaction, which ends by itself: then the upper of a source is
            at most the first segment that is left out. No segment of a feedback read is left out, because the cycle
            itself moves the upper of its source.
        raised: uppers of sources (by name) after the commit for which the inputs are.

    Raises:
        SourceReplacedError: the name of a source stands for another relation than the one read so far.
    """
    uppers: dict[str, int] = {}
    failures: dict[str, ViewError] = {}
    segments: dict[int, Sequence[Segment]] = {}
    others: dict[int, int] = {}
    left: dict[int, Size] = {}
    for spec in task.inputs:
        source = task.sources[spec.source]
        known = store.collection(source.name)
        place = (places or {}).get(spec.state_key)
        upper = known.sound if known else BEGINNING
        if place is not None and place.switch is not None:
            upper = place.switch.at + 1
            segments[spec.index] = tuple((switched or {}).get(spec.state_key, ()))
            others[spec.index] = max(1, sum(segment.documents for segment in segments[spec.index]))
        elif place is not None and place.relation and (known is None or known.relation != place.relation):
            if not (spec.follows or store.replaces_nothing(source.name, place.relation)):
                raise replaced(store, task, spec, place.relation)
            segments[spec.index] = ()
            upper = max(positions.get(spec.state_key, BEGINNING) - offset_of(spec, task.tick), BEGINNING)
            if known is not None and way_to(store, task, spec, place) != "wait":
                others[spec.index] = max(1, known.documents)  # rows are retracted even if the relation has no rows
        else:
            begin = positions.get(spec.state_key, BEGINNING)
            most = None if is_joint and spec.feedback else limits
            unread = _unread(store, task, spec, known, begin, most, counts=counts)
            segments[spec.index], left[spec.index] = unread.segments, unread.left
            upper = max(upper, (raised or {}).get(source.name, upper))
            if is_joint and unread.end is not None:
                upper = min(upper, unread.end)
            if known is not None and known.failure is not None:
                failures[source.name] = known.failure[1]
        uppers[source.name] = min(upper, uppers.get(source.name, upper))
    _add_retried(store, task, positions, segments, uppers)
    return Inputs(store.location, task.tick, uppers, segments, failures, others, left)


def _add_retried(
    store: Maintainable | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    segments: dict[int, Sequence[Segment]],
    uppers: dict[str, int],
) -> None:
    """Add the retried documents of the quarantine to the segments of the inputs, and lower the uppers of their sources.

    Args:
        store: the data folder.
        task: the task.
        positions: as in `look`.
        segments: segments of each input, by index.
        uppers: upper of each source, by name.
    """
    if not isinstance(task, DerivationSpec) or not store.internal_collections(task.name):
        return
    for transform in task.transforms:
        # A retry gets a time after those up to which the sources are sealed above.
        index, source = transform.index, task.sources[transform.input.source]
        begin = positions.get(transform.input.state_key, BEGINNING) - offset_of(transform.input, task.tick)
        retried = store.retried(task.name, transform, source, begin)
        if retried.segments:
            segments[index] = (*segments[index], *retried.segments)
        if retried.frontier is not None:
            uppers[source.name] = min(uppers[source.name], retried.frontier)


class _Unread(NamedTuple):
    """Unread segments of an input.

    Attributes:
        segments: the segments that transactions read.
        left: approximate size of the later segments, which were left out.
        end: least timestamp of the later segments; None for none.
    """

    segments: Sequence[Segment]
    left: Size = Size(0, 0)
    end: int | None = None


def _unread(
    store: Maintainable | Runnable,
    task: TaskSpec,
    spec: InputSpec,
    known: Collection | None,
    begin: int,
    limits: Limits | None,
    *,
    counts: bool,
) -> _Unread:
    """Return the unread segments of an input, as far as transactions read them.

    Args:
        store: the data folder.
        task: the task.
        spec: the input.
        known: its source; None if nothing is stored.
        begin: adjusted timestamp before which all documents are processed.
        limits: as in `look`.
        counts: as in `look`.
    """
    read = read_input(spec, task.tick, (), begin, END_OF_TIME)
    enough = Enough(read.clock_begin, read.clock_end, read.offset, task.tick, limits) if limits else None
    relation = known.relation if known is not None and known.relation else None
    source = task.sources[spec.source]
    segments = store.segments(source, spec.selector, read.clock_begin, relation, until=enough)
    if known is None or enough is None or enough.left is None:
        return _Unread(segments)
    left = _size_from(store, known, enough.left)
    if counts:
        unread = store.count_documents(source, spec.selector, read.clock_begin, read.clock_end, relation)
        left = Size(max(0, unread - sum(segment.documents for segment in segments)), left.bytes)
    return _Unread(segments, left, enough.left)


def _size_from(store: Maintainable | Runnable, known: Collection, clock: int) -> Size:
    """Return the approximate size of a collection's documents from a timestamp on, evenly spread over its time."""
    first, last = store.span(known.name)
    share = min(1.0, (last + 1 - clock) / (last + 1 - first))
    return Size(int(known.documents * share), int(known.bytes * share))


def replaced(store: Maintainable | Runnable, task: TaskSpec, spec: InputSpec, relation: int) -> SourceReplacedError:
    """Return the error of an input whose source is not the relation that was read so far."""
    way = f"write 'onSourceReset: follow' at '{spec.name}' to retract the rows read so far and read the new relation"
    again = f"start over: {reset_command(store, task.name)}"
    return SourceReplacedError(
        f"the source of '{spec.name}' in '{task.name}' is not the relation that was read so far:"
        f" {store.describe_fate(spec.source, relation)}",
        position=spec.position,
        hint=again if spec.follows else f"{way}; or {again}",
    )


class Waiting(NamedTuple):
    """The approximate number of documents that wait for a task.

    Attributes:
        due: documents that the next transactions can read.
        delayed: documents of the present tick, or that wait for their read delay.
    """

    due: int
    delayed: int


def estimate_waiting(inputs: Inputs, task: TaskSpec, positions: Mapping[str, int], now: int) -> Waiting:
    """Return the approximate number of documents that wait for a task; no file is opened.

    Args:
        inputs: the result of `look`.
        task: the task.
        positions: adjusted timestamp before which an input has processed all documents, by `state_key`.
        now: the present.
    """
    due = unread = 0
    bound = tick_begin(now, task.tick)
    for spec in task.inputs:
        position = positions.get(spec.state_key, BEGINNING)
        later = inputs.left.get(spec.index, Size(0, 0)).documents + inputs.others.get(spec.index, 0)
        unread += size_of([inputs.read(spec, position, END_OF_TIME)]).documents + later
        due += size_of([inputs.read(spec, position, max(position, bound))]).documents + later
    return Waiting(due, unread - due)


@dataclass(frozen=True, slots=True)
class PendingDocuments:
    """Documents that one input of a task cannot process yet.

    Attributes:
        task: name of the task.
        transform: name of the input.
        delay: the input's read delay, microseconds.
        documents: number of documents; 0 if a refill has stored all documents, and ends at a later time.
        due: least adjusted timestamp of the documents; for a refill, the timestamp at which the refill is complete.
        behind: the failed or stopped task for which the documents wait, if there is one.
    """

    task: str
    transform: str
    delay: int
    documents: int
    due: int
    behind: str | None = None


def find_pending(
    store: Maintainable | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    places: Mapping[str, Place] | None = None,
    switched: Mapping[str, Sequence[Segment]] | None = None,
) -> list[PendingDocuments]:
    """Return the pending documents of each input of a task, for the arguments of `look`.

    Only the segments that the next transaction could read are looked at; the documents of later segments are counted.

    Raises:
        SegmentError: a source's file cannot be read.
        SourceReplacedError: the name of a source stands for another relation than the one read so far.
    """
    while True:
        try:
            inputs = look(store, task, positions, places, switched, Limits(), counts=True)
            return _waiting_in(inputs, task, positions)
        except SegmentMissingError as error:
            if store.is_missing(error.path):
                raise
            # A source was reset after the look-up: repeat the look-up.


def _waiting_in(inputs: Inputs, task: TaskSpec, positions: Mapping[str, int]) -> list[PendingDocuments]:
    waiting = []
    for spec in task.inputs:
        position = positions.get(spec.state_key, BEGINNING)
        if spec.index in inputs.others:
            waiting.append(PendingDocuments(task.name, spec.name, spec.read_delay, inputs.others[spec.index], position))
            continue
        due = inputs.earliest(spec, position)
        if due is not None:
            count = inputs.pending(spec, position) + inputs.left.get(spec.index, Size(0, 0)).documents
            waiting.append(PendingDocuments(task.name, spec.name, spec.read_delay, count, due))
    return waiting


def find_blamed(stopped: Iterable[str], sources: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the tasks that cannot advance by themselves, each with the task that blocks it.

    Args:
        stopped: tasks that have failed or do not run; such a task blocks itself and its readers.
        sources: for every running task, the names of its sources.
    """
    blamed = {name: name for name in stopped}
    count = -1
    while count < len(blamed):
        count = len(blamed)
        for name, read in sources.items():
            held_by = [blamed[source] for source in read if source in blamed]
            if held_by:
                blamed.setdefault(name, held_by[0])
    return blamed
