"""Names of columns for fields, and quoting of names.

A field may have any name, but databases limit the length of names and reserve words. A name that the database would
refuse or silently shorten gets a suffix that depends on the whole name only, so that a field's column always has the
same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

_ENDING = 10


def quote(name: str) -> str:
    """Return a name as a quoted identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Naming:
    """The rules of a database's names.

    Attributes:
        most_bytes: maximum bytes of a name in UTF-8; the database cuts off or refuses longer names.
        taken: reserved names of columns.
        fold: function whose results are equal for names that the database does not distinguish.
    """

    most_bytes: int = 1000
    taken: frozenset[str] = frozenset()
    fold: Callable[[str], str] = str

    def column(self, field: str) -> str:
        """Return the name of a field's column."""
        if self.refusal(field) is None and self.fold(field) not in self.taken:
            return field
        digest = hashlib.sha256(field.encode("utf-8", "surrogatepass")).hexdigest()[:_ENDING]
        clean = field.replace("\0", "").encode("utf-8", "ignore")[: self.most_bytes - _ENDING - 1]
        return f"{clean.decode('utf-8', 'ignore')}_{digest}"

    def refusal(self, name: str) -> str | None:
        """Return the reason why the database refuses a name; None if it accepts the name."""
        if not name:
            return "it is empty"
        if "\0" in name:
            return "it has a NUL character"
        if len(name.encode("utf-8", "surrogatepass")) > self.most_bytes:
            return f"it is longer than {self.most_bytes} bytes"
        return None
