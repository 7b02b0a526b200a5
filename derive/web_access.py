"""Requests that HTTP servers of this package refuse, because another site may have caused them.

A page of another site can make a browser send requests to a server of this machine, also under a name of that site (DNS
rebinding). So each request must name a host of the server, and a request that another site has caused is refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"", "0.0.0.0", "::"})


def host_of(text: str) -> str:
    """Return the host of `HOST:PORT` in lower case, without the brackets of an IPv6 address.

    >>> host_of("Localhost:8080"), host_of("[::1]:8080"), host_of("example.org")
    ('localhost', '::1', 'example.org')
    """
    host = text.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address of this machine."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)} if host else set()
    except OSError:
        return True  # a later call fails with a better message
    return bool(addresses) and all(ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


def port_hint(option: str) -> str:
    """Return the hint for a port that cannot be used, with the option that gives the address."""
    return f"another process may use the port: give another one with {option}, or port 0 for any that is free"


def listening_failure(error: OSError) -> str:
    """Return the reason why a server cannot listen, in the words of the operating system alone."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a server, as requests name them.

    Attributes:
        names: host names and addresses, in lower case.
        option: the option that adds a name, for messages.
        takes_addresses: whether every IP address is a host of the server. A rebound name is no address, so this is
            safe, and monitoring systems that find their targets use addresses.
    """

    names: frozenset[str]
    option: str
    takes_addresses: bool = False

    @staticmethod
    def of(host: str, names: Collection[str], option: str, *, takes_addresses: bool = False) -> Hosts:
        """Return the hosts of a server.

        Args:
            host: the name or address that the server listens at.
            names: further host names under which clients use the server.
            option: as in the attribute.
            takes_addresses: whether every IP address is a host of a server that listens at all addresses.
        """
        own = set() if host in WILDCARDS else {host.lower()}
        loopback = LOOPBACK_HOSTS if is_loopback(host) else frozenset()
        named = frozenset({name.lower() for name in names} | own | loopback)
        return Hosts(named, option, takes_addresses and host in WILDCARDS)

    def refusal(
        self, method: str, headers: Mapping[str, str], names: Collection[str], scheme: str
    ) -> tuple[int, str] | None:
        """Return the status and the message for a request that another site may have caused; None for others.

        Args:
            method: method of the request.
            headers: headers by name, in lower case.
            names: names of all headers, in lower case.
            scheme: `http` or `https`.
        """
        host = headers.get("host", "")
        if list(names).count("host") != 1 or not self._has(host_of(host)):
            return 421, f"this server has no host {host!r}: give its name with {self.option}"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scheme}://{host.lower()}":
            return 403, f"a page of {origin} may not use this server"
        is_link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_link:
            return 403, "a page of another site may not use this server"
        return None

    def _has(self, host: str) -> bool:
        return host in self.names or (self.takes_addresses and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
