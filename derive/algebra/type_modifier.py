"""Type modifiers of columns, declared or derived for an expression: the display of values that are equal otherwise.

A row stores no scale, and no trailing spaces of `character(n)`: equal values have equal data, so that insertions and
deletions of rows cancel out and groups need no representative. The number of displayed zeros and spaces follows from
the query alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ModifiedType(Enum):
    """Types of PostgreSQL that have modifiers, or share the data of another type; the value is the name in messages."""

    NUMERIC = "numeric"
    VARCHAR = "character varying"
    BPCHAR = "character"
    NAME = "name"
    CHAR = '"char"'
    FLOAT4 = "real"
    INT2VECTOR = "int2vector"
    OIDVECTOR = "oidvector"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class TypeModifier:
    """A type modifier: how values of a column are stored and displayed.

    Attributes:
        name: the type.
        size: maximum digits of a number, or characters of a text; 0 for no limit.
        scale: minimum number of displayed digits after the decimal point, for numbers.
    """

    name: ModifiedType
    size: int
    scale: int = 0

    @property
    def typmod(self) -> int:
        """Return PostgreSQL's encoding of the modifier; -1 for none."""
        if not self.size:
            return -1
        return (self.size << 16 | self.scale & 0x7FF) + 4 if self.name is ModifiedType.NUMERIC else self.size + 4

    @property
    def is_type(self) -> bool:
        """Return whether the modifier only names a type that shares the data of another type."""
        return self.name not in {ModifiedType.NUMERIC, ModifiedType.VARCHAR, ModifiedType.BPCHAR}

    @property
    def is_vector(self) -> bool:
        """Return whether values are vectors of the catalogs: arrays whose elements are counted from 0."""
        return self.name in {ModifiedType.INT2VECTOR, ModifiedType.OIDVECTOR}

    @property
    def text(self) -> str:
        """Return the type with its modifier in SQL syntax."""
        if not self.size:
            return self.name.value
        return f"{self.name.value}({self.size}{f',{self.scale}' if self.name is ModifiedType.NUMERIC else ''})"

    def shown(self, text: str) -> str:
        """Return the text of a value as it is sent to clients."""
        if self.name is ModifiedType.BPCHAR:
            return text.ljust(self.size)
        if self.is_vector:
            return text.strip("{}").replace(",", " ")
        if self.name is ModifiedType.VARCHAR or self.scale <= 0 or not text[-1].isdigit():
            return text
        before, _, behind = text.partition(".")
        return f"{before}.{behind.ljust(self.scale, '0')}"


def number(scale: int) -> TypeModifier:
    """Return the modifier of a number of any size with this number of displayed digits after the decimal point."""
    return TypeModifier(ModifiedType.NUMERIC, 0, scale)
