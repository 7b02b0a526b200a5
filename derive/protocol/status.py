"""Transfer errors through gRPC: the runtime receives the `FlowError` that a connector raises.

Our own connectors send the error itself besides status code and text. Other connectors send only these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import orjson
from grpc import Call, RpcError, StatusCode

from derive.errors import (
    DeniedError,
    EndpointError,
    EndpointGoneError,
    FencedError,
    FlowError,
    InternalError,
    ProtocolError,
    UsageError,
)

ERROR_KEY = "flow-error-bin"
"""Name of the trailing metadata with the error, as JSON."""

_MOST_BYTES = 4000
"""Size limit for the error in gRPC's metadata, bytes; only the text of a longer error is sent."""

_MOST_CHARACTERS = 2000

_CODES: tuple[tuple[type[FlowError], StatusCode], ...] = (
    (FencedError, StatusCode.ABORTED),
    (EndpointGoneError, StatusCode.UNAVAILABLE),
    (DeniedError, StatusCode.PERMISSION_DENIED),
    (EndpointError, StatusCode.FAILED_PRECONDITION),
    (ProtocolError, StatusCode.INVALID_ARGUMENT),
    (UsageError, StatusCode.INVALID_ARGUMENT),
    (InternalError, StatusCode.INTERNAL),
)
_KINDS: dict[StatusCode, type[FlowError]] = {
    StatusCode.ABORTED: FencedError,
    StatusCode.UNAVAILABLE: EndpointGoneError,
    StatusCode.DEADLINE_EXCEEDED: EndpointGoneError,
    StatusCode.CANCELLED: EndpointGoneError,
    StatusCode.PERMISSION_DENIED: DeniedError,
    StatusCode.UNAUTHENTICATED: DeniedError,
    StatusCode.INVALID_ARGUMENT: ProtocolError,
    StatusCode.UNIMPLEMENTED: ProtocolError,
}


def status_of(error: FlowError) -> tuple[StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the status code, text and trailing metadata of a method that raised an error."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        code = StatusCode.UNAVAILABLE if error.heals else StatusCode.FAILED_PRECONDITION
    detail = orjson.dumps(error.to_json())
    metadata = ((ERROR_KEY, detail),) if len(detail) <= _MOST_BYTES else ()
    text = str(error)
    return code, text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…", metadata


def error_of(failure: RpcError, connector: str) -> FlowError:
    """Return the error of a failed method.

    Args:
        failure: exception of the call.
        connector: name of the connector, for messages.
    """
    if not isinstance(failure, Call):
        return EndpointError(f"{connector} has failed: {failure}")
    trailing = cast(Sequence[tuple[str, bytes]], failure.trailing_metadata() or ())
    for key, value in trailing:
        if key == ERROR_KEY:
            return FlowError.from_json(orjson.loads(value))
    code = failure.code()
    return _KINDS.get(code, EndpointError)(f"{connector} has failed ({code.name}): {failure.details()}")
