"""Planning a transaction: how far it goes, and what each transform reads for it.

Everything about time is decided here. A transform reads documents whose *adjusted clock*, their own clock plus the
`readDelay` (plus one tick if the read is a feedback read), lies between the transform's position and the end of the
transaction. The end is bounded by what is final: the `upper` of each source, adjusted the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from derive.errors import TaskError
from derive.protocol.specs import DerivationSpec, InputSpec, TransformSpec
from derive.shard.plan import Shape
from derive.storage.metadata.descriptions import Place, TaskState
from derive.storage.segments.segment_file import read_clocks
from derive.storage.store import Store
from derive.time.frontier import BEGINNING, END_OF_TIME, tick_begin, tick_end
from derive.time.limits import Limits, Size
from derive.time.positions import offset_of
from derive.time.segment import Segment
from derive.time.source_read import SourceRead


def current_positions(spec: DerivationSpec, state: TaskState) -> dict[str, int]:
    """Where each transform (by `state_key`) goes on, also if it now has another delay or another source.

    With another delay the same documents are processed at other times, and what was processed stays processed. Another
    source is read from its start, as by a transform that is new.
    """
    positions = dict(state.positions)
    for each in spec.inputs:
        key = each.state_key
        if key in positions and key in state.places:
            place = state.places[key]
            positions[key] += offset_of(each, spec.tick) - place.offset
            if place.source != each.source:
                del positions[key]
    return positions


def place_of(spec: DerivationSpec, transform: TransformSpec) -> Place:
    """What the position of a transform is a position in."""
    shuffle = transform.shuffle
    ways = {"any": "any", "key": f"key [{', '.join(shuffle.key)}]", "lambda": shuffle.script and shuffle.script.text}
    return Place(transform.input.source, offset_of(transform.input, spec.tick), ways[shuffle.kind] or "")


def misplaced(spec: DerivationSpec, state: TaskState) -> TaskError | None:
    """The error of a task whose shards would look for state that others of them keep."""
    for each in spec.transforms:
        before, now = state.places.get(each.input.state_key), place_of(spec, each)
        if state.shards > 1 and state.tokens and before and before.shuffle and before.shuffle != now.shuffle:
            return TaskError(
                f"'{each.name}' of '{spec.name}' was shuffled by {before.shuffle}, and is now shuffled by"
                f" {now.shuffle}: what its {state.shards} shards keep lies where the first one put it",
                position=each.position,
                hint=f"shuffle as before, or start over: flowctl reset --task {spec.name}",
            )
    return None


def default_shards(spec: DerivationSpec, cores: int) -> int:
    """Shards of a task that has never run: one if it reads itself, so that it can feed back in memory."""
    return 1 if any(each.source == spec.name for each in spec.inputs) else cores


def keeps_state(spec: DerivationSpec) -> bool:
    """Whether documents can meet one another in the lambdas: through a key, through state, or through feedback."""
    state = bool(spec.migrations) or (spec.module is not None and "startCommit" in spec.module.text)
    return state or any(each.shuffle.kind != "any" or each.input.feedback for each in spec.transforms)


def feeds_back_in_memory(spec: DerivationSpec, shards: int, cycle: Sequence[str]) -> bool:
    """Whether a task runs many ticks in one transaction: alone on its cycle, with one shard and one priority.

    Differing priorities take turns after each tick.
    """
    one_priority = len({each.priority for each in spec.inputs}) == 1
    return shards == 1 and len(cycle) == 1 and one_priority and any(each.feedback for each in spec.inputs)


def shape_of(spec: DerivationSpec, shards: int) -> Shape:
    """How transactions of this task are cut."""
    if not keeps_state(spec):
        return "slices"
    return "single" if shards == 1 else "sharded"


class Sources:
    """What a derivation's transforms have yet to read at this moment: segments and uppers, from one look at the store.

    Args:
        store: the data folder.
        spec: the derivation.
        positions: by `state_key`, the adjusted clock below which a transform has processed everything.
    """

    def __init__(self, store: Store, spec: DerivationSpec, positions: Mapping[str, int]) -> None:
        self.root = store.root
        self.spec = spec
        self.uppers: dict[str, int] = {}
        self._segments: dict[int, list[Segment]] = {}
        for transform in spec.inputs:
            source = spec.sources[transform.source]
            if source.name not in self.uppers:
                self.uppers[source.name] = store.upper(source.name)
            fields = [each.field for each in source.partitions]
            begin = positions.get(transform.state_key, BEGINNING) - offset_of(transform, spec.tick)
            self._segments[transform.index] = store.segments(source.name, fields, transform.selector, begin)

    def read(self, transform: InputSpec, begin: int, end: int) -> SourceRead:
        """The read of a transform for adjusted clocks in `[begin, end)`."""
        offset = offset_of(transform, self.spec.tick)
        clock_begin = max(begin - offset, transform.not_before or BEGINNING)
        clock_end = min(end - offset, END_OF_TIME if transform.not_after is None else transform.not_after)
        segments = self._segments[transform.index]
        whole = SourceRead(transform.index, offset, clock_begin, clock_end, tuple(segments))
        return whole.within(clock_begin + offset, clock_end + offset)

    def earliest(self, transform: InputSpec, begin: int) -> int | None:
        """The least adjusted clock at or above `begin` of a stored document this transform reads; None if none is."""
        read = self.read(transform, begin, END_OF_TIME)
        best: int | None = None
        for segment in read.segments:
            if best is not None and segment.clock_min >= best:
                continue
            clock = _first_clock(self.root, segment, read.clock_begin)
            if clock is not None and clock < read.clock_end and (best is None or clock < best):
                best = clock
        return None if best is None else best + read.offset

    def pending(self, transform: InputSpec, begin: int) -> int:
        """How many stored documents wait for this transform at or above the adjusted clock `begin`."""
        read = self.read(transform, begin, END_OF_TIME)
        return sum(_count(self.root, segment, read.clock_begin, read.clock_end) for segment in read.segments)


def _first_clock(root: Path, segment: Segment, begin: int) -> int | None:
    if segment.clock_min >= begin:
        return segment.clock_min
    clocks = read_clocks(root, segment)
    place = int(np.searchsorted(clocks, begin))
    return int(clocks[place]) if place < len(clocks) else None


def _count(root: Path, segment: Segment, begin: int, end: int) -> int:
    if segment.clock_min >= begin and segment.clock_max < end:
        return segment.documents
    low, high = np.searchsorted(read_clocks(root, segment), [begin, end])
    return max(0, int(high - low))


def choose_end(sources: Sources, positions: Mapping[int, int], bound: int, limits: Limits) -> int:
    """The end of the next transaction: at most `bound`, and with about as much before it as its limits allow.

    Transforms whose position is at or beyond the end have no part in the transaction.

    Args:
        sources: what can be read.
        positions: by transform index, where each begins.
        bound: a tick boundary.
        limits: of the transaction.
    """
    transforms = [transform for transform in sources.spec.inputs if transform.index in positions]
    reads = [sources.read(transform, positions[transform.index], bound) for transform in transforms]
    if limits.hold(size_of(reads)):
        return bound
    low = begin = min(positions.values())
    high = bound
    while high - low > sources.spec.tick:
        middle = (low + high) // 2
        if limits.hold(size_of([read.within(begin, middle) for read in reads])):
            low = middle
        else:
            high = middle
    return min(bound, tick_end(low, sources.spec.tick))


def size_of(reads: Sequence[SourceRead]) -> Size:
    """About how much these reads hold, taking a segment's clocks as evenly spread."""
    documents = size = 0
    for read in reads:
        for segment in read.segments:
            span = segment.clock_max - segment.clock_min + 1
            covered = min(segment.clock_max + 1, read.clock_end) - max(segment.clock_min, read.clock_begin)
            covered = max(0, min(span, covered))
            documents += segment.documents * covered // span
            size += segment.bytes * covered // span
    return Size(documents, size)


