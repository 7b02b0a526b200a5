"""History: what a collection held at earlier times, which compaction stores in other segments, or reduces.

Below `since` what a collection held is not known any more. `since` moves only as far as nobody needs what is below.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from derive.storage.metadata.capability import drop_ended
from derive.storage.metadata.collection import advance_since, frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.descriptions import Frontiers
from derive.storage.metadata.failures import forget_errors
from derive.storage.metadata.read_rights import read_holds, write_holds
from derive.storage.metadata.segment import are_there, begin_writer, count_below, forget_writer, replace_segments
from derive.time.segment import Segment


class History:
    """The history of the collections of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def frontiers(self, name: str) -> Frontiers | None:
        """Between which times a collection is known, and who reads it; None if nothing is stored under this name."""
        can_write = self._metadata.can_write
        with self._metadata.transaction(synced=False) if can_write else self._metadata.snapshot() as db:
            if can_write:
                drop_ended(db)
            return _frontiers(db, name)

    def begin_files(self, name: str, identifier: str) -> None:
        """Remember that files of a collection are about to be written whose names begin with an identifier."""
        with self._metadata.transaction(synced=False) as db:  # after a loss of power the files are told as unknown
            begin_writer(db, identifier, name)

    def end_files(self, identifier: str) -> None:
        """Forget that files were about to be written: each is part of a collection, or was removed."""
        with self._metadata.transaction(synced=False) as db:
            forget_writer(db, identifier)

    def replace(self, name: str, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Replace segments by others that hold the same updates; False if some of the old ones are not there any more.

        The old files stay until `Garbage.collect_replaced` removes them.
        """
        with self._metadata.transaction() as db:
            if not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
        return True

    def advance_since(self, name: str, since: int, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Move `since` up, and replace the history below it; all in one commit.

        Args:
            name: the collection.
            since: clock; neither beyond `upper` nor beyond what anyone needs.
            old: every segment with clocks below `since`.
            new: what takes their place: exact at `since` and every later time.

        Returns:
            False if this is not possible any more: the collection was reset, or someone has begun to read it.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
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
    return Frontiers(*frontiers, read_holds(db, name), write_holds(db, name)) if frontiers else None
