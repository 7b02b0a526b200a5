"""Restarts: the last reset of a materialization has a name, which its endpoint is held against.

An endpoint knows nothing of resets, and has the last word on how far it is. So a reset leaves a name in the task's
folder, and a shard whose endpoint has seen another one begins again: it deletes what it has stored, key by key, and
then stores everything anew. Keys that its sources do not have any more stay.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from derive.shard.state import task_folder
from derive.storage.durable import make_folders, sync

_NAME = "restart"


def begin_again(root: Path, task: str) -> None:
    """Have a materialization begin again with its next run, durably."""
    folder = task_folder(root, task)
    make_folders(folder)
    temporary = folder / f"{_NAME}.new"
    temporary.write_text(str(uuid.uuid4()))
    sync(temporary)
    temporary.replace(folder / _NAME)
    sync(folder)


def last_restart(root: Path, task: str) -> str:
    """The name of the last reset of a materialization; empty if there was none."""
    try:
        return (task_folder(root, task) / _NAME).read_text()
    except FileNotFoundError:
        return ""
