"""Connectors as clients: every kind of endpoint is a gRPC server.

The catalog names a connector of an installed package by its image, a local connector by its program, and a running
connector by its address. `Connectors` starts each connector at most once, on first use, and ends all connectors that
it has started.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import grpc

from connectors.kit.connector import installed_materialize_connectors
from connectors.kit.requests import Applied, Difference
from derive.errors import EndpointGoneError, FlowError, ProtocolError, TaskError, suggest
from derive.materialize.process import ConnectorProcess, guarded_command, installed_command, installed_env
from derive.materialize.schemas import ConnectorSchemas, parse_schemas
from derive.plural import counted
from derive.position import is_remote
from derive.protocol.driver import BEGUN, DriverClient, error_of, open_channel
from derive.protocol.secrets import hide
from derive.protocol.specs import AddressEndpoint, ConnectorEndpoint, EndpointSpec, LocalEndpoint
from derive.protocol.stubs import materialize_pb2 as pb

_PREFIX, _BRITISH = "materialize-", "materialise-"
_ASK_SECONDS = 120.0
_APPLY_SECONDS = 3600.0
_DEATH_SECONDS = 1.0
"""Seconds to wait for the end of a process after its connection is lost."""

_Response = TypeVar("_Response")


def not_installed(endpoint: EndpointSpec) -> tuple[str, str] | None:
    """Return the reason why the image of an endpoint cannot run on this machine, and a hint; None if it can run."""
    if not isinstance(endpoint, ConnectorEndpoint):
        return None
    installed = installed_materialize_connectors()
    if endpoint.connector in installed:
        return None
    # All names have the same prefix, so it is no help for a suggestion.
    kinds = {name.removeprefix(_PREFIX): name for name in installed}
    guess = suggest(endpoint.connector.removeprefix(_PREFIX).removeprefix(_BRITISH), kinds)
    hint = f"did you mean '{kinds[guess]}'?" if guess else f"installed: {', '.join(installed) or 'none'}"
    return f"the connector '{endpoint.connector}' of the image '{endpoint.image}' is not installed", hint


class Connector:
    """A connector that can be called.

    Args:
        name: name in messages.
        address: `host:port` of the server.
        process: process of the server, if this runtime started it.

    Attributes:
        name: name in messages.
        client: methods of the connector; `error_of` converts their errors.
    """

    def __init__(self, name: str, address: str, process: ConnectorProcess | None = None) -> None:
        self.name = name
        self._address = address
        self._process = process
        self._channel = open_channel(address)
        self._schemas: ConnectorSchemas | None = None
        self.client = DriverClient(self._channel)

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended by itself."""
        return self._process is not None and self._process.ended is not None

    def schemas(self) -> ConnectorSchemas:
        """Return the configuration schemas of the connector.

        A process of this runtime returns the schemas once. A connector at an address returns them at each call, because
        another connector may have the address now.

        Raises:
            FlowError: the call failed.
        """
        if self._schemas is None or self._process is None:
            response = self._ask(lambda: self.client.spec(pb.SpecRequest(), timeout=_ASK_SECONDS), ())
            self._schemas = parse_schemas(self.name, response)
        return self._schemas

    def validate(self, request: pb.ValidateRequest, secrets: Collection[str]) -> pb.ValidateResponse:
        """Return the constraints that the endpoint sets on fields of bindings.

        Args:
            request: the bindings.
            secrets: texts to hide in messages.

        Raises:
            FlowError: the connector refuses the bindings, or the endpoint cannot be reached.
        """
        response: pb.ValidateResponse = self._ask(lambda: self.client.validate(request, timeout=_ASK_SECONDS), secrets)
        if len(response.bindings) != len(request.bindings):
            counts = f"{len(response.bindings)} of {counted(len(request.bindings), 'binding')}"
            raise ProtocolError(f"{self.name} has validated {counts}")
        return response

    def apply(self, request: pb.ApplyRequest, secrets: Collection[str], begun: Collection[int] = ()) -> Applied:
        """Prepare the endpoint, or return the needed actions of a dry run.

        Args:
            request: the materialization.
            secrets: texts to hide in messages.
            begun: indices of bindings with documents at the endpoint.

        Raises:
            FlowError: the endpoint cannot be prepared.
        """
        metadata = ((BEGUN, ",".join(map(str, begun))),)
        response = self._ask(lambda: self.client.apply(request, timeout=_APPLY_SECONDS, metadata=metadata), secrets)
        description = hide(response.action_description, secrets).strip()
        differences = tuple(
            Difference(one.binding, one.deleted, one.inserted, one.updated, tuple(one.rows_json))
            for one in response.differences
        )
        return Applied(description, frozenset(response.refilling), tuple(response.contents), differences)

    def error_of(self, failure: grpc.RpcError, secrets: Collection[str]) -> FlowError:
        """Return the error of a failed method without secrets. If the process has ended, add its last output."""
        error = error_of(failure, self.name)
        is_gone = isinstance(error, EndpointGoneError) and error.message.startswith(self.name)
        if self._process is not None:
            death = self._process.death(_DEATH_SECONDS if is_gone else 0.0)
            if death is not None:
                return EndpointGoneError(hide(death, secrets))
        hint = error.hint
        if self._process is None and is_gone:
            hint = hint or f"a connector has to serve gRPC at {self._address}"
        return type(error)(hide(error.message, secrets), position=error.position, hint=hint and hide(hint, secrets))

    def close(self) -> None:
        """Close the channel, and end the process."""
        self._channel.close()
        if self._process is not None:
            self._process.close()

    def _ask(self, call: Callable[[], _Response], secrets: Collection[str]) -> _Response:
        try:
            return call()
        except grpc.RpcError as failure:
            # Without `from None`, a traceback would show the message of the call, which may have secrets.
            cause = None if any(secret in str(failure) for secret in secrets) else failure
            raise self.error_of(failure, secrets) from cause


