"""A compute instance over a data folder's Storage, in this process or reached over gRPC; and the lock on its folder."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from derive.algebra.relation import GlobalId
from derive.backoff import Backoff
from derive.compute.instance import Input, Instance
from derive.compute.protocol.messages import Dataflow, Response, Welcome
from derive.compute.protocol.transport import (
    OPTIONS,
    Security,
    SessionContext,
    add_port,
    command_of,
    response_message,
    session_handler,
)
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity
from derive.compute.replica.writeback import Writeback
from derive.contents.inputs import SharedPolls, relation_input
from derive.durable import make_folders
from derive.errors import BusyError, FencedError, FlowError, UsageError
from derive.event_loop import Handover, new_event_loop
from derive.protocol.driver import SILENT_SECONDS, connection_limits
from derive.protocol.stubs import compute_pb2 as pb
from derive.storage.folder_id import folder_id
from derive.storage.metadata.process import is_dead, show_process, this_process
from derive.storage.store import Store

FILE = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, until the block ends.

    Raises:
        BusyError: another process holds the lock.
    """
    make_folders(folder)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _lock(descriptor):
            holder = holder_of(folder)
            who = f"another instance, {show_process(holder)}," if holder else "another instance"
            raise BusyError(f"{who} uses the folder {folder}", hint="give each process a --folder of its own")
        name = this_process().encode()
        os.pwrite(descriptor, name, 0)
        os.ftruncate(descriptor, len(name))
        yield
    finally:
        os.close(descriptor)


def holder_of(folder: Path) -> str | None:
    """Return the name of the process that holds a folder (see `derive.storage.metadata.process`); None if unknown."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _lock(descriptor):
            return None
        name = os.pread(descriptor, 4096, 0).decode()
    finally:
        os.close(descriptor)
    return name if name and not is_dead(name) else None


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_SECONDS = 0.5
"""Seconds without a commit after which the worker looks for work again."""
_HYDRATING_SECONDS = 0.05
"""The same, while another process computes the first rows of a view."""

_BACKOFF = Backoff(0.1, 10.0)
"""Pauses, in seconds, before failed work is retried."""

_MOST_THREADS = 2000
"""Maximum number of queries and subscriptions that run at once.

