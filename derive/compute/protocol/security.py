"""Authentication of both ends of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from derive.compute.protocol.transport import SessionContext

_TOKEN = "authorization"


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials of machines. Without any, both ends must be on one machine.

    Attributes:
        token: a shared secret.
        certificate: PEM of this end's certificate, for mutual TLS.
        key: PEM of its private key.
        authority: PEM of the certificate that signs those of others.
    """

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    authority: bytes | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a client's call."""
        return ((_TOKEN, f"Bearer {self.token}"),) if self.token else ()

    def is_known(self, context: SessionContext) -> bool:
        """Return whether a client has sent the token."""
        import hmac

        if self.token is None:
            return True
        said = dict(context.invocation_metadata() or ()).get(_TOKEN, "")
        return hmac.compare_digest(said if isinstance(said, bytes) else said.encode(), f"Bearer {self.token}".encode())


OPEN = Security()
"""No credentials: both ends are on one machine."""
