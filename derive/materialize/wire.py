"""The wire of a stream: gRPC, which sends in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Any

import grpc

from derive.errors import EndpointGoneError
from derive.materialize.connector import Connector
from derive.materialize.stall_monitor import WATCH, Stall
from derive.protocol.stubs import materialize_pb2 as pb


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
            raise EndpointGoneError(f"{self._connector.name} has ended the stream of transactions") from None
        return response

    def close(self) -> None:
        """End the stream, and cancel running work."""
        self._requests.put(None)
        self._call.cancel()
