"""Failures of SQL: the exceptions that SQL may raise, and their reasons in words."""

from __future__ import annotations

import apsw

from derive.document.exact import dump_exact
from derive.errors import LambdaError
from derive.lambda_sql.guard import Guard
from derive.lambda_sql.watch import MEMORY_HINT, TIMEOUT_HINT, Watch
from derive.protocol.specs import Document

ENVIRONMENT = (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.ReadOnlyError)
"""Errors of the machine; the runtime, which opened the database, explains them."""

FAILURES = (apsw.Error, OverflowError, UnicodeDecodeError)
"""Exceptions that SQL raises: SQLite's own, and errors of converting integers and texts between SQLite and Python."""

_SHOWN_BYTES = 40


def reason_of(exc: Exception, guard: Guard, watch: Watch) -> str:
    """Return the reason of a failure, as a text to follow the name of the failed part."""
    if isinstance(exc, LambdaError):
        return exc.message
    if _is_outgrown(exc, watch):
        return f"it needs more memory than the {watch.megabytes} MB it may take"
    if isinstance(exc, apsw.InterruptError):
        return f"it took longer than {watch.seconds:g} s"
    if isinstance(exc, apsw.AuthError) and guard.refusal:
        return f"it {guard.refusal}"
    if isinstance(exc, UnicodeDecodeError):
        return f"it made text that is not valid UTF-8: {exc.object[:_SHOWN_BYTES]!r}"
    return str(exc)


def _is_outgrown(exc: Exception, watch: Watch) -> bool:
    return isinstance(exc, apsw.NoMemError) or (isinstance(exc, apsw.InterruptError) and watch.outgrown)


def hint_of(exc: Exception, watch: Watch) -> str | None:
    """Return a hint with the option to raise the exceeded limit; None if no limit was exceeded."""
    if _is_outgrown(exc, watch):
        return MEMORY_HINT
    return TIMEOUT_HINT if isinstance(exc, apsw.InterruptError) else None


def show_document(document: Document, most: int) -> str:
    """Return a document's JSON, cut if it is longer than `most` characters."""
    shown = dump_exact(document).decode()
    return shown if len(shown) <= most else f"{shown[:most]}…"
