"""Segments in the metadata database: the present and the former files of collections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import orjson

from derive.storage.segments.partition import INGESTED
from derive.storage.timeline import wall_clock
from derive.time.positions import Segment


def read_segments(db: apsw.Connection, name: str, begin: int) -> list[Segment]:
    """Return the segments of a collection with timestamps at or above `begin`, ordered by timestamp."""
    rows: list[Any] = db.execute(
        "SELECT path, partition, clock_min, clock_max, documents, bytes, checksum FROM segment"
        " WHERE collection = ? AND clock_max >= ? ORDER BY clock_min, id",
        (name, begin),
    ).fetchall()
    return [Segment(name, row[0], tuple(orjson.loads(row[1])), *row[2:]) for row in rows]


def insert_segments(db: apsw.Connection, name: str, segments: Sequence[Segment]) -> None:
    """Add segments to a collection."""
    db.executemany(
        "INSERT INTO segment (collection, path, partition, clock_min, clock_max, documents, bytes, checksum)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                name,
                s.path,
                orjson.dumps(s.partition).decode(),
                s.clock_min,
                s.clock_max,
                s.documents,
                s.bytes,
                s.checksum,
            )
            for s in segments
        ],
    )


def _label(segment: Segment) -> str:
    return orjson.dumps(segment.partition).decode()


def replace_segments(db: apsw.Connection, name: str, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Replace segments by others; the old files wait for removal.

    The time of the replacement is not before the acquisition of a present read capability on the collection, even if
    the wall clock was set back, because the holder of the capability may read the old files.
    """
    acquired: int = db.execute(
        "SELECT coalesce(max(at), 0) FROM capability WHERE collection = ? AND kind = 'read'", (name,)
    ).get
    now = max(wall_clock(), acquired)
    db.executemany("DELETE FROM segment WHERE path = ?", [(segment.path,) for segment in old])
    db.executemany("INSERT INTO replaced VALUES (?, ?, ?)", [(segment.path, name, now) for segment in old])
    insert_segments(db, name, new)


def segment_paths(db: apsw.Connection, name: str) -> list[str]:
    """Return the paths of a collection's segments."""
    rows: list[Any] = db.execute("SELECT path FROM segment WHERE collection = ?", (name,)).fetchall()
    return [row[0] for row in rows]


def are_there(db: apsw.Connection, name: str, segments: Sequence[Segment]) -> bool:
    """Return true if all these segments are still part of a collection."""
    return set(segment_paths(db, name)).issuperset(segment.path for segment in segments)


def count_below(db: apsw.Connection, name: str, clock: int) -> int:
    """Return the number of segments of a collection with timestamps below `clock`."""
    count: int = db.execute("SELECT count(*) FROM segment WHERE collection = ? AND clock_min < ?", (name, clock)).get
    return count


def last_clock(db: apsw.Connection, name: str) -> int | None:
    """Return the greatest timestamp in a collection; None if it is empty."""
    clock: int | None = db.execute("SELECT max(clock_max) FROM segment WHERE collection = ?", (name,)).get
    return clock


# Files that are no longer part of a collection


def known_paths(db: apsw.Connection, name: str, folder: str) -> set[str]:
    """Return the paths of a collection's segments and replaced segments.

    Args:
        db: a transaction.
        name: name of the collection.
        folder: beginning of paths that are included, too, because a renamed table or a replaced version keeps its files
            in its former folder.
    """
    below = (folder, f"{folder}{chr(0x10FFFF)}")
    rows: list[Any] = db.execute(
        "SELECT path FROM replaced WHERE collection = ?1 OR path BETWEEN ?2 AND ?3"
        " UNION SELECT path FROM segment WHERE collection = ?1 OR path BETWEEN ?2 AND ?3",
        (name, *below),
    ).fetchall()
    return {row[0] for row in rows}


def replaced_before(db: apsw.Connection, at: int) -> list[tuple[str, str, int]]:
    """Return the path, collection and time of each segment that was replaced before a wall-clock time."""
    rows: list[Any] = db.execute("SELECT path, collection, at FROM replaced WHERE at < ?", (at,)).fetchall()
    return rows


def forget_replaced(db: apsw.Connection, paths: Sequence[str]) -> None:
    """Delete the records of replaced segments, whose files are removed."""
    db.executemany("DELETE FROM replaced WHERE path = ?", [(path,) for path in paths])


