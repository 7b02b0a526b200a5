"""Splitting: twice as many shards, each beginning with a copy of the state it is split from.

A shard owns a range of hashes, and its two successors own the halves of it. Both get all of its state; what belongs to
the other's keys is never asked for again. Nothing is read anew, so a split costs a copy of the state databases.
"""

from __future__ import annotations

from contextlib import suppress

from derive.errors import FencedError, TaskError
from derive.failpoint import reach
from derive.shard.attempt import Attempt
from derive.shard.state import copy_state, fold, publish_epoch, remove_shards, shard_folder
from derive.storage.metadata.descriptions import Divided
from derive.storage.roles import Runnable

_MOST_SHARDS = 1024


def split(store: Runnable, name: str) -> int:
    """Double the shards of a task; a run that is under way is fenced by it.

    Until the metadata commit the task has the shards it had, and copies made for a split that never came to that are
    made again.

    Returns:
        How many shards it has now.

    Raises:
        TaskError: it has never run, or has very many shards already.
    """
    before = store.task(name)
    if before is None:
        raise TaskError(f"'{name}' has never run", hint="say with how many shards it starts: flowctl run --shards N")
    if 2 * before.shards > _MOST_SHARDS:
        raise TaskError(f"'{name}' has {before.shards} shards already")
    capability, state = store.acquire_task(name, before.shards, [name])
    count = 2 * state.shards
    with publish_epoch(store.root, name, capability.epoch):
        remove_shards(store.root, name, state.shards)
    tokens = {}
    attempt = Attempt(capability.epoch)
    old = [shard_folder(store.root, name, number, state.shards) for number in state.tokens]
    for (number, token), folder in zip(state.tokens.items(), old, strict=True):
        database = fold(folder, attempt=attempt, committed=token)
        for successor in (2 * number, 2 * number + 1):
            copy_state(database, shard_folder(store.root, name, successor, count), attempt=attempt)
            tokens[successor] = token
            reach("split.copied")
    store.note_task(capability, Divided(count, tokens))
    reach("split.committed")
    with suppress(FencedError), publish_epoch(store.root, name, capability.epoch):  # else a newer run removes them
        remove_shards(store.root, name, count)
    store.release_task(capability)
    return count
