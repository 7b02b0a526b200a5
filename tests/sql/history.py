"""What concurrent clients did and saw, and whether an order of it explains that: strict serializability without a search.

Rows are written once, are unique and stay; reads see all of them at once. So what reads have seen must be a chain of
sets, and an order exists if, and only if, nothing that ended before another thing began comes after it in the chain:
a write comes where it was seen first, a read behind all that it saw. A row that is deleted leaves another one behind, by
which it is known to have been there. What a subscription has told up to a time is a read of the past, in its order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

Row = str


class Outcome(Enum):
    """How a write ended, as its client knows it."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The server was killed: it has happened before the event's end, or never will."""


@dataclass(frozen=True)
class Event:
    """Something that a client did, between two moments of one clock that never goes back."""

    client: str
    begin: int
    end: int


@dataclass(frozen=True)
class Write(Event):
    """Rows written by one transaction. Each table's rows begin with the table's name and a colon."""

    rows: frozenset[Row]
    outcome: Outcome
    removes: frozenset[Row] = frozenset()
    """Rows that it deletes, where it has found them."""
    missed: frozenset[Row] = frozenset()
    """Rows that it was to delete and did not find, though they were written before, and nobody else deletes them."""


@dataclass(frozen=True)
class Read(Event):
    """All rows of all tables, at one time."""

    rows: frozenset[Row]
    lists: Mapping[str, tuple[Row, ...]]
    """Rows that are elements of lists: a write appends one to what it has read, so it must have read the newest list."""
    counts: Mapping[Row, int]
    """Rows that a query wrote, with the number of rows that it has read of table `a`."""
    view: Mapping[str, int] | None = None
    """What a view says: how many of a client's rows are in both tables; None if it was not read."""
    clock: int | None = None
    """Of what a subscription of this client has told, the time of the server that it was so; None of other reads."""


@dataclass(frozen=True)
class Violation:
    """Events that no order explains."""

    reason: str
    events: tuple[Event, ...]


def violations(history: Sequence[Event]) -> list[Violation]:
    """What contradicts strict serializability; empty if nothing does.

    Args:
        history: events in any order.
    """
    writes = [event for event in history if isinstance(event, Write)]
    reads = sorted((event for event in history if isinstance(event, Read)), key=lambda read: len(read.rows))
    writer_of = {row: write for write in writes for row in write.rows}
    if len(writer_of) != sum(len(write.rows) for write in writes):
        raise ValueError("rows of a history are unique")
    wrong = [*_wrong_views(reads), *_wrong_deletions(writes, reads)]
    reads = _undeleted(writes, reads)
    wrong += [*_strange_rows(reads, writer_of), *_broken_chain(reads), *_wrong_lists(reads, writer_of)]
    wrong += _wrong_subscriptions(reads)
    if wrong:
        return wrong  # the rest takes them for granted
    return [*_against_time(_phases(writes, reads)), *_wrong_counts(writes, reads)]


def _wrong_deletions(writes: Sequence[Write], reads: Sequence[Read]) -> list[Violation]:
    """Rows that are there beside what their deletion left, and deletions that did not find what was there."""
    wrong = [
        Violation(f"{min(write.missed)} was not there to be deleted", (write,)) for write in writes if write.missed
    ]
    deletions = [write for write in writes if write.removes]
    for read in reads:
        for write in deletions:
            if write.rows <= read.rows and write.removes & read.rows:
                wrong.append(Violation("what was deleted is read", (write, read)))
    return wrong


def _undeleted(writes: Sequence[Write], reads: Sequence[Read]) -> list[Read]:
    """Reads as if nothing had been deleted, by the number of their rows."""
    deletions = [write for write in writes if write.removes]
    restored = []
    for read in reads:
        gone = frozenset().union(*(write.removes for write in deletions if write.rows & read.rows))
        restored.append(replace(read, rows=read.rows | gone))
    return sorted(restored, key=lambda read: len(read.rows))


def _wrong_subscriptions(reads: Sequence[Read]) -> list[Violation]:
    """Subscriptions that told less at a later time, or that are not there with what another one told of that time."""
    reported = sorted((read for read in reads if read.clock is not None), key=lambda read: read.clock or 0)
    return [
        Violation("a subscription tells of a time what was not so", (first, second))
        for first, second in pairwise(reported)
        if not first.rows <= second.rows or (first.clock == second.clock and first.rows != second.rows)
    ]


def _strange_rows(reads: Sequence[Read], writer_of: Mapping[Row, Write]) -> list[Violation]:
    """Rows that nobody wrote, that were not committed, or without the others of their transaction."""
    wrong = []
    for read in reads:
        unwritten = read.rows - writer_of.keys()
        if unwritten:
            wrong.append(Violation(f"nobody wrote {min(unwritten)}", (read,)))
        for write in {writer_of[row] for row in read.rows - unwritten}:
            if write.outcome is Outcome.FAILED:
                wrong.append(Violation("a write that has failed is read", (write, read)))
            if not write.rows <= read.rows:
                wrong.append(Violation("half of a transaction is read", (write, read)))
    return wrong


