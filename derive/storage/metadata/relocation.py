"""Moves the metadata of a data folder from its SQLite database into PostgreSQL, and back.

The steps of a move are:

1. Require that no other process uses the metadata, and lock them.
2. Copy all tables to the new place, compare them, and raise all epochs. The new place is not in use yet.
3. Mark the old place: it refuses all later writers.
4. Let the new place be used.
5. Let the data folder name the new place, and remove the database that it no longer uses.

Until step 3, the old place is in force, and a repeated move begins again. From step 3 on, no process can change
anything, and a repeated move completes the steps. After a move, processes of the old place commit nothing, because the
old place refuses them, and because their epochs are lower than those of the new place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from derive.durable import sync
from derive.errors import BusyError, StorageError, UsageError
from derive.failpoint import reach
from derive.storage.blobs import translated
from derive.storage.folder_id import known_folder_id
from derive.storage.metadata.identity import DATABASE, identity_of, read_commits, require_restored
from derive.storage.metadata.opening import Host, check_host, open_metadata
from derive.storage.metadata.place import FILE, Place, read_place, write_place
from derive.storage.metadata.postgres import other_version, require_latest
from derive.storage.metadata.postgres_copy import (
    PostgresTables,
    Schema,
    activate,
    deactivate,
    fill,
    find_schema,
    require_place,
    used_alone,
)
from derive.storage.metadata.postgres_pipeline import Connection
from derive.storage.metadata.postgres_tables import NOT_IN_USE, PROTOCOL
from derive.storage.metadata.process import show_process
from derive.storage.metadata.sqlite import SqliteConnection, SqliteMetadata
from derive.storage.metadata.sqlite_copy import SqliteTables, mark_moved, moved_to, remove_database, write_copy
from derive.storage.metadata.table_copy import CopiedTable, Progress, raise_epochs

_DRAFT = f"{DATABASE}.copy"


def move_to_postgres(
    root: Path, place: Place, host: Host, progress: Progress = lambda done, total: None
) -> list[CopiedTable]:
    """Move the metadata of a data folder from its SQLite database to a place in PostgreSQL.

    Args:
        root: the data folder.
        place: the place, without metadata of another data folder.
        host: this machine.
        progress: called with the number of copied rows, and of all rows.

    Returns:
        The copied tables; empty if an interrupted move was completed.

    Raises:
        UsageError: the metadata are not in the folder, or the place has other metadata.
        BusyError: other processes use the metadata.
        StorageError: the folder or the place cannot be used.
    """
    require_restored(root)
    database, stored = root / DATABASE, read_place(root)
    if stored is not None:
        if stored.shown != place.shown or not database.exists():
            raise UsageError(f"the metadata of {root} are in {stored.shown}", hint=_BACK_FIRST)
        _remove_former(root)  # the last step was interrupted
        return []
    if not database.exists():
        raise UsageError(f"{root} has no metadata", hint="name the data folder: --data FOLDER")
    check_host(root, host)
    copied: list[CopiedTable] = []
    with used_alone(place) as connection, translated(root):
        present = find_schema(connection, place)
        former = moved_to(database)
        if former is None:
            copied = _fill_and_mark(root, place, host, connection, progress)
        elif former != place.shown:
            raise UsageError(f"the metadata of {root} are on their way to {former}", hint=f"complete it: --to {former}")
        elif present is None or (present.identifier, present.protocol) != (known_folder_id(root), PROTOCOL):
            # Nothing has used the place, which the folder does not name yet; another release may have filled it.
            copied = _fill_again(database, place, connection, progress)
        activate(connection)
        reach("move.activated")
        write_place(root, place)
        reach("move.switched")
        _remove_former(root)
    return copied


_BACK_FIRST = "to move them to another database, copy them into the folder first: flowctl metadata copy --to-folder"


def _fill_and_mark(
    root: Path, place: Place, host: Host, connection: Connection, progress: Progress
) -> list[CopiedTable]:
    """Copy the metadata while no process writes them, and mark the database as moved."""
    with _opened_alone(root, host) as metadata:
        with metadata.transaction(synced=False) as db:
            assert isinstance(db, SqliteConnection)
            identity = identity_of(db)
            require_place(find_schema(connection, place), place, identity[0])
            copied = fill(connection, place, SqliteTables(db), identity, progress)
            reach("move.copied")
            mark_moved(db, place.shown)
        metadata.settle()
        reach("move.marked")
    return copied


@contextmanager
def _opened_alone(root: Path, host: Host) -> Iterator[SqliteMetadata]:
    """Open the metadata in a data folder that no other process uses.

    Raises:
        BusyError: other processes use the folder.
    """
    metadata, lock = open_metadata(root, host, durable=True, reading=False)
    assert isinstance(metadata, SqliteMetadata)
    assert lock is not None
    try:
        others = [show_process(process) for process in lock.others()]
        if others:
            raise BusyError(
                f"the metadata of {root} are in use: {', '.join(others)}",
                hint="stop these processes, and run the command again",
            )
        yield metadata
    finally:
        metadata.close()
        lock.release()


def _fill_again(database: Path, place: Place, connection: Connection, progress: Progress) -> list[CopiedTable]:
    """Copy the metadata of a database that no process uses; an earlier copy is replaced, also if it is in force."""
    with closing(SqliteConnection(str(database), apsw.SQLITE_OPEN_READWRITE)) as db:
        db.execute("BEGIN")
        identity = identity_of(db)
        require_place(find_schema(connection, place), place, identity[0], replaces=True)
        return fill(connection, place, SqliteTables(db), identity, progress)


def fill_place(root: Path, database: Path, place: Place) -> None:
    """Move restored metadata to a place; metadata of an interrupted restore of the same data folder are replaced.

    Args:
        root: the data folder, which no process uses.
        database: the SQLite database with its metadata.
        place: the place.

    Raises:
        UsageError: the place has the metadata of another data folder.
        BusyError: other processes use the place.
        StorageError: the place cannot be used.
    """
    with used_alone(place) as connection:
        _fill_again(database, place, connection, lambda done, total: None)
        activate(connection)
    write_place(root, place)
    remove_database(database)


def _remove_former(root: Path) -> None:
    remove_database(root / DATABASE)
    (root / "host.lock").unlink(missing_ok=True)
    sync(root)


def move_to_folder(root: Path, progress: Progress = lambda done, total: None) -> list[CopiedTable]:
    """Move the metadata of a data folder from PostgreSQL into a SQLite database in the folder.

    The tables in PostgreSQL stay, and every process refuses them.

    Args:
        root: the data folder.
        progress: called with the number of copied rows, and of all rows.

    Returns:
        The copied tables.

    Raises:
        UsageError: the metadata are in the folder.
        BusyError: other processes use the metadata.
        StorageError: the folder or the place cannot be used, or the database lacks commits of the folder.
    """
    require_restored(root)
    place = read_place(root)
    if place is None:
        raise UsageError(f"the metadata of {root} are in the folder", hint="copy them to a database: --to URL")
    with used_alone(place) as connection, translated(root):
        _require_own(root, place, find_schema(connection, place))
        with connection.transaction():
            row = connection.execute("UPDATE folder SET changes = changes + 1 RETURNING id, commits").fetchone()
            assert row is not None
            copied = write_copy(root / _DRAFT, PostgresTables(connection), row, progress)
            with closing(SqliteConnection(str(root / _DRAFT))) as db:
                raise_epochs(db)
            sync(root / _DRAFT)
            reach("move.copied")
            deactivate(connection)
        reach("move.marked")
        remove_database(root / DATABASE)
        (root / _DRAFT).replace(root / DATABASE)
        sync(root)
        reach("move.activated")
        (root / FILE).unlink()
        sync(root)
        reach("move.switched")
    return copied


def _require_own(root: Path, place: Place, schema: Schema | None) -> None:
    """Raise an error unless a place has the latest metadata of a data folder.

    Raises:
        StorageError: the place has other metadata, or lacks commits.
    """
    if schema is None or schema.identifier != known_folder_id(root):
        raise StorageError(f"{place.shown} does not have the metadata of {root}", hint="correct metadata.json")
    if schema.protocol not in (PROTOCOL, NOT_IN_USE):
        raise other_version(place, schema.protocol)
    require_latest(root, place, read_commits(root), schema.commits)
