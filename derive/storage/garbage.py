"""Files of collections that are not, or no longer, part of them: what may go, and when.

A file that no committed row names is garbage once nobody can be writing it, and one that compaction replaced is garbage
once nobody can be reading it. Both are decided by capabilities, so that a crash leaves nothing behind for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import apsw
import orjson

from derive.storage.metadata.database import Metadata
from derive.storage.metadata.lease import drop_ended
from derive.storage.metadata.process import is_dead
from derive.storage.segments.partition import collection_folder, former_folder
from derive.storage.segments.writer import COMPACTED, INGESTED
from derive.storage.timeline import wall_clock
from derive.time.segment import Segment


class Files:
    """The files of one data folder.

    Args:
        root: the data folder.
        metadata: says which files are part of a collection.
    """

    def __init__(self, root: Path, metadata: Metadata) -> None:
        self._root = root
        self._metadata = metadata

    def known(self, name: str) -> set[str]:
        """Paths, relative to the data folder, of a collection's segments and of those that compaction replaced."""
        with self._metadata.snapshot() as db:
            return _known(db, name)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Paths of the segments of collections whose files are not there; none of them was reset or replaced."""
        query = "SELECT path FROM segment WHERE collection = ?"
        with self._metadata.snapshot() as db:
            paths: list[str] = [path for name in names for (path,) in db.execute(query, (name,))]
        return [path for path in paths if not (self._root / path).exists()]

    def replace(self, name: str, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Replace segments by others that hold the same updates; False if some of the old ones are not there any more.

        The old files stay until `remove_replaced`.
        """
        with self._metadata.transaction() as db:
            if not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
        return True

    def remove_replaced(self, before: int) -> int:
        """Remove files that were replaced before this wall-clock time, microseconds, and that nobody may be reading.

        Returns:
            How many.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            reading = _reading(db)
            rows: list[Any] = db.execute("SELECT path, collection, at FROM replaced WHERE at < ?", (before,)).fetchall()
        paths = [path for path, collection, at in rows if at < reading.get(collection, before)]
        self._remove(paths)
        with self._metadata.transaction() as db:
            db.executemany("DELETE FROM replaced WHERE path = ?", [(path,) for path in paths])
        return len(paths)

    def collect(self, name: str) -> int:
        """Remove files of a derived collection that no committed row names; returns how many.

        Only its exclusive writer may call this: files of a transaction under way would be taken for garbage.
        """
        found = [path for path in self._paths(name, "*") if not Path(path).name.startswith(COMPACTED)]
        known = self.known(name)
        return self._remove(path for path in found if path not in known)

    def collect_abandoned(self, name: str) -> int:
        """Remove what ingestions into a collection that never came to their end have left; returns how many files.

        It costs nothing where none has.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            rows: list[Any] = db.execute("SELECT id FROM abandoned WHERE collection = ?", (name,)).fetchall()
        known = self.known(name) if rows else set()  # one that died after its commit has left nothing but its lease
        found = [path for row in rows for path in self._paths(name, f"{INGESTED}{row[0]}-*")]
        removed = self._remove(path for path in found if path not in known)
        if rows:
            with self._metadata.transaction() as db:
                db.executemany("DELETE FROM abandoned WHERE id = ?", rows)
        return removed

    def collect_unknown(self, name: str) -> int:
        """Remove every file of a compaction or an ingestion that no row names and nobody is writing; returns how many.

        Only while no other process compacts. Files are listed before the rows are read: what is committed or begun in
        between is not taken for garbage.
        """
        self.collect_abandoned(name)
        found = [*self._paths(name, f"{COMPACTED}*"), *self._paths(name, f"{INGESTED}*")]
        with self._metadata.snapshot() as db:
            known = _known(db, name)
            rows: list[Any] = db.execute("SELECT id FROM capability WHERE kind = 'write'").fetchall()
        live = tuple(f"{INGESTED}{row[0]}-" for row in rows)
        return self._remove(path for path in found if path not in known and not Path(path).name.startswith(live))

    def _paths(self, name: str, pattern: str) -> list[str]:
        own, former = self._root / collection_folder(name), self._root / former_folder(name)
        # A folder with '=' in its name is a logical partition: names hold none, so it is no other collection's.
        found = [
            each.glob(f"{below}{pattern}.parquet") for each, below in ((own, "**/"), (former, ""), (former, "*=*/**/"))
        ]
        return [str(file.relative_to(self._root)) for file in chain(*found)]

    def _remove(self, paths: Iterable[str]) -> int:
        removed = 0
        for path in paths:
            (self._root / path).unlink(missing_ok=True)
            removed += 1
        return removed


def are_there(db: apsw.Connection, name: str, segments: Sequence[Segment]) -> bool:
    """Whether all these segments are still part of a collection."""
    rows: list[Any] = db.execute("SELECT path FROM segment WHERE collection = ?", (name,)).fetchall()
    return {row[0] for row in rows}.issuperset(each.path for each in segments)


def replace_segments(db: apsw.Connection, name: str, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Put segments in the place of others, whose files wait to be removed."""
    now = wall_clock()
    db.executemany("DELETE FROM segment WHERE path = ?", [(each.path,) for each in old])
    db.executemany("INSERT INTO replaced VALUES (?, ?, ?)", [(each.path, name, now) for each in old])
    insert_segments(db, name, new)


def insert_segments(db: apsw.Connection, name: str, segments: Sequence[Segment]) -> None:
    """Make segments part of a collection."""
    db.executemany(
        "INSERT INTO segment (collection, path, partition, clock_min, clock_max, documents, bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (name, s.path, orjson.dumps(s.partition).decode(), s.clock_min, s.clock_max, s.documents, s.bytes)
            for s in segments
        ],
    )


def _known(db: apsw.Connection, name: str) -> set[str]:
    rows: list[Any] = db.execute(
        "SELECT path FROM segment WHERE collection = ?1 UNION SELECT path FROM replaced WHERE collection = ?1", (name,)
    ).fetchall()
    return {row[0] for row in rows}


def _reading(db: apsw.Connection) -> dict[str, int]:
    """For each collection that is being read, since when: files replaced later may be needed."""
    rows: list[Any] = db.execute(
        "SELECT collection, at, holder FROM capability WHERE kind = 'read' AND at IS NOT NULL ORDER BY at DESC"
    ).fetchall()
    return {collection: at for collection, at, holder in rows if not is_dead(holder)}
