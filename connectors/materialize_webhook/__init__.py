"""Materialization by posting documents to an address, at least once."""

from connectors.materialize_webhook.connector import WebhookConnector as WebhookConnector
