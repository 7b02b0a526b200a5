"""The work of a materialization on a worker, with the streams that stay open between transactions.

The wait for a slow commit of an endpoint has no time limit, because the commit would have to be repeated. So a message
says for which connector a task waits. If the machine of a connector is lost, the stream ends with an error.

A stream stays open as long as its position equals the position of the shard in the data folder. If another process had
the shard in the meantime, the stream of that process has fenced this stream, which is closed and opened again.

Each function takes a `StorePlan` and returns its outcome as messages. An error is a message, too.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias
from weakref import WeakSet

import grpc
import numpy as np
import pyarrow as pa

from derive.errors import EndpointGoneError, FencedError, OutdatedError, SessionFencedError, TaskError
from derive.materialize.binding import CompiledBinding, reading_of
from derive.materialize.connector import Connector, Connectors
from derive.materialize.plan import StorePlan, store_rows
from derive.materialize.stream import ShardStream, open_stream
from derive.protocol.stubs import flow_pb2 as flow
from derive.protocol.stubs import materialize_pb2 as pb
from derive.shard.owners import owners_of_keys, pack_message, pack_rows, unpack_rows
from derive.shard.progress import Counter, Message
from derive.shard.session import failed
from derive.shard.state import current_epoch, owned, shard_folder, task_folder
from derive.storage.blobs import translated
from derive.storage.folder_id import identity_of
from derive.storage.metadata.descriptions import ShardData
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows
from derive.storage.task_log import TaskLog

_FIRST_SECONDS, _LOOK_SECONDS = 60.0, 5.0


class Stall:
    """Reports how long an answer has been missing: after a minute, two, four and so on; and the arrival of the answer.

    Args:
        name: name of the connector.
        report: function called with each message.
        seconds: seconds until the first message.
    """

    def __init__(self, name: str, report: Callable[[str], None], seconds: float = _FIRST_SECONDS) -> None:
        self._name = name
        self._report = report
        self._seconds = seconds
        self._begun: float | None = None
        self._due = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the wait for an answer during the block."""
        self._begun, self._due = time.monotonic(), self._seconds
        try:
            yield
            silent = time.monotonic() - self._begun
            if self._due > self._seconds:
                self._report(f"{self._name} has answered after {silent:.0f} s")
        finally:
            self._begun = None

    def look(self) -> None:
        """Report an answer that has been missing for long."""
        begun = self._begun
        if begun is None or time.monotonic() - begun < self._due:
            return
        self._report(f"{self._name} has not answered for {self._due:.0f} s; the task waits for the answer")
        self._due *= 2


class StallMonitor:
    """A thread that checks all waits of a process.

    Args:
        every: seconds between checks.
    """

    def __init__(self, every: float = _LOOK_SECONDS) -> None:
        self._every = every
        self._stalls: WeakSet[Stall] = WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, stall: Stall) -> Stall:
        """Check a wait from now on, until its object is garbage."""
        with self._lock:
            self._stalls.add(stall)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no thread
                self._thread = threading.Thread(target=self._work, name="stall monitor", daemon=True)
                self._thread.start()
        return stall

    def _work(self) -> None:
        while True:
            time.sleep(self._every)
            with self._lock:
                stalls = list(self._stalls)
            for stall in stalls:
                stall.look()
            del stalls


WATCH = StallMonitor()
"""The stall monitor of this process."""


class GrpcWire:
    """A call of `Transactions`.

    Args:
        connector: the called connector.
        secrets: texts to hide in messages of errors.
        report: function called with messages about answers that are missing for long.
    """

    def __init__(self, connector: Connector, secrets: Collection[str], report: Callable[[str], None]) -> None:
        self._connector = connector
        self._secrets = secrets
        self._stall = WATCH.add(Stall(connector.name, report))
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._call: Any = connector.client.transactions(iter(self._requests.get, None))

    def send(self, request: bytes) -> None:
        """Send a request without waiting; `receive` raises its errors."""
        self._requests.put(request)

    def receive(self) -> pb.TransactionResponse:
        """Wait for the next answer without a limit, and return it.

        Raises:
            FlowError: the stream has ended.
        """
        try:
            with self._stall.waiting():
                response: pb.TransactionResponse = next(self._call)
        except grpc.RpcError as failure:
            raise self._connector.error_of(failure, self._secrets) from failure
        except StopIteration:
            raise EndpointGoneError(f"{self._connector.name} closed the stream of transactions") from None
        return response

    def close(self) -> None:
        """End the stream, and cancel running work."""
        self._requests.put(None)
        self._call.cancel()


_Key: TypeAlias = tuple[Path, str, int, int]
"""Data folder, task, number of the shard, and number of shards."""


@dataclass(slots=True)
class _Warm:
    """An open stream, with the epoch and attempt of its run."""

    stream: ShardStream
    epoch: int
    version: str
    refilling: frozenset[str]


