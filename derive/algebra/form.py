"""What is declared of a column beyond its type, or follows for an expression: how values look that are equal otherwise.

A row holds no scale, and no spaces at the end of `character(n)`: data of equal values are equal, so that rows that come
and go cancel out and groups need no representative. How many zeros and spaces are shown follows from the query alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FormName(Enum):
    """Types of PostgreSQL that have modifiers; the value is what messages call them."""

    NUMERIC = "numeric"
    VARCHAR = "character varying"
    BPCHAR = "character"


@dataclass(frozen=True, slots=True)
class Form:
    """How values of a column are stored and shown.

    Attributes:
        name: of the type.
        size: digits of a number, or characters of a text; 0 for any.
        scale: of a number, how many digits behind the point are shown at least.
    """

    name: FormName
    size: int
    scale: int = 0

    @property
    def modifier(self) -> int:
        """As PostgreSQL has it; -1 for none."""
        if not self.size:
            return -1
        return (self.size << 16 | self.scale & 0x7FF) + 4 if self.name is FormName.NUMERIC else self.size + 4

    @property
    def text(self) -> str:
        """As SQL has it."""
        if not self.size:
            return self.name.value
        return f"{self.name.value}({self.size}{f',{self.scale}' if self.name is FormName.NUMERIC else ''})"

    def shown(self, text: str) -> str:
        """The text of a value as clients are sent it."""
        if self.name is FormName.BPCHAR:
            return text.ljust(self.size)
        if self.name is FormName.VARCHAR or self.scale <= 0 or not text[-1].isdigit():
            return text
        before, _, behind = text.partition(".")
        return f"{before}.{behind.ljust(self.scale, '0')}"


def number(scale: int) -> Form:
    """A number of any size that is shown with so many digits behind the point."""
    return Form(FormName.NUMERIC, 0, scale)
