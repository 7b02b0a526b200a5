"""What a connector raises, as the error with which a method ends."""

from __future__ import annotations

import logging

from derive.errors import FlowError, InternalError

_log = logging.getLogger(__name__)


def error_of(exc: Exception) -> FlowError:
    """The error itself, or that of a defect, of which the traceback goes to standard error."""
    if isinstance(exc, FlowError):
        return exc
    _log.error("a defect of the connector", exc_info=exc)
    return InternalError(f"a defect of the connector: {type(exc).__name__}: {exc}")
