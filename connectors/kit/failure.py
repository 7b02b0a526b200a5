"""Conversion of a connector's exceptions to the error with which a method ends."""

from __future__ import annotations

import logging

from derive.errors import FlowError, InternalError

_log = logging.getLogger(__name__)


def error_of(exc: Exception) -> FlowError:
    """Return a FlowError unchanged; log the traceback of any other exception, and return an internal error."""
    if isinstance(exc, FlowError):
        return exc
    _log.error("a defect of the connector", exc_info=exc)
    return InternalError(f"a defect of the connector: {type(exc).__name__}: {exc}")
