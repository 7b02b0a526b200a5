"""Segments in the metadata database: the present and the former files of collections."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import Any, NamedTuple

import orjson

from derive.storage.capability.table import last_read
from derive.storage.metadata.transaction import Rows, Transaction, insert_rows
from derive.storage.segments.partition import COMPACTED, INGESTED
from derive.time import END_OF_TIME
from derive.time.extent import Enough
from derive.time.positions import Segment
from derive.time.segment_columns import SegmentColumns

_COLUMNS = "path, partition, clock_min, clock_max, documents, bytes, checksum"


def _segment(name: str, row: Sequence[Any]) -> Segment:
    """Return the segment of a row with `_COLUMNS`."""
    return Segment(name, row[0], _partition(row[1]), *row[2:])


@lru_cache(maxsize=4096)
def _partition(label: str) -> tuple[Any, ...]:
    """Return the values of a logical partition, which are scalars."""
    return tuple(orjson.loads(label))


def read_segments(db: Transaction, name: str, begin: int, end: int = END_OF_TIME) -> list[Segment]:
    """Return the segments of a collection with timestamps in `[begin, end)`, ordered by least timestamp."""
    rows: list[Any] = db.execute(
        f"SELECT {_COLUMNS} FROM segment"
        " WHERE collection = ? AND clock_max >= ? AND clock_min < ? ORDER BY clock_min, id",
        (name, begin, end),
    ).fetchall()
    return [_segment(name, row) for row in rows]


_FEW = 256
"""Number of segments that are sorted at once; of more segments, only the first ones are read."""

_PATHS = 500
"""Number of paths in one statement."""

_HANDFUL = 32
"""Number of segments that most looks find at most."""

_FIRST_BLOCK, _BLOCK = 16, 512
"""Numbers of segments that are read at once: at first, because a few large segments may be enough, and later."""


def read_until(
    db: Transaction,
    name: str,
    begin: int,
    until: Enough,
    selects: Callable[[tuple[Any, ...]], bool] | None,
    check: Callable[[], None],
) -> Sequence[Segment]:
    """Return the first segments with timestamps at or above `begin`, ordered like `read_segments`.

    Args:
        db: a transaction.
        name: the collection.
        begin: first timestamp.
        until: decides when the segments are enough; later segments are not read.
        selects: returns whether the segments of a logical partition are read, by its values; None to read all.
        check: called if there are segments, before `selects`.
    """
    taken: list[SegmentColumns] = []
    with closing(iterate_segments(db, name, begin)) as blocks:
        for number, block in enumerate(blocks):
            if not number:
                check()
            if not isinstance(block, SegmentColumns):  # the only block
                selected = [segment for segment in block if selects is None or selects(segment.partition)]
                return list(takewhile(lambda segment: not until(segment), selected))
            columns = block if selects is None else block.selected(selects)
            if len(columns) and until.takes(columns):
                break
            taken.append(columns)
    return SegmentColumns.joined(taken) if taken else ()


def iterate_segments(
    db: Transaction, name: str, begin: int, few: int = _FEW
) -> Generator[Sequence[Segment] | SegmentColumns]:
    """Yield the segments with timestamps at or above `begin`, ordered like `read_segments`, in a transaction.

    Few segments are one list; more segments are blocks of columns.

    The cost of a segment does not depend on the number of all segments. A segment that begins before `begin` is found
    by its span: of the segments whose span has a number of hexadecimal digits, only those that begin shortly before
    `begin` can reach it.

    Args:
        db: a transaction.
        name: the collection.
        begin: first timestamp.
        few: number of segments that are sorted at once, and not searched by their spans.
    """
    rows = _few_rows(db, name, begin, few)
    if rows is not None:
        if rows:
            yield [Segment(name, row[2], _partition(row[3]), row[0], *row[4:]) for row in sorted(rows)]
        return
    by_span = [
        db.stream(
            f"{_PLACED} AND {db.dialect.span_digits} = ? AND clock_min > ? AND clock_max >= ? ORDER BY clock_min, id",
            (name, digits, max(begin - 16**digits, -1), begin),
        )
        for digits in _span_lengths(db, name)
    ]
    for block in _merged(by_span):
        begins, _, paths, labels, *numbers, checksums = zip(*block, strict=True)
        columns = ([name] * len(block), paths, map(_partition, labels), begins, *numbers, checksums)
        yield SegmentColumns.of_columns(columns, len(block))


_PLACED = (
    "SELECT clock_min, id, path, partition, clock_max, documents, bytes, checksum FROM segment WHERE collection = ?"
)


def _few_rows(db: Transaction, name: str, begin: int, few: int) -> list[Any] | None:
    """Return the rows of the segments with timestamps at or above `begin`; None if they are more than `few`."""
    query = f"{_PLACED} AND clock_max >= ? LIMIT ?"
    handful = min(few, _HANDFUL)
    rows: list[Any] = db.execute(query, (name, begin, handful + 1)).fetchall()
    if len(rows) <= handful:
        return rows
    more = "SELECT 1 FROM segment WHERE collection = ? AND clock_max >= ? LIMIT 1 OFFSET ?"
    if db.execute(more, (name, begin, few)).get is not None:
        return None
    every: list[Any] = db.execute(query, (name, begin, few)).fetchall()
    return every


def _span_lengths(db: Transaction, name: str) -> list[int]:
    """Return the numbers of hexadecimal digits that the spans of a collection's segments have.

    The index is searched once for each number, and not read.
    """
    digits = db.dialect.span_digits
    least = f"SELECT min({digits}) AS digits FROM segment WHERE collection = ?"
    following = f"SELECT ({least} AND {digits} > length.digits) FROM length WHERE length.digits IS NOT NULL"
    query = f"WITH RECURSIVE length (digits) AS ({least} UNION ALL {following}) SELECT digits FROM length"
    return [number for (number,) in db.execute(query, (name, name)) if number is not None]


def _merged(streams: Sequence[Rows]) -> Generator[list[tuple[Any, ...]]]:
    """Yield the rows of ordered streams in one order, in blocks."""
    size = _FIRST_BLOCK
    waiting = [(rows, stream) for stream in streams if (rows := list(islice(stream, size)))]
    while waiting:
        end = min(rows[-1] for rows, _ in waiting)
        counts = [bisect_right(rows, end) for rows, _ in waiting]
        yield sorted(chain.from_iterable(rows[:count] for (rows, _), count in zip(waiting, counts, strict=True)))
        left = [(rows[count:], stream) for (rows, stream), count in zip(waiting, counts, strict=True)]
        size = min(2 * size, _BLOCK)
        refilled = [(rows or list(islice(stream, size)), stream) for rows, stream in left]
        waiting = [(rows, stream) for rows, stream in refilled if rows]


class WindowPlace(NamedTuple):
    """The place of a segment in the order of partition and time.

    Attributes:
        partition: JSON array of the logical partition's values.
        clock: least timestamp.
        id: number of the segment.
    """

    partition: str = ""
    clock: int = -1
    id: int = -1


@dataclass(frozen=True, slots=True)
class Window:
    """Some of a collection's segments that may be merged.

    Attributes:
        segments: small segments, ordered by logical partition and time; of the large segments between two small
            segments, the first.
        end: place of the last segment; None if no more small segments follow.
    """

    segments: tuple[Segment, ...]
    end: WindowPlace | None


def read_window(db: Transaction, name: str, fewest: int, after: WindowPlace, most: int) -> Window:
    """Return the next small segments of a collection, at most `most`; logical partitions with few are left out.

    Args:
        db: a transaction.
        name: the collection.
        fewest: smallest number of small segments of a logical partition.
        after: end of the previous window.
        most: greatest number of small segments.
    """
    partitions = db.execute(
        f"SELECT partition FROM segment WHERE collection = ? AND {db.dialect.is_small} = 1 AND partition >= ?"
        " GROUP BY partition HAVING count(*) >= ?",
        (name, after.partition, fewest),
    )
    segments: list[Segment] = []
    count = 0
    for (partition,) in partitions:
        place = after if partition == after.partition else WindowPlace(partition)
        large: Any = ()  # place of the first large segment after the last small one; None without one
        for row in db.execute(_after(db, is_small=1), (name, *place)):
            if count == most:
                return Window(tuple(segments), place)
            here = WindowPlace(partition, *row[:2])
            if large is not None and (not large or WindowPlace(partition, *large[:2]) < place):
                large = db.execute(_after(db, is_small=0), (name, *place)).fetchone()
            if large and place < WindowPlace(partition, *large[:2]) < here:
                segments.append(_segment(name, large[2:]))
            segments.append(_segment(name, row[2:]))
            place, count = here, count + 1
    return Window(tuple(segments), None)


def _after(db: Transaction, *, is_small: int) -> str:
    """Return the query of the segments of a logical partition after a place, small or large."""
    return (
        f"SELECT clock_min, id, {_COLUMNS} FROM segment WHERE collection = ? AND {db.dialect.is_small} = {is_small}"
        " AND partition = ? AND (clock_min, id) > (?, ?) ORDER BY clock_min, id"
    )


def insert_segments(db: Transaction, name: str, segments: Sequence[Segment]) -> None:
    """Add segments to a collection."""
    rows = [(name, s.path, _label(s), s.clock_min, s.clock_max, s.documents, s.bytes, s.checksum) for s in segments]
    columns = "collection, path, partition, clock_min, clock_max, documents, bytes, checksum"
    insert_rows(db, f"segment ({columns})", rows)


def _label(segment: Segment) -> str:
    return orjson.dumps(segment.partition).decode()


def replace_segments(db: Transaction, name: str, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Replace segments by others; the old files wait for removal.

    The time of the replacement is not before the acquisition of a present read capability on the collection, even if
    the wall clock was set back, because the holder of the capability may read the old files.
    """
    now = max(db.now(), last_read(db, name))
    db.executemany("DELETE FROM segment WHERE path = ?", [(segment.path,) for segment in old])
    db.executemany("INSERT INTO replaced VALUES (?, ?, ?)", [(segment.path, name, now) for segment in old])
    insert_segments(db, name, new)


