"""Files of collections that are not, or no longer, part of them: what may go, and when.

A file that no committed row names is garbage once nobody can be writing it, and one that compaction replaced is garbage
once nobody can be reading it. Both are decided by capabilities, so that a crash leaves nothing behind for good.
"""

from __future__ import annotations

from pathlib import Path

from derive.storage.blobs import Blobs
from derive.storage.metadata.capability import drop_ended, writers
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.read_rights import reading_since
from derive.storage.metadata.segment import (
    abandoned_by,
    forget_abandoned,
    forget_replaced,
    known_paths,
    replaced_before,
)
from derive.storage.metadata.tables import forget_unread
from derive.storage.segments.partition import COMPACTED, INGESTED, collection_folder, former_folder

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
        """Remove files of a derived collection that no committed row names; returns how many.

        Only its exclusive writer may call this: files of a transaction under way would be taken for garbage.
        """
        paths = [path for path in self._paths(name, "*") if not Path(path).name.startswith(COMPACTED)]
        known = self.known(name)
        return self._blobs.delete(path for path in paths if path not in known)

    def collect_abandoned(self, name: str) -> int:
        """Remove what ingestions into a collection that never came to their end have left; returns how many files.

        It costs nothing where none has.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            abandoned = abandoned_by(db, name)
        if not abandoned:
            return 0
        known = self.known(name)  # one that died after its commit has left nothing but its lease
        paths = [path for identifier in abandoned for path in self._paths(name, f"{INGESTED}{identifier}-*")]
        removed = self._blobs.delete(path for path in paths if path not in known)
        with self._metadata.transaction() as db:
            forget_abandoned(db, abandoned)
        return removed

    def collect_unknown(self, name: str) -> int:
        """Remove every file of a compaction or an ingestion that no row names and nobody is writing; returns how many.

        Only while no other process compacts. Files are listed before the rows are read: what is committed or begun in
        between is not taken for garbage.
        """
        self.collect_abandoned(name)
        paths = [*self._paths(name, f"{COMPACTED}*"), *self._paths(name, f"{INGESTED}*")]
        with self._metadata.snapshot() as db:
            known = known_paths(db, name, collection_folder(name))
            live = tuple(f"{INGESTED}{identifier}-" for identifier in writers(db))
        return self._blobs.delete(path for path in paths if path not in known and not Path(path).name.startswith(live))

    def _paths(self, name: str, pattern: str) -> list[str]:
        own, former = collection_folder(name), former_folder(name)
        # A folder with '=' in its name is a logical partition: names hold none, so it is no other collection's.
        folders = [(own, "**/"), (former, ""), (former, "*=*/**/")]
        return [path for folder, below in folders for path in self._blobs.list(folder, f"{below}{pattern}.parquet")]
