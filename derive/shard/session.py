"""Sessions: a connector's lambdas with access to a shard's state, and the resources of a part of a transaction."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

import apsw

from derive.errors import LostError, OutdatedError
from derive.protocol.derive import DeriveSession, Log
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec
from derive.shard.plan import Plan
from derive.shard.progress import Message, Watched
from derive.shard.state_database import open_scratch
from derive.shard.state_store import StateStore
from derive.storage.blobs import translated
from derive.storage.segments.sorter import Spill
from derive.storage.task_log import TaskLog, internal

Opened: TypeAlias = Callable[[DerivationSpec, apsw.Connection, Log], DeriveSession]
"""A function that opens a session over a shard's state, like `DeriveRuntime.open`."""

Observer: TypeAlias = Callable[[DerivationSpec, apsw.Connection, Log, Opened], DeriveSession]
"""A function that opens a session through another function, and returns a session that wraps it."""

_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let an observer open the sessions of transactions that this thread executes while the block runs."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


@contextmanager
def open_session(plan: Plan, shard: int | None, states: StateStore) -> Iterator[DeriveSession]:
    """Yield a session over the state of a shard; the session of a slice has no state.

    The state is prepared unless the block raises.

    Args:
        plan: the transaction.
        shard: number of the shard; None for a slice.
        states: the states of shards, for this attempt.
    """
    state = nullcontext(open_scratch()) if shard is None else states.open(shard)
    with state as database, translated(plan.root):
        log = TaskLog(plan.root, plan.spec.name).relay
        opened, observer = find_runtime(plan.spec.connector).open, _OBSERVER.get()
        session = observer(plan.spec, database, log, opened) if observer else opened(plan.spec, database, log)
        try:
            with _interruptible(plan.token, database):
                yield session
            session.prepare_commit()
        finally:
            session.close()


_databases: defaultdict[str, list[apsw.Connection]] = defaultdict(list)
"""Databases of running lambdas in this process, by the token of their transaction."""

_turn = threading.Lock()


@contextmanager
def _interruptible(token: str, database: apsw.Connection) -> Iterator[None]:
    with _turn:
        _databases[token].append(database)
    try:
        yield
    finally:
        with _turn:
            _databases[token].remove(database)
            if not _databases[token]:
                del _databases[token]


def interrupt(plan: Watched) -> None:
    """Interrupt the SQL of lambdas of a transaction in this process, in all threads."""
    with _turn:  # databases in the dictionary are still open
        for part in plan.parts:
            for database in _databases.get(part.token, ()):
                database.interrupt()


def open_spill(plan: Plan, share: int = 1) -> Spill:
    """Return the spill files of a task: on a local disk that Spark names, or in the data folder.

    Args:
        plan: the transaction.
        share: number of users that share the memory.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return Spill(Path(folders[0]) if folders[0] else plan.root / "tmp", plan.memory // share)


def failed(plan: Watched, error: Exception) -> Message:
    """Return the message of a failed part of a transaction.

    A lack of memory is reported as the loss of the worker, because the loss would follow soon.

    Raises:
        OutdatedError: a newer attempt has begun, so this attempt must not send a report.
    """
    if isinstance(error, OutdatedError):
        raise error
    if isinstance(error, MemoryError):
        error = LostError(f"a worker of '{plan.spec.name}' ran out of memory")
    return Message(error=internal(plan.root, plan.spec.name, error).to_json())
