"""The webhook connector: its configuration, and constraints that admit whole documents only."""

from __future__ import annotations

from connectors.kit import (
    Application,
    ConnectorSpec,
    Constraint,
    ConstraintType,
    Field,
    Opening,
    ValidatedBinding,
    Validation,
)
from connectors.materialize_webhook.sender import ENDPOINT_SCHEMA, RESOURCE_SCHEMA, WebhookConfig
from connectors.materialize_webhook.session import WebhookSession


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
    return Constraint(ConstraintType.FIELD_FORBIDDEN, "whole documents are posted, which have it")
