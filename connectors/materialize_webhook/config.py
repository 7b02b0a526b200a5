"""Configuration of a webhook."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from derive.protocol.specs import JSON

ENDPOINT_SCHEMA: JSON = {
    "title": "Webhook",
    "type": "object",
    "required": ["address"],
    "properties": {
        "address": {
            "type": "string",
            "pattern": r"^https?://([^/?#\s\\@:\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[^\s\\?#]*)?(\?[^\s\\#]*)?$",
            "secret": True,
            "description": "Where documents are posted to, by https or http.",
        },
        "headers": {
            "type": "object",
            "propertyNames": {"pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"},
            "additionalProperties": {"type": "string", "pattern": "^[\\t -~]*$", "secret": True},
            "description": "Headers of every request, such as Authorization.",
        },
        "timeout_seconds": {"type": "number", "exclusiveMinimum": 0, "description": "For one whole answer."},
        "retry_seconds": {"type": "number", "minimum": 0, "description": "For how long a request is repeated."},
        "batch_documents": {"type": "integer", "minimum": 1, "description": "The most documents in one request."},
        "batch_bytes": {"type": "integer", "minimum": 1, "description": "The most bytes, unless of one document."},
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
            "description": "Is put behind the address, and a slash between them.",
        },
        "delta_updates": {"const": True, "description": "Documents are only posted: there is no other way."},
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
