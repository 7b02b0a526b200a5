"""Sessions of controllers and instances over gRPC, and the encoding of their commands and responses.

A value is MessagePack. A list begins with a tag: the name of a class whose fields follow, or the kind of list.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeAlias

import grpc
import grpc.aio
import orjson
import ormsgpack

from derive import position
from derive.algebra import expression, relation, types
from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.compute.instance import Progress
from derive.compute.protocol.messages import (
    AllowCompaction,
    CancelPeeks,
    Command,
    CreateDataflows,
    CreateInstance,
    Dataflow,
    Export,
    FrontierUppers,
    Hello,
    Import,
    Index,
    InitializationComplete,
    Materialized,
    Peek,
    PeekResponse,
    Query,
    Report,
    Response,
    Status,
    Tail,
    TailResponse,
    Update,
    Upper,
    Welcome,
)
from derive.errors import FlowError, ProtocolError, UsageError
from derive.protocol import collection
from derive.protocol.stubs import compute_pb2 as pb
from derive.schema import projection
from derive.storage import table_types
from derive.time import END_OF_TIME

_TUPLE, _LIST, _SET, _INTEGER = "t", "l", "s", "i"


def _classes(*modules: ModuleType) -> dict[str, type]:
    """Return the classes defined in some modules, by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and (is_dataclass(value) or issubclass(value, Enum))
    }


_CLASSES = _classes(expression, relation, types, collection, projection, table_types, position)
"""Classes of encoded values; decoding creates no others."""

_FIELDS = {cls: tuple(item.name for item in fields(cls)) for cls in _CLASSES.values() if is_dataclass(cls)}


def encode(value: object) -> bytes:
    """Encode a value of the algebra, a source, or data."""
    return ormsgpack.packb(_encoded(value))


