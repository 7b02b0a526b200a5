"""Documents as columns: the values of many documents with the same properties, by property.

A check of a whole column (for example, that it has only texts) replaces a check of each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from operator import countOf, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from derive.document.pointer import JSON, MISSING, compile_pointer, escape
from derive.document.written_column import WrittenColumn

if TYPE_CHECKING:
    import numpy as np

Kinds: TypeAlias = "frozenset[type[Any]]"
"""Python types of some values: a superset of the types that occur."""

_NUMBERS = frozenset({float, int})


@dataclass(frozen=True, slots=True)
class Columns:
    """Documents with the same properties in the same order, at least one.

    Attributes:
        names: distinct names of the properties.
        values: values of each property, one per document.
        kinds: types of the values of each property.
    """

    names: tuple[str, ...]
    values: tuple[Sequence[JSON], ...]
    kinds: tuple[Kinds, ...]

    @staticmethod
    def of(names: tuple[str, ...], values: Sequence[Sequence[JSON]]) -> Columns:
        """Return columns of names and values."""
        return Columns(names, tuple(values), tuple(map(kinds_of, values)))

    @staticmethod
    def of_documents(documents: Sequence[dict[str, JSON]]) -> Columns | None:
        """Return columns of documents, at least one; None if they differ in properties or in their order."""
        names = tuple(documents[0])
        if not names or countOf(map(tuple, documents), names) < len(documents):
            return None
        return Columns.of(names, [list(map(itemgetter(name), documents)) for name in names])

    def __len__(self) -> int:
        return len(self.values[0])

    def slice(self, begin: int, end: int) -> Columns:
        """Return the documents with indices in `[begin, end)`."""
        return Columns(self.names, tuple(column[begin:end] for column in self.values), self.kinds)

    def take(self, numbers: np.ndarray) -> Columns:
        """Return the documents with these indices, in their order."""
        if len(numbers) < 2:
            begin = int(numbers[0]) if len(numbers) else 0
            return self.slice(begin, begin + len(numbers))
        pick = itemgetter(*numbers.tolist())
        taken = [column.take(numbers) if type(column) is WrittenColumn else pick(column) for column in self.values]
        return Columns(self.names, tuple(taken), self.kinds)

    def replace(self, index: int, values: Sequence[JSON]) -> Columns:
        """Return the same documents with other values of one property."""
        column, kinds = (values,), (kinds_of(values),)
        return Columns(
            self.names,
            (*self.values[:index], *column, *self.values[index + 1 :]),
            (*self.kinds[:index], *kinds, *self.kinds[index + 1 :]),
        )

    def at(self, tokens: tuple[str, ...]) -> tuple[Sequence[JSON], Kinds]:
        """Return the values at a location, by the tokens of its pointer, and their types; `MISSING` where absent."""
        if not tokens:
            return self.documents(), frozenset({dict})
        name, *below = tokens
        if name not in self.names:
            return [MISSING] * len(self), frozenset({type(MISSING)})
        index = self.names.index(name)
        if not below:
            return self.values[index], self.kinds[index]
        get = compile_pointer("".join(f"/{escape(token)}" for token in below))
        values = list(map(get, self.values[index]))
        return values, frozenset(map(type, values))

    def documents(self) -> list[dict[str, JSON]]:
        """Return the documents as objects."""
        names = self.names
        return [dict(zip(names, row, strict=True)) for row in zip(*self.values, strict=True)]


def kinds_of(column: Sequence[JSON]) -> Kinds:
    """Return the types of a column's values."""
    return column.kinds if type(column) is WrittenColumn else frozenset(map(type, column))


def are_finite(column: Sequence[JSON], kinds: Kinds) -> bool:
    """Return true if certainly no number of a column is infinite or NaN.

    Such a number makes the sum infinite or NaN.
    """
    if type(column) is WrittenColumn:
        return True
    try:
        return isfinite(sum(column if kinds <= _NUMBERS else [value for value in column if type(value) is float]))
    except OverflowError:
        return False
