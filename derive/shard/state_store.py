"""State stores: where the states of shards are kept between transactions.

- `HardLinks`: the database of a shard stays in the data folder, which all workers share. An attempt has a hard link to
  the database, and writes a log beside it.
- `Travelling`: the state is a chain of objects, and each machine has a cache of it. An attempt stores the pages that it
  has changed as an object; the commit appends the object to the chain.

The states of a task can change from one form to the other, shard by shard: a shard whose state has a chain travels. The
next attempt in the other form first copies the state.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import apsw

from derive.errors import OutdatedError
from derive.shard.cached_state import CachedAttempt, Origin, cache_folder, cached_state, open_cached
from derive.shard.plan import Plan
from derive.shard.state import committed_state, fold, open_state, shard_folder
from derive.shard.state_objects import Pack, apply_links, fetched_state
from derive.storage.location import blobs_of
from derive.storage.metadata.chain import Chain, extended, needs_snapshot
from derive.storage.metadata.descriptions import TaskState
from derive.storage.roles import Folder


class StateStore(Protocol):
    """The states of shards, for one attempt at a part of a transaction."""

    @property
    def links(self) -> Mapping[int, Chain]:
        """Return the links that the attempt adds to the chain of each shard; none if the states do not travel."""

    def open(self, shard: int) -> AbstractContextManager[apsw.Connection]:
        """Return the database of a shard in an open transaction, which is prepared when the block ends without error.

        Raises:
            FencedError: a newer run has begun.
            OutdatedError: a newer attempt has begun.
            HeldError: another process holds the state.
            StorageError: the state at the last commit cannot be read, or the new state cannot be stored.
        """

    def close(self) -> None:
        """Store the prepared states durably, before the attempt reports them.

        Raises:
            StorageError: the states cannot be stored.
        """


def state_store(plan: Plan, attempt: int) -> StateStore:
    """Return the states of shards for an attempt at a part of a transaction.

    Args:
        plan: the transaction.
        attempt: number of the attempt.
    """
    return HardLinks(plan, attempt) if plan.cache is None else Travelling(plan, plan.cache, attempt)


class HardLinks:
    """States in the data folder; as for `state_store`.

    Attributes:
        links: no links.
    """

    def __init__(self, plan: Plan, attempt: int) -> None:
        self._plan = plan
        self._attempt = plan.attempt(attempt)
        self.links: Mapping[int, Chain] = {}

    def open(self, shard: int) -> AbstractContextManager[apsw.Connection]:
        """Return the database of a shard."""
        plan, chain = self._plan, self._plan.chains.get(shard)
        fetch = partial(apply_links, blobs_of(plan.location), chain) if chain else None
        folder = shard_folder(plan.root, plan.folder, shard, plan.shards)
        return open_state(folder, attempt=self._attempt, committed=plan.tokens.get(shard), fetch=fetch)

    def close(self) -> None:
        """Do nothing: the states are stored."""


class Travelling:
    """States as objects, with a cache on the machine of the worker.

    Args:
        plan: the transaction.
        cache: folder of the caches of the data folder.
        attempt: number of the attempt.

    Attributes:
        links: links of the prepared states.
    """

    def __init__(self, plan: Plan, cache: Path, attempt: int) -> None:
        self._plan, self._cache = plan, cache
        self._attempt = plan.attempt(attempt)
        self._pack = Pack(blobs_of(plan.location), plan.folder, plan.epoch, str(self._attempt))
        self.links: dict[int, Chain] = {}

    @contextmanager
    def open(self, shard: int) -> Iterator[apsw.Connection]:
        """Yield the database of a shard."""
        plan = self._plan
        origin = Origin(
            plan.tokens.get(shard), plan.chains.get(shard, ()), blobs_of(plan.location), partial(self._copy, shard)
        )
        folder = cache_folder(self._cache, plan.folder, shard, plan.shards)
        with open_cached(folder, attempt=self._attempt, origin=origin) as opened:
            yield opened.db
        self.links[shard] = self._links(opened, origin)
        opened.record(extended(origin.chain, self.links[shard]))

    def _links(self, opened: CachedAttempt, origin: Origin) -> Chain:
        """Add the changes of an attempt to the pack, and a snapshot if the chain needs one.

        Raises:
            OutdatedError: a newer attempt has begun, and has removed the files of this attempt.
        """
        snapshot: Chain = ()
        if needs_snapshot(origin.chain) or (origin.committed is not None and not origin.chain):
            with suppress(FileNotFoundError):
                snapshot = self._pack.add_snapshot(opened.before)
        added = self._pack.add_log(opened.log)
        if not added or not opened.before.exists():
            raise OutdatedError(f"a newer attempt has opened the state in {opened.folder.parent}")
        return snapshot + added

    def _copy(self, shard: int, new: Path) -> None:
        """Copy the database of a shard whose state has not travelled yet."""
        plan = self._plan
        folder = shard_folder(plan.root, plan.folder, shard, plan.shards)
        shutil.copyfile(fold(folder, attempt=self._attempt, committed=plan.tokens[shard]), new)

    def close(self) -> None:
        """Store the pack."""
        self._pack.store()


@contextmanager
def read_state(
    store: Folder, task: TaskState, shard: int, *, epoch: int | None = None, cache: Path | None = None
) -> Iterator[apsw.Connection | None]:
    """Yield a shard's database at its last commit, for reading; None if the shard has no database.

    Args:
        store: the data folder.
        task: the task.
        shard: number of a shard that has committed a transaction.
        epoch: epoch of the run that reads; None for other readers.
        cache: folder of the caches of the data folder; None to fetch a state that travels into a temporary folder.

    Raises:
        HeldError: another process holds the state.
        StorageError: the state cannot be read.
    """
    chain, committed, blobs = task.chains.get(shard), task.tokens[shard], blobs_of(store.location)
    if not chain:
        with committed_state(shard_folder(store.root, task.folder, shard, task.shards), committed, epoch) as database:
            yield database
    elif cache is None:
        with fetched_state(blobs, chain) as fetched:
            yield fetched
    else:
        folder = cache_folder(cache, task.folder, shard, task.shards)
        with cached_state(folder, Origin(committed, chain, blobs), epoch) as cached:
            yield cached