def decode(data: bytes) -> Any:
    """Decode a value of `encode`.

    Raises:
        ProtocolError: the bytes are malformed.
    """
    try:
        return _decoded(ormsgpack.unpackb(data))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ProtocolError(f"the message is not a plan: {error}") from error


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Encode rows."""
    return ormsgpack.packb(rows)


def decode_rows(data: bytes) -> list[Row]:
    """Decode rows of `encode_rows`.

    Raises:
        ProtocolError: the bytes are malformed.
    """
    try:
        return list(map(tuple, ormsgpack.unpackb(data)))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"the message is not a list of rows: {error}") from error


def _encoded(value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else [_INTEGER, str(value)]
    if isinstance(value, Enum):
        return [type(value).__name__, value.value]
    if type(value) in _FIELDS:
        return [type(value).__name__, *(_encoded(getattr(value, name)) for name in _FIELDS[type(value)])]
    if isinstance(value, tuple):
        return [_TUPLE, *map(_encoded, value)]
    if isinstance(value, list):
        return [_LIST, *map(_encoded, value)]
    if isinstance(value, frozenset):
        return [_SET, *sorted(map(_encoded, value))]
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _decoded(value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    tag, *parts = value
    if tag == _TUPLE:
        return tuple(map(_decoded, parts))
    if tag == _LIST:
        return list(map(_decoded, parts))
    if tag == _SET:
        return frozenset(map(_decoded, parts))
    if tag == _INTEGER:
        return int(parts[0])
    cls = _CLASSES[tag]
    if cls not in _FIELDS:
        return cls(*parts)
    return cls(**dict(zip(_FIELDS[cls], map(_decoded, parts), strict=True)))


_MOST_QUERIES = 1000


def command_message(command: Command) -> pb.ComputeCommand:  # noqa: PLR0911 - one for each kind
    """Return the message of a command."""
    match command:
        case Hello():
            hello = pb.Hello(
                epoch=command.epoch, session=command.session, protocol=command.protocol, folder=command.folder
            )
            return pb.ComputeCommand(hello=hello)
        case CreateInstance():
            return pb.ComputeCommand(create_instance=pb.CreateInstance(name=command.name))
        case CreateDataflows():
            dataflows = pb.CreateDataflows(dataflows=map(_dataflow_message, command.dataflows))
            return pb.ComputeCommand(create_dataflows=dataflows)
        case AllowCompaction():
            compactions = [
                pb.Compaction(id=identifier, frontier=None if frontier >= END_OF_TIME else frontier)
                for identifier, frontier in command.frontiers
            ]
            return pb.ComputeCommand(allow_compaction=pb.AllowCompaction(compactions=compactions))
        case Peek():
            peek = pb.Peek(
                uuid=command.uuid,
                query=_query_bytes(command.query),
                time=command.time,
                arguments=encode_rows([command.arguments]),
                most_bytes=command.most_bytes,
            )
            return pb.ComputeCommand(peek=peek)
        case CancelPeeks():
            return pb.ComputeCommand(cancel_peeks=pb.CancelPeeks(uuids=command.uuids))
        case InitializationComplete():
            return pb.ComputeCommand(initialization_complete=pb.InitializationComplete())


def command_of(message: pb.ComputeCommand) -> Command:  # noqa: PLR0911 - one for each kind
    """Return the command of a message.

    Raises:
        ProtocolError: the message is malformed.
    """
    kind = message.WhichOneof("kind")
    match kind:
        case "hello":
            hello = message.hello
            return Hello(hello.epoch, hello.session, hello.protocol, hello.folder)
        case "create_instance":
            return CreateInstance(message.create_instance.name)
        case "create_dataflows":
            return CreateDataflows(tuple(map(_dataflow_of, message.create_dataflows.dataflows)))
        case "allow_compaction":
            compactions = message.allow_compaction.compactions
            return AllowCompaction(
                tuple((one.id, one.frontier if one.HasField("frontier") else END_OF_TIME) for one in compactions)
            )
        case "peek":
            peek = message.peek
            most_bytes = peek.most_bytes if peek.HasField("most_bytes") else None
            (arguments,) = decode_rows(peek.arguments)
            return Peek(peek.uuid, _query_of(peek.query), peek.time, arguments, most_bytes)
        case "cancel_peeks":
            return CancelPeeks(tuple(message.cancel_peeks.uuids))
        case "initialization_complete":
            return InitializationComplete()
    raise ProtocolError(f"a command of kind {kind} is not known")


def response_message(response: Response) -> pb.ComputeResponse:
    """Return the message of a response."""
    match response:
        case Welcome():
            welcome = pb.Welcome(
                process=response.process,
                epoch=response.epoch,
                kept=response.kept,
                rebuilt=response.rebuilt,
                dropped=response.dropped,
                reasons=response.reasons,
                names=response.names,
            )
            return pb.ComputeResponse(welcome=welcome)
        case FrontierUppers():
            return pb.ComputeResponse(frontier_uppers=pb.FrontierUppers(uppers=map(_upper_message, response.uppers)))
        case PeekResponse():
            peek = pb.PeekResponse(uuid=response.uuid, is_last=response.is_last)
            if isinstance(response.result, FlowError):
                peek.failure.CopyFrom(_failure_message(response.result))
            else:
                peek.rows = encode_rows(response.result)
            return pb.ComputeResponse(peek_response=peek)
        case TailResponse():
            tail = pb.TailResponse(
                id=response.id,
                lower=response.lower,
                upper=response.upper,
                updates=encode_rows([(time, diff, *row) for time, row, diff in response.updates]),
                failure=_optional_failure(response.failure),
            )
            return pb.ComputeResponse(tail_response=tail)
        case Status():
            status = pb.Status(id=response.id, failure=_optional_failure(response.failure), number=response.number)
            return pb.ComputeResponse(status=status)
        case Report():
            hydrations = [
                pb.Hydration(id=one.identifier, stage=one.stage, rows=one.rows, since=one.since, running=one.running)
                for one in response.hydrations
            ]
            return pb.ComputeResponse(report=pb.Report(memory_bytes=response.memory_bytes, hydrations=hydrations))


def response_of(message: pb.ComputeResponse) -> Response:
    """Return the response of a message.

    Raises:
        ProtocolError: the message is malformed.
    """
    kind = message.WhichOneof("kind")
    match kind:
        case "welcome":
            welcome = message.welcome
            kept, rebuilt, dropped = map(tuple[GlobalId, ...], (welcome.kept, welcome.rebuilt, welcome.dropped))
            names = dict(welcome.names)
            return Welcome(welcome.process, welcome.epoch, kept, rebuilt, dropped, tuple(welcome.reasons), names)
        case "frontier_uppers":
            uppers = message.frontier_uppers.uppers
            return FrontierUppers(tuple(Upper(one.id, one.since, one.upper, one.number) for one in uppers))
        case "peek_response":
            peek = message.peek_response
            is_rows = peek.WhichOneof("result") == "rows"
            return PeekResponse(
                peek.uuid, decode_rows(peek.rows) if is_rows else _failure_of(peek.failure), peek.is_last
            )
        case "tail_response":
            tail = message.tail_response
            failure = _failure_of(tail.failure) if tail.HasField("failure") else None
            updates: tuple[Update, ...] = tuple((row[0], row[2:], row[1]) for row in decode_rows(tail.updates))  # type: ignore[misc]
            return TailResponse(tail.id, tail.lower, tail.upper, updates, failure)
        case "status":
            status = message.status
            failure = _failure_of(status.failure) if status.HasField("failure") else None
            return Status(status.id, failure, status.number)
        case "report":
            progress = tuple(
                Progress(one.id, one.stage, one.rows, one.since, one.running) for one in message.report.hydrations
            )
            return Report(message.report.memory_bytes, progress)
    raise ProtocolError(f"a response of kind {kind} is not known")


def _upper_message(upper: Upper) -> pb.Upper:
    return pb.Upper(id=upper.id, since=upper.since, upper=upper.upper, number=upper.number)


def _dataflow_message(dataflow: Dataflow) -> pb.Dataflow:
    message = pb.Dataflow(
        id=dataflow.id,
        plan=encode(dataflow.plan),
        imports=[
            pb.Import(id=source.id, source=encode(source.source), name=source.name) for source in dataflow.imports
        ],
        as_of=dataflow.as_of,
        number=dataflow.number,
        name=dataflow.name,
    )
    match dataflow.export:
        case Index():
            message.index.CopyFrom(pb.Index(key=encode(dataflow.export.key)))
        case Materialized():
            message.materialized.CopyFrom(pb.Materialized(definition=dataflow.export.definition))
        case Tail():
            tail = dataflow.export
            message.tail.CopyFrom(pb.Tail(has_snapshot=tail.has_snapshot, of=tail.of, up_to=tail.up_to))
    return message


def _dataflow_of(message: pb.Dataflow) -> Dataflow:
    export: Export
    match message.WhichOneof("export"):
        case "index":
            export = Index(decode(message.index.key))
        case "materialized":
            export = Materialized(message.materialized.definition)
        case _:
            tail = message.tail
            of, up_to = tail.HasField("of"), tail.HasField("up_to")
            export = Tail(tail.has_snapshot, tail.of if of else None, tail.up_to if up_to else None)
    imports = tuple(Import(source.id, decode(source.source), source.name) for source in message.imports)
    plan = decode(message.plan)
    return Dataflow(message.id, plan, imports, export, message.as_of, message.number, message.name)


@lru_cache(_MOST_QUERIES)
def _query_bytes(query: Query) -> bytes:
    return encode((query.relation, query.finishing))


@lru_cache(_MOST_QUERIES)
def _query_of(data: bytes) -> Query:
    """Return the same query object for the same bytes, so that the query is prepared once."""
    return Query(*decode(data))


def _optional_failure(failure: FlowError | None) -> pb.Failure | None:
    return None if failure is None else _failure_message(failure)


def _failure_message(failure: FlowError) -> pb.Failure:
    return pb.Failure(error_json=orjson.dumps(failure.to_json()))


def _failure_of(message: pb.Failure) -> FlowError:
    return FlowError.from_json(orjson.loads(message.error_json))


_TOKEN = "authorization"


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials of machines. Without credentials, both ends must be on one machine.

    Attributes:
        token: a shared secret.
        certificate: PEM of this end's certificate, for mutual TLS.
        key: PEM of its private key.
        authority: PEM of the certificate that signs the certificates of peers.
    """

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    authority: bytes | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a client's call."""
        return ((_TOKEN, f"Bearer {self.token}"),) if self.token else ()

    def is_authorized(self, context: SessionContext) -> bool:
        """Return whether a call is authorized: it carries the token, or no token is required."""
        import hmac

        if self.token is None:
            return True
        sent = dict(context.invocation_metadata() or ()).get(_TOKEN, "")
        return hmac.compare_digest(sent if isinstance(sent, bytes) else sent.encode(), f"Bearer {self.token}".encode())


