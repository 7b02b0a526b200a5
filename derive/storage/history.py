"""History: earlier contents of collections, which compaction rewrites or reduces; and the removal of files.

Contents below `since` are unknown. `since` moves only up to the least frontier of the read capabilities.

An uncommitted file is garbage when no process can write it any longer. A replaced file is garbage when no process can
read it any longer. Capabilities show both, so in the end every file of a crashed process is removed.

Only a file that the metadata has recorded, as a segment or by the identifier of its writer, can be garbage. All other
files stay, because they may be newer than the metadata; `flowctl verify` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from uuid import UUID

from derive.protocol.specs import CollectionSpec
from derive.storage.blobs import Blobs
from derive.storage.capability.table import (
    TaskCapability,
    find_ended,
    read_capabilities,
    reading_since,
    release_expired,
    require_compaction,
    require_epochs,
    write_capabilities,
)
from derive.storage.metadata.collection import advance_since, forget_errors, frontiers_of, read_documents
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.descriptions import Frontiers
from derive.storage.metadata.segment import (
    Window,
    WindowPlace,
    abandoned_by,
    all_paths,
    all_writers,
    are_there,
    begin_writer,
    compactions_of,
    count_below,
    count_segments,
    discarded_of,
    forget_abandoned,
    forget_discarded,
    forget_replaced,
    forget_writer,
    forget_writers,
    is_partitioned,
    known_paths,
    paths_of,
    read_window,
    replace_segments,
    replaced_before,
    writers_of,
)
from derive.storage.metadata.tables import check_partitions, forget_unread
from derive.storage.metadata.transaction import Transaction
from derive.storage.metadata.versions import Version, drop_versions, readable_names, versions_of
from derive.storage.segments.partition import COMPACTED, FOLDER, INGESTED, collection_folder
from derive.time.positions import Segment


class History:
    """The history of the collections of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def documents(self) -> dict[str, int]:
        """Return the number of documents in the segments of each collection and table that has any."""
        with self._metadata.snapshot() as db:
            return read_documents(db)

    def frontiers(self, name: str) -> Frontiers | None:
        """Return the frontiers and capabilities of a collection; None if nothing is stored under this name."""
        with self._metadata.snapshot() as db:
            return _frontiers(db, name)

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a collection, in order; none if no shadow has replaced it."""
        with self._metadata.snapshot() as db:
            return versions_of(db, name)

    def window(self, spec: CollectionSpec, fewest: int, after: WindowPlace, most: int) -> Window:
        """Return the next small segments of a collection; see `read_window`.

        Raises:
            StorageError: the collection was stored with other partition fields.
        """
        with self._metadata.snapshot() as db:
            window = read_window(db, spec.name, fewest, after, most)
            if window.segments:
                check_partitions(db, spec.name, [projection.field for projection in spec.partitions])
        return window

    def begin_files(self, name: str, identifier: str, capability: TaskCapability) -> None:
        """Record a compaction before it writes files of a collection, whose names begin with its identifier.

        Raises:
            FencedError: the right to compact has expired.
        """
        # no sync: after a loss of power, `flowctl verify` reports the files
        with self._metadata.transaction(synced=False) as db:
            require_compaction(db, capability)
            begin_writer(db, identifier, name)

    def end_files(self, identifier: str) -> None:
        """Delete the record of `begin_files`, after each of the files was committed or removed."""
        with self._metadata.transaction(synced=False) as db:
            forget_writer(db, identifier)

    def replace(self, name: str, old: Sequence[Segment], new: Sequence[Segment], capability: TaskCapability) -> bool:
        """Replace segments by others with the same updates.

        Return False if an old segment is no longer part of the collection.
        The old files stay until `Garbage.collect_replaced` removes them.

        Raises:
            FencedError: the right to compact has expired.
        """
        with self._metadata.transaction() as db:
            require_compaction(db, capability)
            if not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
        return True

    def advance_since(
        self, name: str, since: int, old: Sequence[Segment], new: Sequence[Segment], capability: TaskCapability
    ) -> bool:
        """Move `since` up and replace the history below it, in one commit.

        Versions whose contents end at or before the new `since` are removed.

        Args:
            name: the collection.
            since: new `since`, at most `upper` and the least frontier of the read capabilities.
            old: all segments with timestamps below `since`.
            new: their replacements, exact at `since` and at every later time.
            capability: the right to compact.

        Returns:
            False if the collection was reset, or a new reader holds an earlier frontier.

        Raises:
            FencedError: the right to compact has expired.
        """
        with self._metadata.transaction() as db:
            release_expired(db)
            require_compaction(db, capability)
            known = _frontiers(db, name)
            if known is None or since > known.bound or count_below(db, name, since) != len(old):
                return False
            if not are_there(db, name, old):
                return False
            replace_segments(db, name, old, new)
            advance_since(db, name, since)
            drop_versions(db, name, since)
            forget_errors(db, name, since)
        return True


def _frontiers(db: Transaction, name: str) -> Frontiers | None:
    frontiers = frontiers_of(db, name)
    if frontiers is None:
        return None
    ended = find_ended(db)
    readers = [reader for stored in readable_names(db, name) for reader in read_capabilities(db, stored)]
    readers = sorted((reader for reader in readers if reader.id not in ended), key=lambda reader: reader.frontier)
    writers = (writer for writer in write_capabilities(db, name) if writer.id not in ended)
    return Frontiers(*frontiers, tuple(readers), tuple(writers))


_IDENTIFIER = len(str(UUID(int=0)))

_PAGE = 1000
"""Number of objects in a page of a listing."""

_REMEMBERED = 86_400_000_000
"""Shortest time for which identifiers of writers are kept, microseconds; an abandoned worker may still write."""

GRACE = 600_000_000
"""Shortest time for which replaced files are kept, microseconds."""


class Garbage:
    """Garbage among the files of one data folder.

    Args:
        blobs: files of the data folder.
        metadata: metadata database, which records the files of each collection.
    """

    def __init__(self, blobs: Blobs, metadata: Metadata) -> None:
        self._blobs = blobs
        self._metadata = metadata

    def known(self, name: str) -> set[str]:
        """Return the paths of the segments and the replaced files of a collection, relative to the data folder."""
        with self._metadata.snapshot() as db:
            return known_paths(db, name, collection_folder(name))

    def collect_replaced(self, before: int) -> int:
        """Remove files that were replaced before a wall-clock time (microseconds), and that have no reader.

        Returns:
            The number of removed files.
        """
        with self._metadata.transaction() as db:
            release_expired(db)
            forget_unread(db)
            reading = reading_since(db)
            replaced = replaced_before(db, before)
        paths = [path for path, collection, at in replaced if at < reading.get(collection, before)]
        self._blobs.delete(paths)
        with self._metadata.transaction() as db:
            forget_replaced(db, paths)
        return len(paths)

    def collect_uncommitted(
        self,
        name: str,
        epoch: tuple[str, int] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> int:
        """Remove uncommitted files that runs of a task have written into its collection, also before a reset.

        Shadows that were swapped or dropped, and the quarantine, have folders beside that of the collection. Files
        without a known writer stay. Only the exclusive writer of the collection may call this, because files of a
        transaction in progress count as garbage. The writers are read under the epoch, so files of later runs stay.

        Args:
            name: the collection.
            epoch: the task that writes the collection, and the epoch of the caller; None if no task writes it.
            progress: called with the number of removed files, and of all files to remove.

        Returns:
            The number of removed files.

        Raises:
            FencedError: the task has another epoch.
        """
        with self._metadata.snapshot() as db:
            require_epochs(db, dict([epoch] if epoch else []))
            writers, discarded = writers_of(db, name), discarded_of(db, name)
            size, is_flat = count_segments(db, name), not is_partitioned(db, name)
        parent, _, folder = collection_folder(name).rpartition("/")
        starts = [identifier for identifier in writers if len(identifier) == _IDENTIFIER]
        if self._blobs.is_local or not is_flat or len(starts) > size // _PAGE + 1:
            written = self._blobs.list(parent, f"{folder}*/**/*.parquet")
        else:  # one request for each writer, and not for each page of files
            written = [path for start in starts for path in self._blobs.list(parent, f"{folder}*/{start}*.parquet")]
        paths = [path for path in written if Path(path).name[:_IDENTIFIER] in writers]
        known = self.known(name)
        garbage = [path for path in {*paths, *discarded} if path not in known]
        progress(0, len(garbage))
        for begin in range(0, len(garbage), _PAGE):
            self._blobs.delete(garbage[begin : begin + _PAGE])
            progress(min(begin + _PAGE, len(garbage)), len(garbage))
        with self._metadata.transaction(synced=False) as db:
            forget_discarded(db, discarded)
            forget_writers(db, name, db.now() - _REMEMBERED)
        return len(garbage)

    def collect_abandoned(self, name: str) -> int:
        """Remove files of incomplete ingestions into a collection, and return their number.

        The call is fast if every ingestion has completed.
        """
        with self._metadata.transaction() as db:
            release_expired(db)
            abandoned = abandoned_by(db, name)
        return self._collect(abandoned, {})

    def collect_unfinished(self, capability: TaskCapability) -> int:
        """Remove all files of incomplete compactions and ingestions, and return their number.

        The compactions are read under the right to compact, so none of them can commit any more. The call is fast if
        every compaction and ingestion has completed.

        Raises:
            FencedError: the right to compact has expired.
        """
        with self._metadata.transaction() as db:
            release_expired(db)
            require_compaction(db, capability)
            abandoned = abandoned_by(db)
            unfinished = compactions_of(db)
        return self._collect(abandoned, unfinished)

    def remove_fenced(self, name: str, identifier: str) -> None:
        """Remove the uncommitted files of a compaction that has lost its right to compact.

        A commit whose outcome the compaction does not know may have succeeded before.
        """
        self._delete_unknown(self._beginning(identifier, name))

    def _collect(self, abandoned: Mapping[str, str], unfinished: Mapping[str, str]) -> int:
        """Remove files of incomplete ingestions and compactions, and delete their identifiers.

        A table may have had another name, and so another folder, when its files were written. A process that was killed
        after its commit has left only its identifier.
        """
        if not abandoned and not unfinished:
            return 0
        begun = {**{f"{INGESTED}{identifier}": name for identifier, name in abandoned.items()}, **unfinished}
        paths = [path for start, name in begun.items() for path in self._beginning(start, name)]
        removed = self._delete_unknown(paths)
        with self._metadata.transaction() as db:
            forget_abandoned(db, list(abandoned))
            for identifier in unfinished:
                forget_writer(db, identifier)
        return removed

    def _delete_unknown(self, paths: Sequence[str]) -> int:
        """Remove files that are no segments and no replaced files, and return their number."""
        folders = {str(Path(path).parent) for path in paths}
        with self._metadata.snapshot() as db:
            known = {path for folder in folders for path in known_paths(db, "", folder)}
        return self._blobs.delete(path for path in paths if path not in known)

    def _beginning(self, start: str, name: str) -> list[str]:
        """Return the paths of the files whose names begin with a text, and that were written into a collection.

        In an object store, only the folders of the collection are listed: its own folder, and those of its segments,
        which may be of former names.
        """
        if self._blobs.is_local:
            return self._blobs.list(FOLDER, f"**/{start}*.parquet")
        with self._metadata.snapshot() as db:
            is_flat = not is_partitioned(db, name)
            known = paths_of(db, name) if is_flat else []
        folders = {collection_folder(name), *(path.rpartition("/")[0] for path in known)}
        pattern = f"{start}*.parquet" if is_flat else f"**/{start}*.parquet"
        return [path for folder in sorted(folders) for path in self._blobs.list(folder, pattern)]

    def unknown(self) -> list[str]:
        """Return the paths of files in `collections` that belong to no collection and have no known writer."""
        paths = self._blobs.list(FOLDER, "**/*")
        with self._metadata.snapshot() as db:
            known, begun = all_paths(db), all_writers(db)
        return sorted(path for path in paths if path not in known and not _begun_by(Path(path).name, begun))


def _begun_by(name: str, begun: Set[str]) -> bool:
    """Return true if a file name has the prefix of its kind, followed by the identifier of a known writer."""
    starts = (name[: len(what) + _IDENTIFIER] for what in ("", INGESTED, COMPACTED) if name.startswith(what))
    return any(start in begun for start in starts)
