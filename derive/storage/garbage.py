"""Files of collections that are not, or no longer, part of them: what may go, and when.

A file that no committed row names is garbage once nobody can be writing it, and one that compaction replaced is garbage
once nobody can be reading it. Both are decided by capabilities, so that a crash leaves nothing behind for good.

Garbage is only what the metadata has named once: as a segment, or by the identifier of who was to write it. All other
files stay: they may be newer than the metadata, and `flowctl verify` tells of them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from uuid import UUID

from derive.storage.blobs import Blobs
from derive.storage.metadata.capability import drop_ended
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.read_rights import reading_since
from derive.storage.metadata.segment import (
    abandoned_by,
    all_paths,
    all_writers,
    discarded_of,
    forget_abandoned,
    forget_discarded,
    forget_replaced,
    forget_writer,
    forget_writers,
    known_paths,
    replaced_before,
    writers_of,
)
from derive.storage.metadata.tables import forget_unread
from derive.storage.segments.partition import COMPACTED, FOLDER, INGESTED, collection_folder
from derive.storage.timeline import wall_clock

_IDENTIFIER = len(str(UUID(int=0)))

_REMEMBERED = 86_400_000_000
"""How long it is remembered at least who wrote, microseconds: a worker that was given up may still be at it."""

GRACE = 600_000_000
"""How long replaced files are kept, microseconds."""


class Garbage:
    """What is garbage among the files of one data folder.

    Args:
        blobs: the files of the data folder.
        metadata: says which files are part of a collection.
    """

    def __init__(self, blobs: Blobs, metadata: Metadata) -> None:
        self._blobs = blobs
        self._metadata = metadata

    def known(self, name: str) -> set[str]:
        """Paths, relative to the data folder, of a collection's segments and of those that compaction replaced."""
        with self._metadata.snapshot() as db:
            return known_paths(db, name, collection_folder(name))

    def collect_replaced(self, before: int) -> int:
        """Remove files that were replaced before this wall-clock time, microseconds, and that nobody may be reading.

        Returns:
            How many.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            forget_unread(db)
            reading = reading_since(db)
            replaced = replaced_before(db, before)
        paths = [path for path, collection, at in replaced if at < reading.get(collection, before)]
        self._blobs.delete(paths)
        with self._metadata.transaction() as db:
            forget_replaced(db, paths)
        return len(paths)

    def collect_uncommitted(self, name: str) -> int:
        """Remove files of a derived collection that a run of its task has written and no committed row names.

        Those of a collection that was reset are removed as well; and a file of which the metadata does not know who has
        written it never is. Only its exclusive writer may call this: files of a transaction under way would be taken
        for garbage.

        Returns:
            How many.
        """
        with self._metadata.snapshot() as db:
            writers, discarded = writers_of(db, name), discarded_of(db, name)
        paths = [path for path in self._paths(name, "*") if Path(path).name[:_IDENTIFIER] in writers]
        known = self.known(name)
        removed = self._blobs.delete(path for path in {*paths, *discarded} if path not in known)
        with self._metadata.transaction(synced=False) as db:
            forget_discarded(db, discarded)
            forget_writers(db, name, wall_clock() - _REMEMBERED)
        return removed

    def collect_abandoned(self, name: str) -> int:
        """Remove what ingestions into a collection that never came to their end have left; returns how many files.

        It costs nothing where none has.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            abandoned = abandoned_by(db, name)
        return self._collect(abandoned, [])

    def collect_unfinished(self) -> int:
        """Remove every file of a compaction or an ingestion that began and was never committed; returns how many.

        Only while no other process compacts. It costs nothing where all came to their end.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            abandoned = abandoned_by(db)
            unfinished = [identifier for identifier in writers_of(db) if identifier.startswith(COMPACTED)]
        return self._collect(abandoned, unfinished)

    def _collect(self, abandoned: Sequence[str], unfinished: Sequence[str]) -> int:
        """Remove what ingestions and compactions have left, by their identifiers, and forget these.

        A table may have had another name, and so another folder, when its files were written. One that died after its
        commit has left nothing but its identifier.
        """
        if not abandoned and not unfinished:
            return 0
        begun = [*(f"{INGESTED}{identifier}" for identifier in abandoned), *unfinished]
        paths = [path for start in begun for path in self._blobs.list(FOLDER, f"**/{start}*.parquet")]
        folders = {str(Path(path).parent) for path in paths}
        with self._metadata.snapshot() as db:
            known = {path for folder in folders for path in known_paths(db, "", folder)}
        removed = self._blobs.delete(path for path in paths if path not in known)
        with self._metadata.transaction() as db:
            forget_abandoned(db, abandoned)
            for identifier in unfinished:
                forget_writer(db, identifier)
        return removed

    def unknown(self) -> list[str]:
        """Paths of the files below `collections` that are part of nothing, and that nobody who is known has written."""
        paths = self._blobs.list(FOLDER, "**/*")
        with self._metadata.snapshot() as db:
            known, begun = all_paths(db), all_writers(db)
        return sorted(path for path in paths if path not in known and not _begun_by(Path(path).name, begun))

    def _paths(self, name: str, pattern: str) -> list[str]:
        return self._blobs.list(collection_folder(name), f"**/{pattern}.parquet")


def _begun_by(name: str, begun: Set[str]) -> bool:
    """Whether the name of a file begins with the identifier of somebody who writes, after what he is."""
    starts = (name[: len(what) + _IDENTIFIER] for what in ("", INGESTED, COMPACTED) if name.startswith(what))
    return any(start in begun for start in starts)