def has_segments(db: Transaction, name: str) -> bool:
    """Return true if a collection has segments."""
    return db.execute("SELECT 1 FROM segment WHERE collection = ? LIMIT 1", (name,)).get is not None


def are_there(db: Transaction, name: str, segments: Iterable[Segment]) -> bool:
    """Return true if all these segments are still part of a collection."""
    paths = [segment.path for segment in segments]
    for begin in range(0, len(paths), _PATHS):
        some = paths[begin : begin + _PATHS]
        query = f"SELECT collection FROM segment WHERE path IN ({', '.join('?' * len(some))})"
        if [collection for (collection,) in db.execute(query, some)] != [name] * len(some):
            return False
    return True


def count_below(db: Transaction, name: str, clock: int) -> int:
    """Return the number of segments of a collection with timestamps below `clock`."""
    count: int = db.execute("SELECT count(*) FROM segment WHERE collection = ? AND clock_min < ?", (name, clock)).get
    return count


def count_documents_from(
    db: Transaction, name: str, begin: int, end: int, selects: Callable[[tuple[Any, ...]], bool] | None = None
) -> int:
    """Return the number of documents in the segments of a collection with timestamps in `[begin, end)`.

    Args:
        db: a transaction.
        name: the collection.
        begin: first timestamp; at the start of the collection, the number is read without its segments.
        end: exclusive upper bound of the timestamps.
        selects: returns whether a logical partition counts, by its values; None to count all.
    """
    within = "FROM segment WHERE collection = ? AND clock_max >= ? AND clock_min < ?"
    total = f"SELECT {{}}CAST(sum(documents) AS BIGINT) {within}"
    if selects is not None:
        rows = db.execute(f"{total.format('partition, ')} GROUP BY partition", (name, begin, end))
        return sum(count for partition, count in rows if selects(tuple(orjson.loads(partition))))
    query, values = total.format(""), [name, begin, end]
    first = db.execute("SELECT min(clock_max) FROM segment WHERE collection = ?", (name,)).get
    if end == END_OF_TIME and first is not None and first >= begin:
        query, values = "SELECT documents FROM size WHERE collection = ?", [name]
    count: int | None = db.execute(query, values).get
    return count or 0


