"""Where tasks' files lie in a data folder, and how those come there that older versions have left elsewhere.

Up to format 4 the state of `acme/orders/daily` lay inside the state of `acme/orders`, and starting the one over removed
the other. Segments stay where they are, because the metadata names each of them; state and logs are moved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from derive.durable import make_folders, sync
from derive.storage.segments.partition import collection_folder, former_folder

_SHARD = re.compile("[0-9a-f]{8}-[0-9a-f]{8}")


def own_path(kind: str, task: str) -> str:
    """Where a task alone keeps its files of one kind, such as `state`, relative to the data folder."""
    return f"{kind}/{collection_folder(task).partition('/')[2]}"


def move_former(root: Path, tasks: Sequence[str]) -> None:
    """Move the state and the logs of tasks from where they were up to format 4.

    It may be repeated after a crash, and is durable when it returns.

    Args:
        root: the data folder.
        tasks: names of all tasks that have run.
    """
    # Inner folders first: what is left of them then belongs to the task whose folder they are in.
    for task in sorted(tasks, key=lambda name: -name.count("/")):
        former = former_folder(task).partition("/")[2]
        state = root / "state" / former
        if state.is_dir():
            entries = [entry for entry in state.iterdir() if entry.name == "epoch" or _SHARD.fullmatch(entry.name)]
            _move(entries, root / own_path("state", task))
            with suppress(OSError):  # something else is in it
                state.rmdir()
        log = root / own_path("logs", task)
        for suffix in (".jsonl", ".jsonl.1"):
            file = root / f"logs/{former}{suffix}"
            if file.is_file():
                file.replace(f"{log}{suffix}")


def _move(entries: Sequence[Path], folder: Path) -> None:
    if entries:
        make_folders(folder)
        for entry in entries:
            entry.rename(folder / entry.name)
        sync(folder)
        sync(entries[0].parent)