@dataclass(frozen=True, slots=True)
class _Start:
    """Parameters of a connector's start; endpoints with equal parameters share a connector."""

    name: str
    command: tuple[str, ...] = ()
    folder: str = ""
    env: tuple[tuple[str, str], ...] = ()
    address: str = ""


class Connectors(AbstractContextManager["Connectors"]):
    """The connectors of this process, each started on first use. Several threads may use the object."""

    def __init__(self) -> None:
        self._connectors: dict[_Start, Connector] = {}
        self._locks: defaultdict[_Start, Lock] = defaultdict(Lock)
        self._lock = Lock()

    def connect(self, endpoint: EndpointSpec) -> Connector:
        """Return the connector of an endpoint, started if it is not running.

        Raises:
            FlowError: the connector cannot be started; the error has the endpoint's position.
        """
        start = _start_of(endpoint)
        with self._lock:
            lock = self._locks[start]
        with lock:  # a slow start does not block other connectors
            connector = self._connectors.get(start)
            if connector is not None and connector.has_ended:
                connector.close()
                connector = None
            if connector is None:
                connector = self._connectors[start] = _connect(start, endpoint)
            return connector

    def close(self) -> None:
        """End all connectors."""
        with self._lock:
            connectors = list(self._connectors.values())
            self._connectors.clear()
        for connector in connectors:
            connector.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_of(endpoint: EndpointSpec) -> _Start:
    if isinstance(endpoint, AddressEndpoint):
        return _Start(f"the connector at {endpoint.address}", address=endpoint.address)
    if isinstance(endpoint, LocalEndpoint):
        env = tuple(sorted((name, str(value)) for name, value in endpoint.env.reveal().items()))
        return _Start(f"the connector '{endpoint.command[0]}'", endpoint.command, endpoint.folder, env)
    missing = not_installed(endpoint)
    if missing is not None:
        raise TaskError(missing[0], position=endpoint.position, hint=missing[1])
    url = endpoint.config.url
    folder = os.getcwd() if is_remote(url) or not url else os.path.dirname(os.path.abspath(url))
    return _Start(endpoint.connector, folder=folder)


def _connect(start: _Start, endpoint: EndpointSpec) -> Connector:
    if start.address:
        return Connector(start.name, start.address)
    secrets: Collection[str] = ()
    command, env = installed_command(start.name), installed_env()
    if isinstance(endpoint, LocalEndpoint):
        command, env = guarded_command(start.command), {**os.environ, **dict(start.env)}
        secrets = endpoint.env.secrets()
    try:
        process = ConnectorProcess(start.name, command, start.folder, env)
    except TaskError as error:
        raise TaskError(hide(error.message, secrets), position=endpoint.position, hint=error.hint) from error
    return Connector(start.name, process.address, process)
