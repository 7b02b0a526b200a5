"""What tells data folders apart, wherever they are mounted."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import orjson

from derive.durable import sync

FILE = "folder-id"

RESTORED = "restored.json"
"""File of a data folder that was restored: of which folders it has the history, and since when it goes its own way."""


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    """Which data folder this is.

    Attributes:
        id: its identifier; empty if it has none.
        former: identifiers of the folders whose history it has up to where they were backed up, the newest first.
    """

    id: str = ""
    former: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The identifier of the folder in which the history began; empty if this one has none."""
        return self.former[-1] if self.former else self.id


def identity_of(root: Path) -> FolderIdentity:
    """Return which data folder this is."""
    try:
        former = orjson.loads((root / RESTORED).read_bytes())["folders"]
    except (FileNotFoundError, NotADirectoryError):
        former = []
    return FolderIdentity(known_folder_id(root), tuple(former))


def known_folder_id(root: Path) -> str:
    """The identifier of a data folder; empty if it has none, or it cannot be read."""
    try:
        return (root / FILE).read_text().strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""


def folder_id(root: Path) -> str:
    """The identifier of a data folder, which has one once something was stored; a copy of the folder has it too.

    Returns:
        The identifier; empty if there is none, and the folder cannot be written to.
    """
    return known_folder_id(root) or write_folder_id(root, str(uuid4()))


def write_folder_id(root: Path, identifier: str) -> str:
    """Write the identifier of a data folder, durably, unless it has one.

    Returns:
        The identifier that it has; empty if there is none, and the folder cannot be written to.
    """
    path = root / FILE
    draft = root / f"{FILE}.{uuid4()}"
    try:
        draft.write_text(identifier)
        sync(draft)
        with suppress(FileExistsError):  # another process was first
            os.link(draft, path)
        draft.unlink()
        sync(root)
    except OSError:
        return ""
    return path.read_text()
