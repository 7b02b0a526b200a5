"""Errors that cross gRPC: what is raised in a connector is what the runtime has."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from patience import PATIENCE_SECONDS
from typing_extensions import override

from derive.errors import (
    DeniedError,
    EndpointError,
    EndpointGoneError,
    FencedError,
    FlowError,
    ProtocolError,
    SchemaError,
)
from derive.position import Position
from derive.protocol.driver import DriverClient, driver_handler, error_of, open_channel, status_of
from derive.protocol.stubs import materialize_pb2 as pb


class Raising:
    """A connector whose methods end as they are told to."""

    def __init__(self, error: FlowError | None, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        self._error, self._code = error, code

    def _end(self, context: grpc.ServicerContext) -> None:
        if self._error is None:
            context.abort(self._code, "it would not")
        code, text, metadata = status_of(self._error)
        context.set_trailing_metadata(metadata)
        context.abort(code, text)

    def spec(self, request: pb.SpecRequest, context: grpc.ServicerContext) -> pb.SpecResponse:
        self._end(context)
        return pb.SpecResponse()

    def validate(self, request: pb.ValidateRequest, context: grpc.ServicerContext) -> pb.ValidateResponse:
        self._end(context)
        return pb.ValidateResponse()

    def apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyResponse:
        self._end(context)
        return pb.ApplyResponse()

    def transactions(
        self, requests: Iterator[pb.TransactionRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.TransactionResponse]:
        yield pb.TransactionResponse(opened=pb.TransactionResponse.Opened())
        self._end(context)


@contextmanager
def serving(servicer: Raising) -> Iterator[DriverClient]:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((driver_handler(servicer),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}") as channel:
        yield DriverClient(channel)
    server.stop(None)


ERRORS = [
    FencedError("another has opened", hint="stop one of them"),
    EndpointGoneError("no route"),
    DeniedError("wrong password für 'ann'"),
    ProtocolError("Load is out of place", position=Position("flow.yaml", 3, 4, 5)),
    SchemaError("no schema"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_error_survives_encoding(error: FlowError) -> None:
    with serving(Raising(error)) as client:
        with pytest.raises(grpc.RpcError) as unary:
            client.spec(pb.SpecRequest())
        with pytest.raises(grpc.RpcError) as stream:
            list(client.transactions(iter(())))

    for caught in (unary, stream):
        arrived = error_of(caught.value, "the connector")
        assert type(arrived) is type(error)
        assert arrived.to_json() == error.to_json()


CODES = [
    (FencedError, grpc.StatusCode.ABORTED),
    (EndpointGoneError, grpc.StatusCode.UNAVAILABLE),
    (DeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (ProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (EndpointError, grpc.StatusCode.FAILED_PRECONDITION),
]


@pytest.mark.parametrize(("kind", "code"), CODES)
def test_status_codes_have_their_standard_meaning(kind: type[FlowError], code: grpc.StatusCode) -> None:
    assert status_of(kind("it would not"))[:2] == (code, "it would not")

    with serving(Raising(None, code)) as client, pytest.raises(grpc.RpcError) as caught:
        client.spec(pb.SpecRequest())

    arrived = error_of(caught.value, "the connector")
    assert type(arrived) is kind
    assert arrived.message == f"the connector has failed ({code.name}): it would not"


def test_retryable_errors_have_status_unavailable() -> None:
    class FullError(FlowError):
        @property
        @override
        def heals(self) -> bool:  # type: ignore[override]
            return True

    assert status_of(FullError("full"))[0] is grpc.StatusCode.UNAVAILABLE


def test_a_very_long_message_is_shortened() -> None:
    code, text, metadata = status_of(EndpointError("x" * 100_000))

    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert len(text) == 2001
    assert metadata == ()


def test_unreachable_connector_is_reported() -> None:
    with open_channel("127.0.0.1:1") as channel, pytest.raises(grpc.RpcError) as caught:
        DriverClient(channel).spec(pb.SpecRequest(), timeout=PATIENCE_SECONDS)

    assert type(error_of(caught.value, "the connector")) is EndpointGoneError
