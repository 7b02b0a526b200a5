"""A process that serves a connector."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from connectors.kit.connector import MaterializeConnector
from connectors.kit.servicer import Servicer
from derive.errors import UsageError
from derive.protocol.driver import TRANSPORT_OPTIONS, driver_handler

_MOST_CALLS = 512
"""Maximum number of concurrent calls, including streams; each uses a thread."""

_GRACE_SECONDS = 5.0


class ConnectorServer:
    """A connector served at an address.

    Attributes:
        address: `host:port` that clients can connect to.
    """

    def __init__(self, connector: MaterializeConnector, listen: str) -> None:
        """Begin to serve.

        Args:
            connector: the connector.
            listen: `host:port`; port 0 picks a free port.

        Raises:
            UsageError: the address is malformed or cannot be bound.
        """
        host, separator, _ = listen.rpartition(":")
        if not separator or not host:
            raise UsageError(f"'{listen}' is no address", hint="write HOST:PORT, such as 127.0.0.1:0")
        self._servicer = Servicer(connector)
        options = (*TRANSPORT_OPTIONS, ("grpc.so_reuseport", 0))
        self._server = grpc.server(ThreadPoolExecutor(_MOST_CALLS, "call"), options=options)
        self._server.add_generic_rpc_handlers((driver_handler(self._servicer),))
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError as exc:
            raise UsageError(f"cannot listen at {listen}: {exc}", hint="is the port taken?") from exc
        self.address = f"{host}:{port}"
        self._server.start()

    def stop(self) -> None:
        """End all calls, and wait a few seconds until sessions have released their resources."""
        self._server.stop(None).wait(_GRACE_SECONDS)
        self._servicer.wait(_GRACE_SECONDS)
