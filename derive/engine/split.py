"""Splitting: twice as many shards, each beginning with a copy of the state it is split from.

A shard owns a range of hashes, and its two successors own the halves of it. Both get all of its state; what belongs to
the other's keys is never asked for again. Nothing is read anew, so a split costs a copy of the state databases.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from derive.engine.attempt import Attempt
from derive.engine.state import fold, publish_epoch, remove_shards, shard_folder
from derive.errors import TaskError
from derive.failpoint import reach
from derive.storage.durable import sync
from derive.storage.metadata import translated
from derive.storage.store import Store

_MOST_SHARDS = 1024


def split(store: Store, name: str) -> int:
    """Double the shards of a task; a run that is under way is fenced by it.

    Until the metadata commit the task has the shards it had, and copies made for a split that never came to that are
    made again.

    Returns:
        How many shards it has now.

    Raises:
        TaskError: it has never run, or has very many shards already.
    """
    found = store.task(name)
    if found is None:
        raise TaskError(f"'{name}' has never run", hint="say with how many shards it starts: flowctl run --shards N")
    if 2 * found.shards > _MOST_SHARDS:
        raise TaskError(f"'{name}' has {found.shards} shards already")
    capability = store.acquire_exclusive(name)
    # A run that is under way may have committed until just now, and cannot from here on.
    state = store.task(name) or found
    count = 2 * state.shards
    with publish_epoch(store.root, name, capability.epoch):
        remove_shards(store.root, name, state.shards)
    tokens = {}
    old = [shard_folder(store.root, name, number, state.shards) for number in state.tokens]
    for (number, token), folder in zip(state.tokens.items(), old, strict=True):
        database = fold(folder, attempt=Attempt(capability.epoch), committed=token)
        for successor in (2 * number, 2 * number + 1):
            _copy(database, shard_folder(store.root, name, successor, count))
            tokens[successor] = token
            reach("split.copied")
    store.set_shards(capability, count, tokens)
    reach("split.committed")
    store.drop(capability)
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    return count


def _copy(database: Path, folder: Path) -> None:
    """Copy a folded database, durably."""
    with translated(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        copy = folder / database.name
        shutil.copyfile(database, copy)
        for each in (copy, folder, folder.parent):
            sync(each)