def span_of(db: Transaction, name: str) -> tuple[int, int]:
    """Return the least and the greatest of the greatest timestamps of a collection's segments."""
    query = "SELECT {}(clock_max) FROM segment WHERE collection = ?"
    first: int = db.execute(query.format("min"), (name,)).get
    last: int = db.execute(query.format("max"), (name,)).get
    return first, last


# Files that are no longer part of a collection


def known_paths(db: Transaction, name: str, folder: str) -> set[str]:
    """Return the paths of a collection's segments and replaced segments.

    Args:
        db: a transaction.
        name: name of the collection.
        folder: beginning of paths that are included, too, because a renamed table or a replaced version keeps its files
            in its former folder.
    """
    below = (folder, f"{folder}{chr(0x10FFFF)}")
    rows: list[Any] = db.execute(
        "SELECT path FROM replaced WHERE collection = ? OR path BETWEEN ? AND ?"
        " UNION SELECT path FROM segment WHERE collection = ? OR path BETWEEN ? AND ?",
        (name, *below, name, *below),
    ).fetchall()
    return {row[0] for row in rows}


def replaced_before(db: Transaction, at: int) -> list[tuple[str, str, int]]:
    """Return the path, collection and time of each segment that was replaced before a wall-clock time."""
    rows: list[Any] = db.execute("SELECT path, collection, at FROM replaced WHERE at < ?", (at,)).fetchall()
    return rows


