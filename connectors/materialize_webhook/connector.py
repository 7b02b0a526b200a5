"""The webhook connector: its configuration, constraints that admit whole documents, and transactions as requests.

Documents are stored on disk until the commit, which posts them in order. If one request fails, the commit fails, and
the runtime sends the same documents again, so each document is posted at least once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from threading import Event

from connectors.kit import (
    Application,
    ConnectorSpec,
    Constraint,
    ConstraintType,
    DriverCheckpoint,
    Field,
    Opening,
    StoredRows,
    ValidatedBinding,
    Validation,
    Value,
)
from connectors.materialize_webhook.sender import (
    ENDPOINT_SCHEMA,
    RESOURCE_SCHEMA,
    CancelledError,
    Sender,
    WebhookConfig,
)
from derive.errors import EndpointError, EndpointGoneError

_MOST_IN_MEMORY = 16 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one request.

    Attributes:
        binding: index of their binding.
        is_deletion: whether their keys are deleted.
        length: size of the body in bytes.
    """

    binding: int
    is_deletion: bool
    length: int


@dataclass(slots=True)
class _BatchToBe:
    """Documents collected for the next request."""

    documents: list[bytes] = field(default_factory=list)
    size: int = 0


class WebhookSession:
    """Transactions of one range of keys.

    Attributes:
        checkpoint: empty: the runtime stores the checkpoint itself.
    """

    checkpoint = b""

    def __init__(self, opening: Opening, config: WebhookConfig) -> None:
        self._name = opening.materialization.name
        self._bindings = opening.materialization.bindings
        self._range = f"{opening.key_begin:08x}-{opening.key_end:08x}"
        self._config = config
        self._cancelled = Event()
        self._sender = Sender(config, self._cancelled.wait)
        self._checkpoint = b""
        self._waiting = SpooledTemporaryFile(_MOST_IN_MEMORY)  # noqa: SIM115 (closed with the session)
        self._batches: list[Batch] = []
        self._batches_to_be: dict[tuple[int, bool], _BatchToBe] = {}

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Raise an error: all bindings have delta updates."""
        raise EndpointError("webhooks have delta updates only")

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Return no documents."""
        return iter(())

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        """Set the checkpoint, which distinguishes the requests of this transaction from other requests."""
        self._checkpoint = flow_checkpoint
        return None

    def store(self, binding: int, rows: StoredRows) -> None:
        """Add documents for the commit."""
        for document, is_deletion in zip(rows.documents, rows.deleted, strict=True):
            batch = self._batches_to_be.setdefault((binding, is_deletion), _BatchToBe())
            is_full = batch.size + len(document) > self._config.batch_bytes
            if batch.documents and (is_full or len(batch.documents) == self._config.batch_documents):
                self._end_batch(binding, is_deletion=is_deletion)
            batch.documents.append(document)
            batch.size += len(document)

    def commit(self) -> None:
        """Post the added documents."""
        for binding, is_deletion in list(self._batches_to_be):
            self._end_batch(binding, is_deletion=is_deletion)
        self._batches_to_be.clear()
        self._waiting.seek(0)
        for index, batch in enumerate(self._batches):
            self._post(index, batch, self._waiting.read(batch.length))
        self._batches = []
        self._waiting.seek(0)
        self._waiting.truncate()

    def cancel(self) -> None:
        """Stop repetitions, because a successor posts newer documents, and older documents must not follow them."""
        self._cancelled.set()
        self._sender.interrupt()

    def close(self) -> None:
        """Discard the added documents."""
        self._sender.close()
        self._waiting.close()

    def _end_batch(self, binding: int, *, is_deletion: bool) -> None:
        """Write a batch to disk as a JSON array."""
        batch = self._batches_to_be[binding, is_deletion]
        body = b"[" + b",".join(batch.documents) + b"]"
        self._waiting.write(body)
        self._batches.append(Batch(binding, is_deletion, len(body)))
        batch.documents, batch.size = [], 0

    def _post(self, index: int, batch: Batch, body: bytes) -> None:
        binding = self._bindings[batch.binding]
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": self._identity(index, body),
            "Flow-Materialization": _as_header(self._name),
            "Flow-Collection": _as_header(binding.collection.name),
            "Flow-Operation": "delete" if batch.is_deletion else "store",
        }
        try:
            self._sender.post(binding.resource.get("path", ""), body, headers)
        except CancelledError:
            raise EndpointGoneError("the stream ended while documents were posted") from None

    def _identity(self, index: int, body: bytes) -> str:
        """Return an identifier that is the same for all repetitions of a request, in any process."""
        identity = hashlib.sha256()
        for part in (self._name.encode(), self._range.encode(), self._checkpoint, b"%d" % index, body):
            identity.update(b"%d:" % len(part) + part)
        return identity.hexdigest()


def _as_header(name: str) -> str:
    """Return a name in the form that headers allow: UTF-8, with one character per byte."""
    return name.encode().decode("latin-1")


class WebhookConnector:
    """A connector that posts the documents of each transaction."""

    name = "materialize-webhook"

    def spec(self) -> ConnectorSpec:
        """Return the configuration schemas."""
        return ConnectorSpec(ENDPOINT_SCHEMA, RESOURCE_SCHEMA, "docs/materialize-connectors.md#webhook")

    def validate(self, request: Validation) -> list[ValidatedBinding]:
        """Return bindings of whole documents, without a request to the address."""
        return [
            ValidatedBinding(
                resource_path=(binding.resource.get("path") or "/",),
                constraints={name: _constraint(field) for name, field in binding.collection.fields.items()},
                delta_updates=True,
            )
            for binding in request.bindings
        ]

    def apply(self, request: Application) -> str:
        """Return an empty text: an address needs no preparation."""
        return ""

    def open(self, opening: Opening) -> WebhookSession:
        """Open a session."""
        return WebhookSession(opening, WebhookConfig(**opening.materialization.config))


def _constraint(field: Field) -> Constraint:
    if field.is_key:
        return Constraint(ConstraintType.LOCATION_REQUIRED, "it is part of the key")
    if not field.pointer:
        return Constraint(ConstraintType.FIELD_REQUIRED, "whole documents are posted")
    return Constraint(ConstraintType.FIELD_FORBIDDEN, "whole documents are posted, which contain the field")
