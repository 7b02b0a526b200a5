"""Sends requests, and repeats each request until it is answered: configuration, connections and time limits.

The timeout of a socket bounds only a single read. So each answer has its own time limit, because a host could send one
byte at a time without an end.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from urllib.parse import urlsplit

from typing_extensions import override

from derive.backoff import Backoff
from derive.document.pointer import JSON
from derive.errors import DeniedError, EndpointError, EndpointGoneError
from derive.plural import counted

ENDPOINT_SCHEMA: JSON = {
    "title": "Webhook",
    "type": "object",
    "required": ["address"],
    "properties": {
        "address": {
            "type": "string",
            "pattern": r"^https?://([^/?#\s\\@:\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[^\s\\?#]*)?(\?[^\s\\#]*)?$",
            "secret": True,
            "description": "Address to which documents are posted, by https or http.",
        },
        "headers": {
            "type": "object",
            "propertyNames": {"pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"},
            "additionalProperties": {"type": "string", "pattern": "^[\\t -~]*$", "secret": True},
            "description": "Headers of every request, such as Authorization.",
        },
        "timeout_seconds": {"type": "number", "exclusiveMinimum": 0, "description": "Time limit of a complete answer."},
        "retry_seconds": {
            "type": "number",
            "minimum": 0,
            "description": "Time after which a failed request is no longer repeated.",
        },
        "batch_documents": {
            "type": "integer",
            "minimum": 1,
            "description": "Maximum number of documents in one request.",
        },
        "batch_bytes": {
            "type": "integer",
            "minimum": 1,
            "description": "Maximum bytes of one request with several documents.",
        },
    },
    "additionalProperties": False,
}
RESOURCE_SCHEMA: JSON = {
    "title": "Requests for a collection",
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "pattern": r"^[!-~]*$",
            "description": "Path that is appended to the address, after a slash.",
        },
        "delta_updates": {"const": True, "description": "Documents are only posted; other updates are not supported."},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """Configuration of a webhook.

    Attributes:
        address: address to which documents are posted; it may be secret, and messages show `host` instead.
        headers: headers of every request.
        timeout_seconds: maximum time of a whole answer, of connecting, and of sending.
        retry_seconds: time after which a failed request is no longer repeated.
        batch_documents: maximum number of documents in one request.
        batch_bytes: maximum bytes of documents in one request with more than one document.
    """

    address: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 30.0
    retry_seconds: float = 300.0
    batch_documents: int = 1000
    batch_bytes: int = 1 << 20

    @property
    def host(self) -> str:
        """Return host and port, without parts that may be secret."""
        return urlsplit(self.address).netloc


class PlainConnection(HTTPConnection):
    """A connection that keeps its socket while an answer without a length is read.

    `HTTPConnection` transfers its socket to such an answer, which ends with the connection.

    Attributes:
        reached: socket of the last `connect`; None before the first.
    """

    reached: socket.socket | None = None

    @override
    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.reached = self.sock


class TlsConnection(HTTPSConnection):
    """A TLS connection that has its socket before the handshake, so that the handshake can be interrupted.

    Attributes:
        reached: as in `PlainConnection`.
    """

    reached: socket.socket | None = None

    @override
    def connect(self) -> None:
        """Connect, and perform the TLS handshake."""
        HTTPConnection.connect(self)
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        tls = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = self.reached = tls
        tls.do_handshake()


Connection = PlainConnection | TlsConnection


def connected(connection: Connection, seconds: float) -> None:
    """Connect, unless the connection is open.

    Raises:
        OSError: connecting failed, or exceeded the time limit.
    """
    if connection.sock is None:
        with _limited(connection, seconds):
            connection.connect()


def answered(connection: Connection, seconds: float, most_bytes: int) -> tuple[HTTPResponse, bytes]:
    """Return the answer to a sent request, and the beginning of its body.

    Raises:
        OSError: there is no complete answer within the time limit.
        HTTPException: the answer is not HTTP.
    """
    with _limited(connection, seconds):
        response = connection.getresponse()
        return response, response.read(most_bytes)


def interrupt(connection: Connection) -> None:
    """Interrupt the running operation of a connection, from any thread."""
    if (at_work := connection.reached) is not None:
        # not `shutdown` of the TLS socket, which would drop its keys while another thread reads
        with suppress(OSError):
            socket.socket.shutdown(at_work, socket.SHUT_RDWR)


@contextmanager
def _limited(connection: Connection, seconds: float) -> Iterator[None]:
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        interrupt(connection)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException) as exc:
        if is_over:
            raise TimeoutError("timed out") from exc
        raise
    finally:
        timer.cancel()
    if is_over:  # a body without a length may look complete after an interruption
        raise TimeoutError("timed out")


_BACKOFF = Backoff(0.5, 60.0, jitter=0.5)
"""Pauses, in seconds, before a request is posted again."""

_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which a repetition of the request may succeed."""

