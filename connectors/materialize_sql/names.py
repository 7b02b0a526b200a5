"""Names: what a field's column is called, and how a name is quoted.

A field may be called anything, and a database has limits: of length, of words that it keeps for itself. A name that it
would not take, or would silently shorten, gets an ending that depends on the whole name and nothing else, so that a
field's column is called the same for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

_ENDING = 10


def quote(name: str) -> str:
    """A name as an identifier of SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Naming:
    """How a database takes names.

    Attributes:
        most_bytes: of a name in UTF-8; what is longer would be cut off, or refused.
        taken: names that no column may have.
        fold: what two names have in common if the database takes them for one.
    """

    most_bytes: int = 1000
    taken: frozenset[str] = frozenset()
    fold: Callable[[str], str] = str

    def column(self, field: str) -> str:
        """The name of a field's column."""
        if self.refusal(field) is None and self.fold(field) not in self.taken:
            return field
        digest = hashlib.sha256(field.encode("utf-8", "surrogatepass")).hexdigest()[:_ENDING]
        clean = field.replace("\0", "").encode("utf-8", "ignore")[: self.most_bytes - _ENDING - 1]
        return f"{clean.decode('utf-8', 'ignore')}_{digest}"

    def refusal(self, name: str) -> str | None:
        """Why the database does not take a name as it is; None if it does."""
        if not name:
            return "it is empty"
        if "\0" in name:
            return "it has a NUL character"
        if len(name.encode("utf-8", "surrogatepass")) > self.most_bytes:
            return f"it is longer than {self.most_bytes} bytes"
        return None