def abandoned_by(db: apsw.Connection, name: str | None = None) -> list[str]:
    """Return the identifiers of incomplete ingestions into a collection, or into all collections."""
    rows: list[Any] = db.execute(
        "SELECT id FROM abandoned WHERE collection = coalesce(?, collection)", (name,)
    ).fetchall()
    return [row[0] for row in rows]


def forget_abandoned(db: apsw.Connection, identifiers: Sequence[str]) -> None:
    """Delete the records of incomplete ingestions, whose files are removed."""
    db.executemany("DELETE FROM abandoned WHERE id = ?", [(identifier,) for identifier in identifiers])


# Writers of uncommitted files


def begin_writer(db: apsw.Connection, identifier: str, name: str) -> None:
    """Record a writer, in a transaction; the names of its files begin with its identifier.

    Only files of recorded writers can be garbage. The collection may be gone, such as that of a swapped shadow: then no
    commit takes the files, and nothing is recorded.
    """
    db.execute(
        "INSERT OR IGNORE INTO writer SELECT ?, name, ? FROM collection WHERE name = ?",
        (identifier, wall_clock(), name),
    )


def writers_of(db: apsw.Connection, name: str | None = None) -> set[str]:
    """Return the identifiers of recorded writers of a collection, or of all collections."""
    rows: list[Any] = db.execute("SELECT id FROM writer WHERE collection = coalesce(?, collection)", (name,)).fetchall()
    return {row[0] for row in rows}


def forget_writer(db: apsw.Connection, identifier: str) -> None:
    """Delete the record of a writer that has left no garbage."""
    db.execute("DELETE FROM writer WHERE id = ?", (identifier,))


def forget_writers(db: apsw.Connection, name: str, before: int) -> None:
    """Delete the records of writers that began before a wall-clock time and hold no capability."""
    db.execute(
        "DELETE FROM writer WHERE collection = ? AND at < ? AND id NOT IN (SELECT id FROM capability)", (name, before)
    )


def discard_segments(db: apsw.Connection, name: str) -> None:
    """Remove all segments from a collection, in a write transaction; their files wait for removal."""
    db.execute(
        "INSERT OR IGNORE INTO discarded SELECT path, collection FROM segment WHERE collection = ?1"
        " UNION SELECT path, collection FROM replaced WHERE collection = ?1",
        (name,),
    )
    db.execute("DELETE FROM segment WHERE collection = ?", (name,))
    db.execute("DELETE FROM replaced WHERE collection = ?", (name,))


def discarded_of(db: apsw.Connection, name: str) -> list[str]:
    """Return the paths of the segments that were discarded from a collection."""
    rows: list[Any] = db.execute("SELECT path FROM discarded WHERE collection = ?", (name,)).fetchall()
    return [row[0] for row in rows]


def forget_discarded(db: apsw.Connection, paths: Sequence[str]) -> None:
    """Delete the records of discarded segments, whose files are removed."""
    db.executemany("DELETE FROM discarded WHERE path = ?", [(path,) for path in paths])


def all_paths(db: apsw.Connection) -> set[str]:
    """Return the paths of all files that are, or were, part of collections."""
    rows: list[Any] = db.execute(
        "SELECT path FROM segment UNION SELECT path FROM replaced UNION SELECT path FROM discarded"
    ).fetchall()
    return {row[0] for row in rows}


def all_writers(db: apsw.Connection) -> set[str]:
    """Return the file name prefixes of all recorded writers."""
    rows: list[Any] = db.execute(
        f"SELECT id FROM writer UNION SELECT '{INGESTED}' || id FROM capability WHERE kind = 'write'"
        f" UNION SELECT '{INGESTED}' || id FROM abandoned"
    ).fetchall()
    return {row[0] for row in rows}


def every_segment(db: apsw.Connection) -> list[Segment]:
    """Return the segments of all collections, ordered by path."""
    rows: list[Any] = db.execute(
        "SELECT collection, path, partition, clock_min, clock_max, documents, bytes, checksum FROM segment"
        " ORDER BY path"
    ).fetchall()
    return [Segment(row[0], row[1], tuple(orjson.loads(row[2])), *row[3:]) for row in rows]


def is_segment(db: apsw.Connection, path: str) -> bool:
    """Return true if a file is part of a collection."""
    return db.execute("SELECT 1 FROM segment WHERE path = ?", (path,)).get is not None
