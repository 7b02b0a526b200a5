"""A compute instance that is served to controllers over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import grpc

from derive.compute.protocol.messages import Response
from derive.compute.protocol.security import Security
from derive.compute.protocol.transport import OPTIONS, add_port, session_handler
from derive.compute.protocol.wire import command_of, response_message
from derive.compute.reconciler import Reconciler
from derive.errors import FlowError, UsageError
from derive.protocol.stubs import compute_pb2 as pb

_MOST_SESSIONS = 32
"""How many connections there may be; all but one are of controllers that do not know yet that they are closed out."""

_GRACE_SECONDS = 1.0


class InstanceServer:
    """An instance that is served at an address.

    Attributes:
        address: `host:port`, where the port is one that clients can connect to.
    """

    def __init__(self, reconciler: Reconciler, listen: str, security: Security) -> None:
        """Begin to serve.

        Args:
            reconciler: takes commands.
            listen: `host:port`; a port of 0 is one that is free.
            security: how controllers are known.

        Raises:
            UsageError: nobody can listen there.
        """
        self._reconciler, self._security = reconciler, security
        self._server = grpc.server(
            ThreadPoolExecutor(_MOST_SESSIONS, "session"), options=(*OPTIONS, ("grpc.so_reuseport", 0))
        )
        self._server.add_generic_rpc_handlers((session_handler(self._serve),))
        try:
            port = add_port(self._server, listen, security)
        except RuntimeError as exc:
            raise UsageError(f"cannot listen at {listen}: {exc}", hint="is the port taken?") from exc
        self.address = f"{listen.rpartition(':')[0]}:{port}"
        self._server.start()

    def stop(self) -> None:
        """End all sessions."""
        self._server.stop(_GRACE_SECONDS).wait()

    def _serve(
        self, commands: Iterator[pb.ComputeCommand], context: grpc.ServicerContext
    ) -> Iterator[pb.ComputeResponse]:
        if not self._security.is_known(context):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is another one")
        session = _Session()
        context.add_callback(session.close)
        reader = threading.Thread(target=self._read, args=(session, commands, context), daemon=True)
        reader.start()
        try:
            while (response := session.responses.get()) is not None:
                yield response_message(response)
        finally:
            self._reconciler.lose(session)

    def _read(self, session: _Session, commands: Iterator[pb.ComputeCommand], context: grpc.ServicerContext) -> None:
        try:
            for message in commands:
                self._reconciler.accept(session, command_of(message))
        except grpc.RpcError:
            pass  # the connection is gone
        except FlowError as error:
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(str(error))
        finally:
            session.close()


class _Session:
    """A connection of a controller.

    Attributes:
        responses: those that are to be sent; None ends it.
    """

    def __init__(self) -> None:
        self.responses: SimpleQueue[Response | None] = SimpleQueue()
        self._is_closed = False

    def send(self, response: Response) -> None:
        if not self._is_closed:  # tails go on until there is another controller, and nobody would empty the queue
            self.responses.put(response)

    def close(self) -> None:
        self._is_closed = True
        self.responses.put(None)
