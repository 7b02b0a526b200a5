"""A process that serves a connector."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from connectors.kit.connector import MaterializeConnector
from connectors.kit.servicer import Servicer
from derive.errors import UsageError
from derive.protocol.driver import TRANSPORT_OPTIONS, driver_handler

_MOST_CALLS = 512
"""How many calls, of which a stream is one, are served at a time; each has a thread while it lasts."""

_GRACE_SECONDS = 5.0


class ConnectorServer:
    """A connector that is served at an address.

    Attributes:
        address: `host:port`, where the port is one that clients can connect to.
    """

    def __init__(self, connector: MaterializeConnector, listen: str) -> None:
        """Begin to serve.

        Args:
            connector: what is served.
            listen: `host:port`; a port of 0 is one that is free.

        Raises:
            UsageError: nobody can listen there.
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
        """End all calls, and wait a little until sessions have released what they hold."""
        self._server.stop(None).wait(_GRACE_SECONDS)
        self._servicer.wait(_GRACE_SECONDS)