_DENIED = frozenset({401, 403, 407})
_SHOWN = 200
_MOST_ANSWER_BYTES = 1 << 16


class CancelledError(Exception):
    """The repetition of a request was cancelled."""


class Sender:
    """A sender of requests to one host.

    Args:
        config: address and time limits.
        pause: function that waits for some seconds, and returns whether to stop.
        clock: function that returns seconds since any fixed time.
    """

    def __init__(
        self,
        config: WebhookConfig,
        pause: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._pause = pause
        self._clock = clock
        self._target = urlsplit(config.address)
        self._connection: Connection | None = None

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post a body, and repeat the request until it succeeds.

        Args:
            path: path appended to the address.
            body: body of the request.
            headers: additional headers of the request.

        Raises:
            DeniedError: the host denies access.
            EndpointError: the host refuses the request permanently.
            EndpointGoneError: the request has failed for the allowed time.
            CancelledError: `pause` returned that the sender has to stop.
        """
        begun = self._clock()
        attempt = 0
        while not self._pause(0.0):
            failure, retry_after = self._attempt(path, body, headers)
            if failure is None:
                return
            attempt += 1
            pause = _BACKOFF.pause(attempt) if retry_after is None else min(retry_after, _BACKOFF.most)
            if self._clock() + pause - begun > self._config.retry_seconds:
                what = f"{self._config.host} has not taken documents in {counted(attempt, 'attempt')}: {failure}"
                raise EndpointGoneError(what, hint="no document is lost: flowctl posts them again")
            if self._pause(pause):
                break
        raise CancelledError

    def interrupt(self) -> None:
        """Interrupt the awaited answer; another thread may call this method."""
        connection = self._connection
        if connection is not None:
            interrupt(connection)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[str | None, float | None]:
        """Return the failure of one attempt (None for success), and the seconds that the host asks to wait."""
        try:
            connection = self._connected()
            connected(connection, self._config.timeout_seconds)
            connection.request("POST", self._path(path), body, {**self._config.headers, **headers})
            response, answer = answered(connection, self._config.timeout_seconds, _MOST_ANSWER_BYTES)
            if not response.isclosed():
                self.close()
        except (OSError, HTTPException) as exc:
            self.close()
            return str(exc) or type(exc).__name__, None
        if 200 <= response.status < 300:
            return None, None
        text = answer.decode("utf-8", "replace").strip()
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        failure = f"{response.status} {response.reason}" + (f": {shown}" if shown else "")
        if response.status in _LATER or response.status >= 500:
            return failure, _retry_seconds(response.headers.get("Retry-After"))
        if response.status in _DENIED:
            raise DeniedError(f"{self._config.host} denied access: {failure}")
        raise EndpointError(
            f"{self._config.host} rejected documents: {failure}",
            hint="correct the address or the documents, or let the host accept them; flowctl posts them again",
        )

    def _connected(self) -> Connection:
        if self._connection is None:
            kind = TlsConnection if self._target.scheme == "https" else PlainConnection
            self._connection = kind(self._target.netloc, timeout=self._config.timeout_seconds)
        return self._connection

    def _path(self, path: str) -> str:
        prefix = self._target.path.rstrip("/")
        joined = f"{prefix}/{path.lstrip('/')}" if path else self._target.path or "/"
        if not self._target.query:
            return joined
        return f"{joined}{'&' if '?' in joined else '?'}{self._target.query}"


def _retry_seconds(value: str | None) -> float | None:
    """Return the seconds of `Retry-After`, from a number or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
