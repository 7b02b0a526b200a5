"""What tells data folders apart, wherever they are mounted."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from derive.durable import sync

FILE = "folder-id"


def folder_id(root: Path) -> str:
    """The identifier of a data folder, which is made when somebody first asks; a copy of the folder has it too.

    Returns:
        The identifier; empty if there is none, and the folder cannot be written to.
    """
    path = root / FILE
    with suppress(FileNotFoundError):
        return path.read_text()
    identifier = str(uuid4())
    draft = root / f"{FILE}.{identifier}"
    try:
        draft.write_text(identifier)
        sync(draft)
        with suppress(FileExistsError):  # somebody else was first
            os.link(draft, path)
        draft.unlink()
        sync(root)
    except OSError:
        return ""
    return path.read_text()
