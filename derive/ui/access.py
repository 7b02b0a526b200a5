"""Access to the pages: hosts, origins, passwords, and the headers of all responses."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from derive.errors import UsageError
from derive.sql.pgwire.passwords import Passwords, Verifier
from derive.web_access import Hosts

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    )
)
"""Content-Security-Policy: no inline script, no inline style, no other site."""

_HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_FAILURE_SECONDS = 0.5
"""Time that a request with a wrong password takes."""

_LEAST_TOKEN = 16


class Secret(Protocol):
    """A secret that a client must send."""

    def accepts(self, user: str, password: str) -> bool:
        """Return whether a user and a password are accepted."""


class Token:
    """A secret from a token file; it is the password of every user.

    Args:
        file: the token file.

    Raises:
        UsageError: the file cannot be read, other users may read it, or its secret is short.
    """

    def __init__(self, file: Path) -> None:
        try:
            self._token = file.read_text(encoding="utf-8").strip()
            mode = file.stat().st_mode
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"the token file {file} cannot be read: {exc}") from exc
        if mode & 0o077:
            raise UsageError(f"other users may read the token file {file}", hint=f"chmod 600 {file}")
        if len(self._token) < _LEAST_TOKEN:
            raise UsageError(
                f"the token file {file} has fewer than {_LEAST_TOKEN} characters",
                hint=f"for example: python3 -c 'import secrets; print(secrets.token_urlsafe())' > {file}",
            )

    def accepts(self, user: str, password: str) -> bool:
        """Return whether the password is the token."""
        return hmac.compare_digest(password.encode(), self._token.encode())


class Users:
    """The users of a password file, as for `flowctl sql serve`."""

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._accepted: set[bytes] = set()

    def accepts(self, user: str, password: str) -> bool:
        """Return whether the password is the user's; later calls do not compute the hash again."""
        digest = hashlib.sha256(f"{user}\0{password}".encode()).digest()
        if digest in self._accepted:
            return True
        verifier = self._passwords.verifier_of(user)
        made = Verifier.of_password(password, verifier.salt, verifier.rounds)
        is_right = hmac.compare_digest(made.stored_key, verifier.stored_key)
        if is_right:
            self._accepted.add(digest)
        return is_right


class Permissions:
    """The actions that the command line permits besides reading, and the proof that a page of this server asks.

    Args:
        runs_tests: whether pages may run the tests of the catalog, which runs code of the catalog.
        writes: whether statements of SQL may write.

    Attributes:
        token: a secret of this process; forms of its pages contain it, and no other site can read them.
    """

    def __init__(self, *, runs_tests: bool = False, writes: bool = False) -> None:
        self.runs_tests = runs_tests
        self.writes = writes
        self.token = secrets.token_urlsafe()

    def proves(self, headers: Mapping[str, str], token: str) -> bool:
        """Return whether a form of this server's pages has caused a request, which `Guard` has accepted.

        A browser sends the header Origin with each form, and `Guard` accepts only the origin of this server.
        """
        return "origin" in headers and hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """ASGI middleware that refuses requests without access, and adds headers to all responses.

    Args:
        application: the pages.
        hosts: host names and addresses of this server, in lower case.
        secret: the secret that clients must send; None for none.
        scheme: `http` or `https`.
    """

    def __init__(self, application: Application, hosts: Collection[str], secret: Secret | None, scheme: str) -> None:
        self._application = application
        self._hosts = Hosts(frozenset(hosts), "flowctl ui --host")
        self._secret = secret
        self._scheme = scheme

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._application(scope, receive, send)
            return
        names = [name.decode("latin-1").lower() for name, _ in scope["headers"]]
        headers = {name: value.decode("latin-1") for name, (_, value) in zip(names, scope["headers"], strict=True)}
        refusal = self._hosts.refusal(scope["method"], headers, names, self._scheme)
        if refusal is None and not await self._is_accepted(headers.get("authorization", "")):
            refusal = 401, "a user and a password are needed"
        if refusal is not None:
            await _refuse(send, *refusal)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_encoded(_HEADERS)]
            await send(message)

        await self._application(scope, receive, send_with_headers)

    async def _is_accepted(self, authorization: str) -> bool:
        """Return whether a request has the secret: as the password of HTTP Basic, or as a bearer token."""
        if self._secret is None:
            return True
        kind, _, value = authorization.partition(" ")
        user, password = "", value.strip()
        if kind.lower() == "basic":
            try:
                user, _, password = base64.b64decode(password, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif kind.lower() != "bearer":
            return False
        if await asyncio.to_thread(self._secret.accepts, user, password):
            return True
        await asyncio.sleep(_FAILURE_SECONDS)
        return False


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _refuse(send: Send, status: int, message: str) -> None:
    """Send a refusal as text."""
    headers = {**_HEADERS, "content-type": "text/plain; charset=utf-8"}
    if status == 401:
        headers["www-authenticate"] = 'Basic realm="flowctl", charset="UTF-8"'
    await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": f"{message}\n".encode()})