def forget_replaced(db: Transaction, paths: Sequence[str]) -> None:
    """Delete the records of replaced segments, whose files are removed."""
    db.executemany("DELETE FROM replaced WHERE path = ?", [(path,) for path in paths])


def abandoned_by(db: Transaction, name: str | None = None) -> dict[str, str]:
    """Return the collections of incomplete ingestions, into one or into all collections, by identifier."""
    rows: list[Any] = db.execute(
        "SELECT id, collection FROM abandoned WHERE collection = coalesce(?, collection)", (name,)
    ).fetchall()
    return dict(rows)


def forget_abandoned(db: Transaction, identifiers: Sequence[str]) -> None:
    """Delete the records of incomplete ingestions, whose files are removed."""
    db.executemany("DELETE FROM abandoned WHERE id = ?", [(identifier,) for identifier in identifiers])


# Writers of uncommitted files


def begin_writer(db: Transaction, identifier: str, name: str) -> None:
    """Record a writer, in a transaction; the names of its files begin with its identifier.

    Only files of recorded writers can be garbage. The collection may be gone, such as that of a swapped shadow: then no
    commit takes the files, and nothing is recorded.
    """
    db.execute(
        "INSERT INTO writer SELECT ?, name, ? FROM collection WHERE name = ? ON CONFLICT (id) DO NOTHING",
        (identifier, db.now(), name),
    )


def writers_of(db: Transaction, name: str | None = None) -> set[str]:
    """Return the identifiers of recorded writers of a collection, or of all collections."""
    rows: list[Any] = db.execute("SELECT id FROM writer WHERE collection = coalesce(?, collection)", (name,)).fetchall()
    return {row[0] for row in rows}


