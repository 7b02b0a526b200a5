"""Open streams: each worker process keeps its last streams, and the connectors that serve them.

A stream continues as long as its position equals the shard's position in the data folder. If another process had the
shard meanwhile, its later stream fenced this one, which is closed and opened again.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from derive.errors import FencedError, TaskError
from derive.materialize.binding import CompiledBinding, reading_of
from derive.materialize.connector import Connectors
from derive.materialize.plan import StorePlan
from derive.materialize.shard_file import ShardFile
from derive.materialize.stream import ShardStream, open_stream
from derive.materialize.wire import GrpcWire
from derive.protocol.stubs import flow_pb2 as flow
from derive.protocol.stubs import materialize_pb2 as pb
from derive.shard.state import current_epoch, owned, shard_folder, task_folder
from derive.storage.disk_errors import translated
from derive.storage.folder_id import identity_of
from derive.storage.task_log import TaskLog

_Key: TypeAlias = tuple[Path, str, int, int]
"""Data folder, task, number of the shard, and number of shards."""


@dataclass(slots=True)
class _Warm:
    """An open stream, and its run."""

    stream: ShardStream
    keeper: ShardFile
    epoch: int
    version: str
    refilling: frozenset[str]


_streams: dict[_Key, _Warm] = {}
_opening: dict[_Key, GrpcWire] = {}
"""Streams that connectors have yet to open, so that another thread can end them."""
_CLEARING = (
    "{} starts over, and the connector cannot refill it beside its rows. Rows of the keys that its source has now are"
    " deleted, and missing until they are stored again. Rows of other keys stay, and later documents of these keys are"
    " reduced onto them: if keys can go, empty the resource first"
)
_connectors: Connectors | None = None
_lock = threading.Lock()


def connectors() -> Connectors:
    """Return the connectors of this process, which end with it."""
    global _connectors  # noqa: PLW0603 (a process has them once)
    with _lock:
        if _connectors is None:
            _connectors = Connectors()
            atexit.register(close_all)
        return _connectors


def close_all() -> None:
    """End all streams and connectors of this process."""
    global _connectors
    close_streams()
    with _lock:
        ended, _connectors = _connectors, None
    if ended is not None:
        ended.close()


def close_streams(task: str | None = None) -> None:
    """End the streams of a task, or all streams; running transactions in other threads fail."""
    for key in [key for key in list(_opening) if task in (None, key[1])]:
        wire = _opening.pop(key, None)
        if wire is not None:
            wire.close()
    for key in [key for key in list(_streams) if task in (None, key[1])]:
        warm = _streams.pop(key, None)
        if warm is not None:
            warm.stream.close()


@contextmanager
def shard_stream(plan: StorePlan, number: int, attempt: int) -> Iterator[ShardStream]:
    """Yield the stream of a shard; it stays open if the block succeeds.

    Args:
        plan: the transaction.
        number: number of the shard.
        attempt: number of this attempt at it.

    Raises:
        FencedError: a newer run has started.
        OutdatedError: a newer attempt has begun.
        FlowError: the stream cannot be opened.
    """
    key = (plan.root, plan.spec.name, number, plan.shards)
    with _explained(plan):
        warm = _streams.pop(key, None)
        if warm is None or not _can_resume(warm, plan, number):
            if warm is not None:
                warm.stream.close()
            warm = _open(key, plan, number, attempt)
        else:
            warm.stream.advance(plan.positions)
            warm.keeper.attempt = plan.attempt(attempt)
        _streams[key] = warm  # where another thread can end it
        try:
            yield warm.stream
        finally:
            if warm.stream.is_broken:
                warm.stream.close()
                _streams.pop(key, None)


def _can_resume(warm: _Warm, plan: StorePlan, number: int) -> bool:
    is_same = (warm.epoch, warm.version, warm.refilling) == (plan.epoch, plan.version, plan.refilling)
    return is_same and not warm.stream.is_broken and warm.stream.token == plan.tokens.get(number, "")


def _open(key: _Key, plan: StorePlan, number: int, attempt: int) -> _Warm:
    folder = shard_folder(plan.root, plan.spec.name, number, plan.shards)
    begin, end = (int(text, 16) for text in folder.name.split("-"))
    keeper = ShardFile(folder, plan.attempt(attempt))
    opening = pb.TransactionRequest.Open(
        materialization=flow.MaterializationSpec.FromString(plan.message),
        version=plan.version,
        key_begin=begin,
        key_end=end,
    )
    reading = reading_of(plan.bindings)
    bindings = [CompiledBinding(*pair) for pair in zip(plan.bindings, reading.places, strict=True)]
    with translated(plan.root), owned(folder, plan.attempt(attempt)):
        tell = partial(TaskLog(plan.root, plan.spec.name).write, "warn")
        wire = _opening[key] = GrpcWire(connectors().connect(plan.spec.endpoint), plan.secrets, tell)
        try:
            token = plan.tokens.get(number)
            folder_identity = identity_of(plan.root)
            stream = open_stream(wire, opening, bindings, keeper, plan.positions, token, plan.restart, folder_identity)
            if stream.clearing and stream.is_new:
                tell(_CLEARING.format(", ".join(f"'{key}'" for key in sorted(stream.clearing))))
        except BaseException:
            wire.close()
            raise
        finally:
            _opening.pop(key, None)
    return _Warm(stream, keeper, plan.epoch, plan.version, plan.refilling)


@contextmanager
def _explained(plan: StorePlan) -> Iterator[None]:
    """Distinguish a fence in the data folder from a fence at the endpoint only, which raises a `TaskError`."""
    try:
        yield
    except FencedError as error:
        if current_epoch(task_folder(plan.root, plan.spec.name)) != plan.epoch:
            raise
        raise TaskError(
            f"'{plan.spec.name}' was fenced off at its endpoint: {error.message}",
            position=plan.spec.endpoint.position,
            hint="a run over another data folder materializes into it by the same name; end that one, or rename this",
        ) from error
