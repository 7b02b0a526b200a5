"""History: earlier contents of collections, which compaction rewrites or reduces.

Contents below `since` are unknown. `since` moves only up to the least frontier of the read capabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from derive.storage.capability.table import read_capabilities, release_expired, write_capabilities
from derive.storage.metadata.collection import advance_since, frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.descriptions import Frontiers
from derive.storage.metadata.failures import forget_errors
from derive.storage.metadata.segment import are_there, begin_writer, count_below, forget_writer, replace_segments
from derive.time.source_read import Segment


class History:
    """The history of the collections of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def frontiers(self, name: str) -> Frontiers | None:
        """Return the frontiers and capabilities of a collection; None if nothing is stored under this name."""
        can_write = self._metadata.can_write
        with self._metadata.transaction(synced=False) if can_write else self._metadata.snapshot() as db:
            if can_write:
                release_expired(db)
            return _frontiers(db, name)

    def begin_files(self, name: str, identifier: str) -> None:
        """Record that files of a collection are about to be written, whose names begin with an identifier."""
        with self._metadata.transaction(synced=False) as db:  # verify reports the files after a loss of power
            begin_writer(db, identifier, name)

    def end_files(self, identifier: str) -> None:
        """Delete the record of `begin_files`: each of the files is committed or removed."""
        with self._metadata.transaction(synced=False) as db:
            forget_writer(db, identifier)

    def replace(self, name: str, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Replace segments by others with the same updates.

        Return False if an old one is no longer part of the collection.
        The old files stay until `Garbage.collect_replaced` removes them.
        """
        with self._metadata.transaction() as db:
            if not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
        return True

    def advance_since(self, name: str, since: int, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Move `since` up and replace the history below it, in one commit.

        Args:
            name: the collection.
            since: new `since`, at most `upper` and the least frontier of the read capabilities.
            old: all segments with timestamps below `since`.
            new: their replacements, exact at `since` and at every later time.

        Returns:
            False if the collection was reset, or a new reader holds an earlier frontier.
        """
        with self._metadata.transaction() as db:
            release_expired(db)
            known = _frontiers(db, name)
            if known is None or since > known.bound or count_below(db, name, since) != len(old):
                return False
            if not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
            advance_since(db, name, since)
            forget_errors(db, name, since)
        return True


def _frontiers(db: apsw.Connection, name: str) -> Frontiers | None:
    frontiers = frontiers_of(db, name)
    return Frontiers(*frontiers, read_capabilities(db, name), write_capabilities(db, name)) if frontiers else None
