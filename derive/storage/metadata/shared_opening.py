"""Opens a data folder whose metadata is in PostgreSQL.

Any number of machines use such a folder at once: the database orders their commits. The folder and the database have
the same identifier. The folder gets it first, and so each of several processes that create the tables at once finds it.
If the segments are objects, each machine may have a folder of its own: an empty folder joins.
"""

from __future__ import annotations

from pathlib import Path

from derive.durable import make_folders
from derive.errors import StorageError, UnwritableError, UsageError
from derive.storage.blobs import translated
from derive.storage.folder_id import FILE as FOLDER_ID
from derive.storage.folder_id import folder_id, known_folder_id
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.identity import COMMITS, DATABASE, PRIVATE, identity_of, read_commits, traces
from derive.storage.metadata.joining import join
from derive.storage.metadata.materializations import adopt_every_file, remove_adopted
from derive.storage.metadata.place import Place, read_place, write_place
from derive.storage.metadata.recorded_location import read_location

_PATIENCE = 60_000


def settle_place(root: Path, place: Place, *, creates: bool) -> None:
    """Record the place that a user has named for the metadata of a data folder.

    A folder without data gets the place, also instead of a mistaken one. A folder with data gets it if the metadata
    there is that of the folder, such as after the server has got another name.

    Args:
        root: the data folder.
        place: the named place.
        creates: whether to create a missing folder.

    Raises:
        UsageError: the metadata of the folder is at another place.
        StorageError: the place cannot be used.
    """
    stored = read_place(root)
    if stored is not None and stored.where == place.where:
        return
    if stored is None and (traces(root) or (root / DATABASE).exists()):
        raise UsageError(
            f"the metadata of {root} is in {root / DATABASE}, and not in {place.shown}",
            hint="run the command without --metadata, or name a new data folder",
        )
    if stored is None or (creates and not traces(root)):  # nothing was stored at a mistaken place
        if creates:
            with translated(root):
                make_folders(root.absolute(), PRIVATE)
                write_place(root, place)
        return
    from derive.storage.metadata.postgres import PostgresMetadata

    metadata = PostgresMetadata(root, place)
    try:
        with metadata.snapshot() as db:
            identifier, _ = identity_of(db)
    finally:
        metadata.close()
    if identifier != known_folder_id(root):
        raise UsageError(
            f"the metadata of {root} is in {stored.shown}, and not in {place.shown}",
            hint="run the command without --metadata",
        )
    with translated(root):
        write_place(root, place)


def open_shared(root: Path, place: Place, *, durable: bool, reading: bool, accept_older: bool) -> Metadata:
    """Open the metadata of a data folder at a place; the arguments are those of `open_metadata`.

    Raises:
        StorageError: the place cannot be used, has other metadata, or metadata that is older than the folder.
    """
    from derive.storage.metadata.postgres import PostgresMetadata, create, require_latest

    counted = read_commits(root)
    is_upgraded = not reading and create(place, _PATIENCE, lambda: _new_identifier(root, place))
    metadata = PostgresMetadata(root, place, durable=durable)
    try:
        if not reading and not metadata.can_write:
            raise UnwritableError(
                f"the metadata database {place.shown} can only be read, and this command writes",
                hint="use the primary server, and a user who may write the tables",
            )
        with metadata.snapshot() as db:
            (identifier, commits), location = identity_of(db), read_location(db)
        if not reading and location is not None and counted is None and set(traces(root)) <= {COMMITS}:
            join(root, identifier, location)
        _require_own(root, place, identifier)
        if not accept_older:
            require_latest(root, place, counted, commits)
        if is_upgraded:
            with metadata.transaction() as db:
                adopted = adopt_every_file(db, root)
            remove_adopted(root, adopted)
    except BaseException:
        metadata.close()
        raise
    return metadata


def _new_identifier(root: Path, place: Place) -> str:
    """Return the identifier of a data folder whose place has no tables; the folder must have no data.

    Raises:
        StorageError: the folder has data, or cannot be written.
    """
    stored = [name for name in traces(root) if name != FOLDER_ID]
    if stored:
        raise StorageError(
            f"{place.shown} has no metadata of a data folder, and {root} has {', '.join(stored)}: with a new database,"
            " the data in these files would be lost, so nothing was done",
            hint=f"restore the database from a backup; to start from nothing, remove the folder {root}",
        )
    identifier = folder_id(root)
    if not identifier:
        raise StorageError(f"cannot write {root / FOLDER_ID}", hint="let this user write the data folder")
    return identifier


def _require_own(root: Path, place: Place, identifier: str) -> None:
    known = known_folder_id(root)
    if identifier != known:
        raise StorageError(
            f"{place.shown} is the metadata of another data folder: its identifier is {identifier}, but the identifier"
            f" of {root}, in {FOLDER_ID}, is {known or 'missing'}",
            hint="name another schema for a new data folder, such as ?schema=shop; the folders of several machines need"
            " segments in an object store"
            if not known
            else "correct the address in metadata.json",
        )
