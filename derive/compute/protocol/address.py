"""Addresses of compute instances, and whether the credentials allow their use."""

from __future__ import annotations

from derive.compute.protocol.security import Security
from derive.errors import UsageError

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_PORT = 65_535


def place_of(address: str, option: str, security: Security, *, listens: bool = False) -> tuple[str, int]:
    """Return the host and the port of an instance.

    Args:
        address: `host:port`.
        option: name of the option with the address.
        security: credentials of both ends.
        listens: whether the instance listens there: port 0 then picks a free one.

    Raises:
        UsageError: the address is malformed, or the connection would not be authenticated.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > _MOST_PORT or not host:
        raise UsageError(f"{option} takes HOST:PORT, and not {address}", hint="such as 127.0.0.1:6876")
    if int(port) == 0 and not listens:
        raise UsageError(f"nobody can be reached at port 0 of {host}", hint="give the port that the instance has told")
    if host.strip("[]") not in _LOOPBACK and security.token is None and security.authority is None:
        raise UsageError(
            f"{host} is not this machine alone, and whoever reaches an instance could read the data folder",
            hint="give both ends a token in a file, or certificates for TLS and an authority that has signed them",
        )
    return host.strip("[]"), int(port)


def place_named(address: str) -> str:
    """Return a valid address in canonical form, for comparisons."""
    host, _, port = address.rpartition(":")
    return f"{'127.0.0.1' if host.lower() == 'localhost' else host.lower()}:{int(port)}"