def compactions_of(db: Transaction) -> dict[str, str]:
    """Return the collections of the compactions among the recorded writers, by identifier."""
    rows: list[Any] = db.execute("SELECT id, collection FROM writer WHERE id LIKE ?", (f"{COMPACTED}%",)).fetchall()
    return dict(rows)


def forget_writer(db: Transaction, identifier: str) -> None:
    """Delete the record of a writer that has left no garbage."""
    db.execute("DELETE FROM writer WHERE id = ?", (identifier,))


def forget_writers(db: Transaction, name: str, before: int) -> None:
    """Delete the records of writers that began before a wall-clock time and hold no capability."""
    db.execute(
        "DELETE FROM writer WHERE collection = ? AND at < ? AND id NOT IN (SELECT id FROM capability)", (name, before)
    )


def discard_segments(db: Transaction, name: str) -> None:
    """Remove all segments from a collection, in a write transaction; their files wait for removal."""
    db.execute(
        "INSERT INTO discarded SELECT path, collection FROM segment WHERE collection = ?"
        " UNION SELECT path, collection FROM replaced WHERE collection = ? ON CONFLICT (path) DO NOTHING",
        (name, name),
    )
    db.execute("DELETE FROM segment WHERE collection = ?", (name,))
    db.execute("DELETE FROM replaced WHERE collection = ?", (name,))


def discarded_of(db: Transaction, name: str) -> list[str]:
    """Return the paths of the segments that were discarded from a collection."""
    rows: list[Any] = db.execute("SELECT path FROM discarded WHERE collection = ?", (name,)).fetchall()
    return [row[0] for row in rows]


def forget_discarded(db: Transaction, paths: Sequence[str]) -> None:
    """Delete the records of discarded segments, whose files are removed."""
    db.executemany("DELETE FROM discarded WHERE path = ?", [(path,) for path in paths])


def paths_of(db: Transaction, name: str) -> list[str]:
    """Return the paths of a collection's segments."""
    rows: list[Any] = db.execute("SELECT path FROM segment WHERE collection = ?", (name,)).fetchall()
    return [row[0] for row in rows]


def count_segments(db: Transaction, name: str) -> int:
    """Return the number of a collection's segments."""
    count: int | None = db.execute("SELECT segments FROM size WHERE collection = ?", (name,)).get
    return count or 0


def is_partitioned(db: Transaction, name: str) -> bool:
    """Return true if a collection has logical partitions."""
    return db.execute("SELECT partitions FROM collection WHERE name = ?", (name,)).get not in {None, "[]"}


def all_paths(db: Transaction) -> set[str]:
    """Return the paths of all files that are, or were, part of collections."""
    rows: list[Any] = db.execute(
        "SELECT path FROM segment UNION SELECT path FROM replaced UNION SELECT path FROM discarded"
    ).fetchall()
    return {row[0] for row in rows}


def all_writers(db: Transaction) -> set[str]:
    """Return the file name prefixes of all recorded writers."""
    rows: list[Any] = db.execute(
        f"SELECT id FROM writer UNION SELECT '{INGESTED}' || id FROM capability WHERE kind = 'write'"
        f" UNION SELECT '{INGESTED}' || id FROM abandoned"
    ).fetchall()
    return {row[0] for row in rows}


def every_segment(db: Transaction) -> list[Segment]:
    """Return the segments of all collections, ordered by path."""
    rows: list[Any] = db.execute(
        "SELECT collection, path, partition, clock_min, clock_max, documents, bytes, checksum FROM segment"
        " ORDER BY path"
    ).fetchall()
    return [_segment(row[0], row[1:]) for row in rows]


def is_segment(db: Transaction, path: str) -> bool:
    """Return true if a file is part of a collection."""
    return db.execute("SELECT 1 FROM segment WHERE path = ?", (path,)).get is not None