A slow reader of a large result keeps its thread waiting, so there are more threads than slow readers. Threads are
started only if there is work for them.
"""


class Worker:
    """An instance, and the thread that works for it.

    Args:
        store: Storage of the data folder.
        folder: folder of the instance's data; None for data that are deleted when the instance is closed.
        name: name of the process, shown to users.
        report: function called with the error each time work fails, and with None when work succeeds again.
        notify: function called with the reconciled dataflows when a session of a controller begins.

    Attributes:
        reconciler: receiver of commands.
    """

    def __init__(
        self,
        store: Store,
        folder: Path | None,
        name: str,
        report: Callable[[Exception | None], None],
        notify: Callable[[Welcome], None] = lambda welcome: None,
    ) -> None:
        self._store, self._report = store, report
        self._pool = ThreadPoolExecutor(_MOST_THREADS, "flowctl-compute")
        self._writeback = Writeback(store)
        self._polls = SharedPolls(store)
        self.reconciler = Reconciler(
            Instance(folder, is_limited=True),
            self._open,
            self._writeback.write,
            identity=Identity(f"{name}-{os.getpid()}", folder_id(store.root)),
            run=self._pool.submit,
            wake=store.changes.wake,
            notify=notify,
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flowctl-compute", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop work, and release all resources."""
        self._closed.set()
        self.reconciler.stop()
        self._store.changes.wake()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)
        self._writeback.close()
        self.reconciler.close()

    def _open(self, dataflow: Dataflow, as_of: int) -> dict[GlobalId, Input]:
        inputs: dict[GlobalId, Input] = {}
        try:
            for source in dataflow.imports:
                name = self._store.tables.name_of(source.id) or source.name
                known = self._store.collection(name)
                if known is None or known.upper <= as_of:
                    raise FencedError(f"'{name}' was reset: its contents at {as_of} are no longer known")
                inputs[source.id] = relation_input(
                    self._store, replace(source.source, name=source.name), as_of, self._polls
                )
        except BaseException:
            for opened in inputs.values():
                opened.close()
            raise
        return inputs

    def _work(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                mark = self._store.changes.mark()
                self._polls.begin_turn()
                has_more = self.reconciler.work()
                if failures:
                    failures = 0
                    self._report(None)
                if not has_more:
                    self._store.changes.wait(mark, _HYDRATING_SECONDS if self.reconciler.is_hydrating else _SECONDS)
            except Exception as error:  # retry: the disk may be full, or the metadata locked or unreachable
                if self._closed.is_set():
                    return
                failures += 1
                self._report(error)
                self._closed.wait(_BACKOFF.pause(failures))


T = TypeVar("T")

_MOST_SESSIONS = 32
"""Maximum number of sessions; one is open, and the others are closed sessions whose controllers do not know yet."""

_MOST_CONNECTIONS = 2 * _MOST_SESSIONS
"""Maximum number of connections with and without sessions."""

_GRACE_SECONDS = 1.0

_REFUSAL_SECONDS = 0.1
"""Seconds that a refused session stays open.

If a client is writing when the session ends, gRPC reports that the write failed, but not why the session ended.
"""


class InstanceServer:
    """An instance that is served at an address.

    Attributes:
        address: `host:port`, with a port that clients can connect to.
    """

    def __init__(
        self, reconciler: Reconciler, listen: str, security: Security, *, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        """Start to serve.

        Args:
            reconciler: receiver of commands.
            listen: `host:port`; port 0 chooses a free port.
            security: authentication of controllers.
            silent_seconds: time in seconds for a connection to begin a session.

        Raises:
            UsageError: the address cannot be bound.
        """
        self._reconciler, self._security = reconciler, security
        self._limits = connection_limits(_MOST_CONNECTIONS, silent_seconds, silent_seconds)
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flowctl-sessions", daemon=True)
        self._thread.start()
        try:
            self._server, port = self._wait(self._begin(listen))
        except RuntimeError as exc:
            self._end()
            raise UsageError(
                f"cannot listen at {listen}: {exc}",
                hint="if another process uses the port, choose another port with --listen, or port 0",
            ) from exc
        self.address = f"{listen.rpartition(':')[0]}:{port}"

    def stop(self) -> None:
        """End all sessions, and return when their coroutines have ended."""
        self._wait(self._stop())
        self._end()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the sessions, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self, listen: str) -> tuple[grpc.aio.Server, int]:
        options = (*OPTIONS, *self._limits, ("grpc.so_reuseport", 0))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_SESSIONS)
        server.add_generic_rpc_handlers((session_handler(self._serve),))
        port = add_port(server, listen, self._security)
        await server.start()
        return server, port

    async def _stop(self) -> None:
        await self._server.stop(_GRACE_SECONDS)
        # gRPC cancels the remaining sessions but does not await them; the loop must not close before they have ended
        sessions = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
        for session in sessions:
            session.cancel()
        if sessions:
            await asyncio.wait(sessions, timeout=_GRACE_SECONDS)

    async def _serve(self, commands: AsyncIterator[pb.ComputeCommand], context: SessionContext) -> None:
        if not self._security.is_authorized(context):
            await asyncio.sleep(_REFUSAL_SECONDS)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
        session = _Session()
        reader = asyncio.create_task(self._read(session, commands, context))
        try:
            while (response := await session.responses.get()) is not None:
                await context.write(response_message(response))
        finally:
            reader.cancel()
            self._reconciler.lose(session)

    async def _read(
        self, session: _Session, commands: AsyncIterator[pb.ComputeCommand], context: SessionContext
    ) -> None:
        try:
            async for message in commands:
                self._reconciler.accept(session, command_of(message))
        except FlowError as error:
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(str(error))
            await asyncio.sleep(_REFUSAL_SECONDS)
        except Exception as error:
            context.set_code(grpc.StatusCode.INTERNAL)
            context.set_details(f"{type(error).__name__}: {error}")
            self._loop.call_exception_handler({"message": "a command has failed", "exception": error})
            await asyncio.sleep(_REFUSAL_SECONDS)
        finally:
            session.close()


class _Session:
    """A connection of a controller, made in the event loop.

    Attributes:
        responses: queue of responses to send; None ends the session.
    """

    def __init__(self) -> None:
        self.responses: Handover[Response | None] = Handover(is_patient=lambda: False)
        self._is_closed = False

    def send(self, response: Response) -> None:
        # subscriptions continue until another controller connects, but no client empties the queue
        if not self._is_closed:
            self.responses.put(response)

    def close(self) -> None:
        self._is_closed = True
        self.responses.put(None)