OPEN = Security()
"""No credentials: both ends are on one machine."""


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_PORT = 65_535


def place_of(address: str, option: str, security: Security, *, listens: bool = False) -> tuple[str, int]:
    """Return the host and the port of an instance.

    Args:
        address: `host:port`.
        option: name of the option with the address.
        security: credentials of both ends.
        listens: whether an instance listens at this address; then port 0 chooses a free port.

    Raises:
        UsageError: the address is malformed, or the connection would not be authenticated.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > _MOST_PORT or not host:
        raise UsageError(f"{option} must be HOST:PORT, not '{address}'", hint="such as 127.0.0.1:6876")
    if int(port) == 0 and not listens:
        raise UsageError(
            f"port 0 of {host} cannot be reached", hint="give the port that the instance prints when it starts"
        )
    if host.strip("[]") not in _LOOPBACK and security.token is None and security.authority is None:
        raise UsageError(
            f"{host} is reachable from other machines, and clients of an instance can read the data folder",
            hint="give both ends a token file, or TLS certificates and the authority that signed them",
        )
    return host.strip("[]"), int(port)


def place_named(address: str) -> str:
    """Return a valid address in canonical form, for comparisons."""
    host, _, port = address.rpartition(":")
    return f"{'127.0.0.1' if host.lower() == 'localhost' else host.lower()}:{int(port)}"


SessionCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.ComputeCommand, pb.ComputeResponse]"
"""A session at the client."""
SessionContext: TypeAlias = "grpc.aio.ServicerContext[pb.ComputeCommand, pb.ComputeResponse]"
"""A session at the server."""

SERVICE = "flow.compute.v1.Compute"

_PING_MILLISECONDS, _PATIENCE_MILLISECONDS = 2_000, 3_000

OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # batches of rows have no size limit
    ("grpc.max_send_message_length", -1),
    # A peer that does not respond is considered lost after a short time, so that others can continue its work.
    ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", _PATIENCE_MILLISECONDS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MILLISECONDS // 2),
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_MILLISECONDS // 2),
)
"""Options of channels and servers."""


def open_channel(address: str, security: Security) -> grpc.aio.Channel:
    """Return a channel to the instance at `host:port`, for the running event loop; it connects on use."""
    if security.certificate is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    credentials = grpc.ssl_channel_credentials(security.authority, security.key, security.certificate)
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


def add_port(server: grpc.aio.Server, listen: str, security: Security) -> int:
    """Make a server listen at `host:port`; return the port."""
    if security.certificate is None:
        return server.add_insecure_port(listen)
    pairs = [(security.key or b"", security.certificate)]
    is_mutual = security.authority is not None
    return server.add_secure_port(listen, grpc.ssl_server_credentials(pairs, security.authority, is_mutual))


def open_session(
    channel: grpc.aio.Channel, commands: AsyncIterator[pb.ComputeCommand], security: Security
) -> SessionCall:
    """Begin a session."""
    method = channel.stream_stream(
        f"/{SERVICE}/Session",
        request_serializer=pb.ComputeCommand.SerializeToString,
        response_deserializer=pb.ComputeResponse.FromString,
    )
    return method(commands, metadata=security.metadata, wait_for_ready=False)


def session_handler(
    serve: Callable[[AsyncIterator[pb.ComputeCommand], SessionContext], Awaitable[None]],
) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the gRPC handler of sessions."""
    method = grpc.stream_stream_rpc_method_handler(
        serve, pb.ComputeCommand.FromString, pb.ComputeResponse.SerializeToString
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"Session": method})
