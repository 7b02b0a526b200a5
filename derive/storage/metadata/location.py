"""The choice of the location of a data folder's segments, if the segments are not in the data folder itself.

The location is chosen for a new data folder, and all later commands find it here. The location first gets a mark with
the identifier of the data folder, and then the metadata gets the location. So two data folders never share a location,
and a command that was killed in between can be repeated.
"""

from __future__ import annotations

import os
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from derive.durable import sync
from derive.errors import UsageError
from derive.storage.location import ObjectFolder, claim
from derive.storage.metadata.identity import identity_of
from derive.storage.metadata.opening import open_metadata, this_host
from derive.storage.metadata.place import Place
from derive.storage.metadata.recorded_location import read_location, record_location
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.metadata.transaction import Transaction

_LOCATED = "location"
"""Name of the file that a work folder has when it is complete."""


def is_unused(db: Transaction) -> bool:
    """Return true if no collection and no task was ever recorded, so no segment can exist."""
    tables = ("collection", "task", "writer", "discarded")
    return not any(db.execute(f"SELECT 1 FROM {table} LIMIT 1").get for table in tables)


def choose_location(root: Path, location: ObjectFolder) -> None:
    """Choose the location of a data folder's segments; without effect if it was chosen before.

    Args:
        root: the data folder; created if missing.
        location: location of its segments.

    Raises:
        UsageError: the data folder has its segments elsewhere.
        StorageError: the location has the segments of another data folder, or cannot be written.
    """
    metadata, lock = open_metadata(root, this_host(), durable=True, reading=False)
    try:
        with closing(metadata):
            with metadata.snapshot() as db:
                present, is_new, identifier = read_location(db), is_unused(db), identity_of(db)[0]
            if present == location:
                return
            _require_new(root, present, is_new=is_new)
            claim(location, identifier)
            with metadata.transaction() as db:
                present = read_location(db)
                if present != location:  # another process may have chosen it meanwhile
                    _require_new(root, present, is_new=is_unused(db))
                    record_location(db, location)
    finally:
        if lock:
            lock.release()


def _require_new(root: Path, present: ObjectFolder | None, *, is_new: bool) -> None:
    """Raise an error if a data folder has a location, or has segments.

    Raises:
        UsageError: the data folder has its segments elsewhere.
    """
    if present is not None:
        raise UsageError(
            f"the segments of the data folder {root} are at {present}",
            hint=f"leave out --segments, or name {present}; the location is chosen once, for a new data folder",
        )
    if not is_new:
        raise UsageError(
            f"the segments of the data folder {root} are in the folder itself",
            hint="leave out --segments; to move the segments, restore a backup with --segments into a new data folder",
        )


# Data folders without a shared folder


def work_folder(location: ObjectFolder, place: Place) -> Path:
    """Return this machine's local folder of a shared data folder: segments at a URL, metadata in PostgreSQL.

    The first call on a machine creates the data folder, or joins it. The folder has only logs, locks, temporary files
    and a cache of states, and the files of materializations that run on this machine.

    Args:
        location: location of the segments.
        place: place of the metadata.

    Raises:
        UsageError: the data folder at the place has its segments elsewhere.
        StorageError: the place or the location cannot be used, or belongs to another data folder.
    """
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    base = Path(os.environ.get("FLOW_WORK") or Path(home) / "flowctl").absolute()
    root = base / sha256(f"{location.url} {place.where}".encode()).hexdigest()[:16]
    if not (root / _LOCATED).exists():
        settle_place(root, place, creates=True)
        choose_location(root, location)
        (root / _LOCATED).write_text(f"{location.url}\n")
        sync(root)
    return root


def states_of(root: Path) -> Path | None:
    """Return the folder for a cache of states in a work folder; None for another data folder, which needs none."""
    return root / "states" if (root / _LOCATED).exists() else None
