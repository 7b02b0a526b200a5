"""What a webhook is configured with."""

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
    """What a webhook is configured with.

    Attributes:
        address: where documents are posted to. It may be a secret; `host` is what messages show.
        headers: of every request.
        timeout_seconds: for one whole answer; as long for connecting, and for sending.
        retry_seconds: for how long a request is repeated that has failed.
        batch_documents: the most documents in one request.
        batch_bytes: the most bytes of documents in one, unless it has only one.
    """

    address: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 30.0
    retry_seconds: float = 300.0
    batch_documents: int = 1000
    batch_bytes: int = 1 << 20

    @property
    def host(self) -> str:
        """Host and port, without anything that may be secret."""
        return urlsplit(self.address).netloc