_streams: dict[_Key, _Warm] = {}
_opening: dict[_Key, GrpcWire] = {}
"""Streams that connectors have yet to open, so that another thread can end them."""
_guards: dict[str, Callable[[], None]] = {}
"""Checks of the runs in this process, by the token of the transaction."""

_CLEARING = (
    "{} starts over, and the connector cannot refill it beside its rows. Rows of the keys that its source has now are"
    " deleted, and are missing until they are stored again. Rows of other keys stay, and later documents of these keys"
    " are reduced onto the old rows. To remove the old rows, empty the resource first"
)
_connectors: Connectors | None = None
_lock = threading.Lock()


def connectors() -> Connectors:
    """Return the connectors of this process; they end with the process."""
    global _connectors  # noqa: PLW0603 (a process has them once)
    with _lock:
        if _connectors is None:
            _connectors = Connectors()
            atexit.register(close_all)
        return _connectors


def close_all() -> None:
    """End all streams and connectors that this process has started."""
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
        attempt: number of this attempt at the shard.

    Raises:
        FencedError: a newer run has started.
        SessionFencedError: another session was opened at the endpoint, although no newer run has started.
        OutdatedError: a newer attempt has begun.
        TaskError: a run over another data folder has stored rows since the last session was fenced.
        FlowError: the stream cannot be opened.
    """
    key = (plan.root, plan.spec.name, number, plan.shards)
    warm: _Warm | None = None
    try:
        warm = _streams.pop(key, None)
        if warm is None or not _can_resume(warm, plan, number):
            if warm is not None:
                warm.stream.close()
                warm = None
            warm = _open(key, plan, number, attempt)
        else:
            warm.stream.advance(plan.positions)
        _streams[key] = warm  # another thread can find and end the stream there
        try:
            yield warm.stream
        finally:
            if warm.stream.is_broken:
                warm.stream.close()
                _streams.pop(key, None)
    except FencedError as error:
        if current_epoch(task_folder(plan.root, plan.spec.name)) != plan.epoch:
            raise
        _require_run(plan)
        token = None if warm is None else warm.stream.token
        raise SessionFencedError(
            f"a newer session of '{plan.spec.name}' is open at its endpoint: {error.message}", shard=number, token=token
        ) from error


def _can_resume(warm: _Warm, plan: StorePlan, number: int) -> bool:
    is_same = (warm.epoch, warm.version, warm.refilling) == (plan.epoch, plan.version, plan.refilling)
    return is_same and not warm.stream.is_broken and warm.stream.token == plan.tokens.get(number, "")


def _open(key: _Key, plan: StorePlan, number: int, attempt: int) -> _Warm:
    folder = shard_folder(plan.root, plan.spec.name, number, plan.shards)
    begin, end = (int(text, 16) for text in folder.name.split("-"))
    opening = pb.TransactionRequest.Open(
        materialization=flow.MaterializationSpec.FromString(plan.message),
        version=plan.version,
        key_begin=begin,
        key_end=end,
    )
    reading = reading_of(plan.bindings)
    bindings = [CompiledBinding(*pair) for pair in zip(plan.bindings, reading.places, strict=True)]
    with translated(plan.root), owned(folder, plan.attempt(attempt)):
        _require_run(plan)  # so that a run that was fenced long ago does not disturb the present one
        log = partial(TaskLog(plan.root, plan.spec.name).write, "warn")
        wire = _opening[key] = GrpcWire(connectors().connect(plan.spec.endpoint), plan.secrets, log)
        try:
            token = plan.tokens.get(number)
            folder_identity = identity_of(plan.root)
            kept = plan.kept.get(number, ShardData())
            stream = open_stream(wire, opening, bindings, kept, plan.positions, token, plan.restart, folder_identity)
            _require_run(plan)
            _require_no_foreign_rows(plan, number, stream.token)
            if stream.clearing and stream.is_new:
                log(_CLEARING.format(", ".join(f"'{key}'" for key in sorted(stream.clearing))))
        except BaseException:
            wire.close()
            raise
        finally:
            _opening.pop(key, None)
    return _Warm(stream, plan.epoch, plan.version, plan.refilling)


@contextmanager
def guarded(token: str, check: Callable[[], None]) -> Iterator[None]:
    """Check during the block whether a run still has its task, whenever a stream is opened in this process.

    A session fences all earlier sessions at the endpoint, also if its run was fenced before it opened the session. Such
    a run may be on another machine, and see no folder of the present run. So a run checks after the opening, before it
    stores anything, that it still has the task: then every later run opens its sessions later.

    Args:
        token: token of the transaction.
        check: raises a `FencedError` if the run has lost the task.
    """
    _guards[token] = check
    try:
        yield
    finally:
        del _guards[token]


def _require_run(plan: StorePlan) -> None:
    """Raise an error if the run has lost its task, as far as this process can see.

    A worker of Spark shares a folder with the driver; the folder of a shard is locked until its stream is open.

    Raises:
        FencedError: another run has the task.
    """
    check = _guards.get(plan.token)
    if check is not None:
        check()


def _require_no_foreign_rows(plan: StorePlan, number: int, token: str) -> None:
    """Require that only this run has stored rows of a shard since another session has fenced a session of this run.

    Args:
        plan: the transaction.
        number: number of the shard.
        token: name of the attempt whose commit the endpoint has recorded last.

    Raises:
        TaskError: another run has stored rows, which the data folder does not know.
    """
    run = plan.token.rpartition(".")[0]
    if plan.fenced.get(number, token) == token or token.startswith(f"{run}."):
        return
    raise TaskError(
        f"another run has stored rows of '{plan.spec.name}' at its endpoint",
        position=plan.spec.endpoint.position,
        hint="a run over another data folder materializes into the endpoint under the same name;"
        " end that run, or rename this task",
    )


def store_alone(plan: StorePlan, attempts: Iterator[int]) -> Iterator[Message]:
    """Execute a whole transaction in this process, one shard after the other.

    Args:
        plan: the transaction.
        attempts: numbers for the attempts at shards.
    """
    if plan.shards == 1:
        yield _store(plan, 0, _read(plan, (0, plan.end)), next(attempts))
        return
    owned: dict[int, list[ReadRows]] = {}
    try:
        with translated(plan.root):
            for rows in _read(plan, (0, plan.end)):
                owners = owners_of_keys(rows.keys.to_pylist(), plan.shards)
                for owner in np.unique(owners).tolist():
                    owned.setdefault(owner, []).append(rows.filter(owners == owner))
    except Exception as error:  # any error, because it would occur again
        yield failed(plan, error)
        return
    # a transaction without documents asks every shard's endpoint for its position
    for number in sorted(owned) or range(plan.shards):
        yield _store(plan, number, iter(owned.get(number, ())), next(attempts))


def run_read(plan: StorePlan, number: int) -> Iterator[pa.RecordBatch]:
    """Read one slice of a transaction, and send each document to the shard that owns its key.

    Yields:
        Packets of rows, whose ranks follow the ranks of earlier slices.
    """
    ranks = itertools.count(number << 32)
    try:
        with translated(plan.root):
            for rows in _read(plan, (plan.slices[number], plan.slices[number + 1])):
                owners = owners_of_keys(rows.keys.to_pylist(), plan.shards)
                yield pack_rows(rows, owners, lambda _: next(ranks))
    except Exception as error:  # any error, because it would occur again
        for shard in range(plan.shards):
            yield pack_message(shard, failed(plan, error).to_json())


def run_store(plan: StorePlan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[Message]:
    """Store the documents of one shard; a shard without documents is not opened."""
    messages: list[str] = []
    schema = reading_of(plan.bindings).selection.schema
    parts = (rows for _, rows in unpack_rows(packets, ReadRows, messages.append, schema))
    first = next(parts, None)
    if messages:
        yield from map(Message.from_json, messages)
    elif first is not None:
        yield _store(plan, number, chain([first], parts), attempt)


def _read(plan: StorePlan, span: tuple[int, int]) -> Iterator[ReadRows]:
    """Return the rows of a transaction between two adjusted timestamps."""
    reads = [read.within(*span) for read in plan.reads]
    return read_sorted(plan.location, reads, selection=reading_of(plan.bindings).selection)


def _store(plan: StorePlan, number: int, rows: Iterator[ReadRows], attempt: int) -> Message:
    counter = Counter(plan, f"shard-{number}")
    stream: ShardStream | None = None
    try:
        with translated(plan.root), shard_stream(plan, number, attempt) as opened:
            stream = opened
            behind = _behind(plan, stream)
            if behind:
                # The token says that the shard has received all documents, even if none is for this shard. If the shard
                # starts over, it needs a new token.
                if stream.is_new:
                    stream.transact({}, {}, str(plan.attempt(attempt)))
                    stream.finish()
                return Message(behind=behind, shards={number: stream.token}, kept=_changed_data(plan, number, stream))
            token = str(plan.attempt(attempt))
            read, stored = store_rows(stream, plan.bindings, rows, plan.extent, token, counter.add)
            tokens = {number: stream.token} if stream.token else {}
            cleared = tuple(sorted(stream.cleared))
            stream.cleared.clear()
            return Message(
                shards=tokens,
                documents_in=read,
                documents_out=stored,
                cleared=cleared,
                kept=_changed_data(plan, number, stream),
            )
    except OutdatedError:
        raise
    except Exception as error:  # any error becomes a message
        return replace(failed(plan, error), kept=_changed_data(plan, number, stream))


def _changed_data(plan: StorePlan, number: int, stream: ShardStream | None) -> dict[int, ShardData]:
    """Return the data to store for a shard if they have changed; after an error, those of the last commit."""
    if stream is None or stream.kept == plan.kept.get(number, ShardData()):
        return {}
    return {number: stream.kept}


def _behind(plan: StorePlan, stream: ShardStream) -> dict[str, int]:
    """Return the positions of bindings (by state key) whose endpoint is behind the data folder."""
    return {key: at for key, at in stream.positions.items() if at < plan.positions[key]}