def _broken_chain(reads: Sequence[Read]) -> list[Violation]:
    """Reads of which each has seen what the other has not."""
    return [
        Violation("two reads are in no order", (first, second))
        for first, second in pairwise(reads)
        if not first.rows <= second.rows
    ]


def _wrong_lists(reads: Sequence[Read], writer_of: Mapping[Row, Write]) -> list[Violation]:
    """Lists that do not begin with what they were before, have something twice, or are not in the order of time."""
    wrong = []
    longest: dict[str, tuple[Row, ...]] = {}
    for read in reads:
        for name, elements in read.lists.items():
            before = longest.get(name, ())
            if elements[: len(before)] != before or len(set(elements)) != len(elements):
                wrong.append(Violation(f"the list {name} is not what it was, and more", (read,)))
            longest[name] = elements
    for elements in longest.values():
        latest: Write | None = None
        for row in elements:
            write = writer_of.get(row)
            if write and latest and write.end < latest.begin:
                wrong.append(Violation("a list is not in the order in which it was written", (write, latest)))
            if write and (latest is None or write.begin > latest.begin):
                latest = write
    return wrong


def _wrong_views(reads: Sequence[Read]) -> list[Violation]:
    """Views that are not what they are a view of."""
    wrong = []
    for read in reads:
        if read.view is not None:
            pairs = (row.partition(":")[2] for row in read.rows if row.startswith("a:"))
            expected = Counter(name.partition("-")[0] for name in pairs if f"b:{name}" in read.rows)
            if dict(expected) != dict(read.view):
                wrong.append(Violation(f"the view is not {dict(expected)}", (read,)))
    return wrong


def _phases(writes: Sequence[Write], reads: Sequence[Read]) -> list[tuple[float, Event]]:
    """Where in the chain what happened is: writes are even, the reads that first see them follow.

    A write that nobody has seen comes behind all reads; whether it happened at all does not matter unless it must have.
    """
    phases: list[tuple[float, Event]] = []
    phase_of: dict[Row, int] = {}
    phase, before = -1, frozenset[Row]()
    for read in reads:
        if phase < 0 or len(read.rows) > len(before):
            phase += 2
            phase_of |= dict.fromkeys(read.rows - before, phase - 1)
            before = read.rows
        phases.append((phase, read))
    for write in writes:
        at = phase_of.get(next(iter(write.rows)), math.inf)
        if at < math.inf or write.outcome is Outcome.OK:
            phases.append((at, write))
    return phases


def _against_time(phases: Sequence[tuple[float, Event]]) -> list[Violation]:
    """Events that come after others in the chain, though they ended before those began."""
    wrong = []
    ended = sorted(phases, key=lambda item: item[1].end)
    latest: tuple[float, Event] | None = None
    position = 0
    for phase, event in sorted(phases, key=lambda item: item[1].begin):
        while ended[position][1].end < event.begin:  # ends: an event does not end before it begins
            if latest is None or ended[position][0] > latest[0]:
                latest = ended[position]
            position += 1
        if latest and latest[0] > phase:
            wrong.append(Violation(_reason(latest[1], event), (latest[1], event)))
    return wrong


def _reason(earlier: Event, later: Event) -> str:
    if isinstance(later, Read):
        return "what was written before is not read" if isinstance(earlier, Write) else "what is read goes back in time"
    return "a write is seen without one before it" if isinstance(earlier, Write) else "a write is read before it began"


def _wrong_counts(writes: Sequence[Write], reads: Sequence[Read]) -> list[Violation]:
    """Queries that wrote how many rows they read, and read fewer or more than there can have been."""
    wrong = []
    checked: set[Row] = set()
    writer_of = {row: write for write in writes for row in write.rows}
    seen = {row for read in reads for row in read.rows}
    of_a = [write for write in writes if any(row.startswith("a:") for row in write.rows)]
    happened = [write for write in of_a if write.outcome is Outcome.OK or write.rows <= seen]
    before = 0
    for read in reads:
        size = sum(row.startswith("a:") for row in read.rows)
        for row in read.counts.keys() - checked:
            write, count = writer_of[row], read.counts[row]
            least = max(before, sum(_size_of_a(other) for other in happened if other.end < write.begin))
            most = min(size, sum(_size_of_a(other) for other in happened if other.begin < write.end))
            if not least <= count <= most:
                wrong.append(Violation(f"a query has read {count} rows, not {least} to {most}", (write, read)))
        checked |= read.counts.keys()
        before = size
    return wrong


def _size_of_a(write: Write) -> int:
    return sum(row.startswith("a:") for row in write.rows)
