"""pytest takes fixtures from here; mypy, which knows one conftest, checks them where they are written."""

from conformance_fixtures import client, loading, subject, transactional

__all__ = ["client", "loading", "subject", "transactional"]
