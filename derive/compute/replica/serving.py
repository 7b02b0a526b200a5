"""A compute instance that controllers reach over gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from derive.compute.protocol.messages import Response
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
from derive.errors import FlowError, UsageError
from derive.event_loop import Handover, new_event_loop
from derive.protocol.driver import SILENT_SECONDS, connection_limits
from derive.protocol.stubs import compute_pb2 as pb

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
