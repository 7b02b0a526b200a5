"""Requests that are repeated until they are answered: over one connection, with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from urllib.parse import urlsplit

from connectors.materialize_webhook.config import WebhookConfig
from connectors.materialize_webhook.limited import (
    Connection,
    PlainConnection,
    TlsConnection,
    answered,
    connected,
    interrupt,
)
from derive.backoff import Backoff
from derive.errors import DeniedError, EndpointError, EndpointGoneError

_BACKOFF = Backoff(0.5, 60.0, jitter=0.5)
"""Pauses, in seconds, before a request is posted again."""

_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which the same request may succeed later."""

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
                what = f"{self._config.host} has not taken documents in {attempt} attempts: {failure}"
                raise EndpointGoneError(what, hint="nothing is lost: they are posted again")
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
        """Return the failure of one attempt, or None, and the seconds after which the host wants a repetition."""
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
            raise DeniedError(f"{self._config.host} does not let us in: {failure}")
        raise EndpointError(f"{self._config.host} has refused documents: {failure}")

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
