"""Splitting: doubling the shards of a task; each new shard starts with a copy of its predecessor's state.

A shard owns a range of hashes, and each of its two successors owns one half of the range. Both successors get the whole
state of the shard; a successor never reads the entries of keys in the other half. No documents are read again, so a
split costs a copy of the state databases. The state of a materialization stays in the endpoint.
"""

from __future__ import annotations

from contextlib import suppress

from derive.errors import FencedError, TaskError
from derive.failpoint import reach
from derive.materialize.checkpoint import ShardCheckpoint, ShardData, ShardFile
from derive.materialize.restarts import clocks_of
from derive.shard.plan import Attempt
from derive.shard.state import copy_state, fold, publish_epoch, remove_shards, shard_folder
from derive.storage.metadata.descriptions import Divided, TaskState
from derive.storage.roles import Runnable

SPLIT = "split"
"""The purpose with which a task is acquired for a split."""

_MOST_SHARDS = 1024


def split(store: Runnable, name: str, *, is_materialized: bool = False) -> int:
    """Double the shards of a task; a running transaction is fenced, and a watching run continues with the new shards.

    Until the metadata commit the task has its former shards; a split after a crash makes the copies again.

    Args:
        store: the data folder.
        name: name of the task.
        is_materialized: whether it is a materialization.

    Returns:
        The new number of shards.

    Raises:
        TaskError: the task has never run, or has the maximum number of shards.
    """
    before = store.task(name)
    if before is None:
        raise TaskError(
            f"'{name}' has never run", hint="choose the number of shards at the first run: flowctl run --shards N"
        )
    if 2 * before.shards > _MOST_SHARDS:
        raise TaskError(f"'{name}' has {before.shards} shards, and at most {_MOST_SHARDS} are possible")
    capability, state = store.acquire_task(name, before.shards, () if is_materialized else [name], purpose=SPLIT)
    count = 2 * state.shards
    with publish_epoch(store.root, state.folder, capability.epoch):
        remove_shards(store.root, state.folder, state.shards)
    attempt = Attempt(capability.epoch)
    tokens = _divide_kept(store, state, attempt) if is_materialized else _divide_state(store, state, attempt)
    store.note_task(capability, Divided(count, tokens))
    reach("split.committed")
    with suppress(FencedError), publish_epoch(store.root, state.folder, capability.epoch):
        remove_shards(store.root, state.folder, count)  # otherwise a newer run removes them
    store.release_task(capability)
    return count


def split_up_to(store: Runnable, name: str, shards: int, *, is_materialized: bool = False) -> int:
    """Double the shards of a task until it has `shards`; a second call changes nothing.

    Args:
        store: the data folder.
        name: name of the task.
        shards: desired number of shards.
        is_materialized: whether it is a materialization.

    Returns:
        The new number of shards.

    Raises:
        TaskError: the task has never run, or doubling its shards never gives this number.
    """
    state = store.task(name)
    count = state.shards if state is not None else split(store, name)  # raises an error: the task has never run
    if shards not in [count << times for times in range(_MOST_SHARDS.bit_length())]:
        raise TaskError(
            f"'{name}' has {count} shards, and doubling never results in {shards}",
            hint=f"the number of shards can only be doubled: choose {count}, {2 * count}, {4 * count} and so on",
        )
    while count < shards:
        count = split(store, name, is_materialized=is_materialized)
    return count


def _divide_state(store: Runnable, state: TaskState, attempt: Attempt) -> dict[int, str]:
    """Copy the state of each shard to both of its successors; return the token of each successor."""
    root, name, tokens = store.root, state.folder, {}
    old = [shard_folder(root, name, number, state.shards) for number in state.tokens]
    for (number, token), folder in zip(state.tokens.items(), old, strict=True):
        database = fold(folder, attempt=attempt, committed=token)
        for successor in (2 * number, 2 * number + 1):
            copy_state(database, shard_folder(root, name, successor, 2 * state.shards), attempt=attempt)
            tokens[successor] = token
            reach("split.copied")
    return tokens


def _divide_kept(store: Runnable, state: TaskState, attempt: Attempt) -> dict[int, str]:
    """Copy the kept file of each shard of a materialization to both of its successors.

    Most endpoints start the successors with the checkpoint of the divided range, and fence the former shard. The kept
    file is for the other endpoints.
    """
    root, name, tokens = store.root, state.name, {}
    for number, token in state.tokens.items():
        driver = ShardFile(shard_folder(root, name, number, state.shards), attempt).load().driver
        for successor in (2 * number, 2 * number + 1):
            kept = ShardFile(shard_folder(root, name, successor, 2 * state.shards), attempt)
            kept.save(ShardData(ShardCheckpoint(token, clocks_of(state)).to_bytes(), driver))
            tokens[successor] = token
            reach("split.copied")
    return tokens
