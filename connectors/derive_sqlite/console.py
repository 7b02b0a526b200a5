"""The function `console_log` of lambdas: messages in the task's log, with the transform and the document.

The name is not `log`, because SQLite has a function `log`, the logarithm. The function returns its argument. A message
does not change the documents that a lambda publishes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence

import apsw

from derive.document.exact import dump_exact
from derive.lambda_sql.determinism import CONSOLE_LOG
from derive.lambda_sql.guard import show_document
from derive.protocol.derive import Log
from derive.protocol.specs import Document

MOST_MESSAGES = 100
"""Maximum number of messages of one document."""

_MOST_DOCUMENT, _MOST_MESSAGE = 500, 5_000
"""Maximum number of characters of a document, and of a value."""


def mentions_console(texts: Iterable[str]) -> bool:
    """Return whether any SQL text may call `console_log`; a comment that mentions it counts, too."""
    return any(CONSOLE_LOG in text.lower() for text in texts)


class Console:
    """The messages of the current document.

    Args:
        log: receives messages.
        transforms: names of the transforms, by index.
    """

    def __init__(self, log: Log, transforms: Sequence[str]) -> None:
        self._log = log
        self._transforms = transforms
        self._document: tuple[int, Document] | None = None
        self._count = 0

    def begin(self, transform: int, clock: int, document: Document) -> None:
        """Start with another document; migrations run before the first document.

        Args:
            transform: index of the transform that reads the document.
            clock: adjusted timestamp of the document, microseconds.
            document: the document.
        """
        self._document, self._count = (transform, document), 0

    def register(self, database: apsw.Connection) -> None:
        """Add the function to a connection. Triggers and views cannot call the function, because they are stored."""
        database.create_scalar_function(CONSOLE_LOG, self._say, 1, flags=apsw.SQLITE_DIRECTONLY)

    def _say(self, *arguments: apsw.SQLiteValue) -> apsw.SQLiteValue:
        (value,) = arguments
        self._count += 1
        if self._count <= MOST_MESSAGES:
            self._log("info", f"{_shown(value)[:_MOST_MESSAGE]}  ({self._place()})")
        elif self._count == MOST_MESSAGES + 1:
            self._log("warn", f"further messages of this document are left out  ({self._place()})")
        return value

    def _place(self) -> str:
        """Return the transform and the document of a message, in words."""
        if self._document is None:
            return "in a migration"
        transform, document = self._document
        return f"transform '{self._transforms[transform]}', document {show_document(document, _MOST_DOCUMENT)}"


def _shown(value: apsw.SQLiteValue) -> str:
    """Return a value of SQL as text: a text unchanged, a BLOB in base64, and other values as JSON."""
    if isinstance(value, str):
        return value
    return dump_exact(b64encode(value).decode() if isinstance(value, bytes) else value).decode()