def is_one_tick(reads: Sequence[SourceRead], tick: int) -> bool:
    """Whether all that these reads hold is of one tick, which is never cut."""
    begin, end = _span(reads)
    return tick_begin(begin, tick) == tick_begin(end - 1, tick)


def _span(reads: Sequence[SourceRead]) -> tuple[int, int]:
    """The adjusted clocks between which lies what these reads hold; they hold something."""
    begins = [max(segment.clock_min, read.clock_begin) + read.offset for read in reads for segment in read.segments]
    ends = [min(segment.clock_max + 1, read.clock_end) + read.offset for read in reads for segment in read.segments]
    return min(begins), max(ends)


def slice_borders(
    reads: Sequence[SourceRead], end: int, tick: int, clamp: int, abreast: int, limits: Limits
) -> tuple[int, ...]:
    """Cut a transaction into slices of time that begin and end at tick boundaries.

    No tick is divided, so documents that combine are always in one slice; everything that is clamped to the output's
    `upper` is of one tick, too.

    Args:
        reads: what the transaction reads.
        end: adjusted clock at which it ends.
        tick: length of a tick, microseconds.
        clamp: the output's `upper`.
        abreast: how many slices are expected to run at the same time.
        limits: of a slice.

    Returns:
        Ascending borders in adjusted time; slice i is `[borders[i], borders[i + 1])`.
    """
    if not any(read.segments for read in reads):
        return ()
    begin, last = _span(reads)
    first, last = tick_begin(begin, tick), min(end, tick_end(last - 1, tick))
    size = size_of(reads)
    total = size.documents
    rounds = -(-total // (limits.slice_documents * abreast))
    count = 1 if limits.is_small(size) else rounds * abreast
    borders = [first]
    # Borders at equal counts: the clock below which the wanted share of documents lies, by bisection.
    for number in range(1, count):
        low, high = borders[-1], last
        while high - low > tick:
            middle = (low + high) // 2
            below = size_of([read.within(first, middle) for read in reads]).documents
            low, high = (middle, high) if below * count < number * total else (low, middle)
        border = tick_begin(high, tick)
        if border > max(borders[-1], clamp) and border < last:
            borders.append(border)
    return (*borders, last)
