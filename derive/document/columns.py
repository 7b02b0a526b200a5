"""Documents as columns: the values of many documents with the same properties, by property.

Most published texts and numbers are only packed into keys, stored in typed columns and
written. Python objects are created for their values on demand only.

A check of a whole column (for example, that it has only texts) replaces a check of each value.

`spare_pandas` lets Arrow work without pandas, whose import takes longer than most commands. Before it creates an array,
Arrow checks for pandas values, and imports pandas if it is installed, as PySpark requires. This runtime has no values
of pandas. The check is therefore run once while pandas cannot be imported, and Arrow caches its result. Later imports
of pandas succeed, and Arrow's conversions to pandas work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import countOf, itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, final, overload

from derive.document.pointer import JSON, MISSING, compile_pointer, escape

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


_OFFSET_BYTES = 4
"""Size of an offset of Arrow's texts."""

_AROUND = 5
"""Approximate number of quotes, colons and commas around a property's name and value."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class WrittenColumn(Sequence[JSON]):
    """Values that are all texts, or all numbers.

    Compare types instead of using `isinstance`, which is slow for a `Sequence`.

    Attributes:
        array: the values without nulls, as texts or as doubles, which are exact.
        numbers: JSON text of each number, as `dump_exact` writes it; None for texts.
        is_integer: mask of the integers; None if there are none.
    """

    array: pa.Array
    numbers: pa.Array | None = None
    is_integer: np.ndarray | None = None
    _listed: list[list[JSON]] = field(default_factory=list)  # the Python values, once they are requested

    @property
    def kinds(self) -> frozenset[type[Any]]:
        """Return the Python types of the values."""
        if self.numbers is None:
            return frozenset({str})
        if self.is_integer is None or not self.is_integer.any():
            return frozenset({float})
        return frozenset({int}) if self.is_integer.all() else frozenset({int, float})

    def take(self, numbers: np.ndarray) -> WrittenColumn:
        """Return the values with these indices, in their order."""
        texts = None if self.numbers is None else self.numbers.take(numbers)
        return WrittenColumn(
            self.array.take(numbers), texts, None if self.is_integer is None else self.is_integer[numbers]
        )

    def text_bytes(self) -> int:
        """Return the approximate size of the values as texts."""
        texts = self.array if self.numbers is None else self.numbers
        return int(texts.nbytes) - _OFFSET_BYTES * len(texts)

    def packable(self) -> pa.Array | list[JSON]:
        """Return the values: as an array if all are texts or all are integers, else as a list."""
        if self.numbers is None:
            return self.array
        return self.array.cast("int64") if self.kinds == {int} else self.values()

    def values(self) -> list[JSON]:
        """Return the values as Python objects."""
        if not self._listed:
            self._listed.append(self._made())
        return self._listed[0]

    def _made(self) -> list[JSON]:
        values: list[JSON] = self.array.to_pylist()
        if self.is_integer is not None:
            for row in self.is_integer.nonzero()[0].tolist():
                values[row] = int(values[row])
        return values

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> JSON: ...

    @overload
    def __getitem__(self, index: slice) -> WrittenColumn: ...

    def __getitem__(self, index: int | slice) -> JSON:
        if not isinstance(index, slice):
            return self.values()[index]
        texts = None if self.numbers is None else self.numbers[index]
        return WrittenColumn(self.array[index], texts, None if self.is_integer is None else self.is_integer[index])

    def __iter__(self) -> Iterator[JSON]:
        return iter(self.values())


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

    def text_bytes(self) -> int | None:
        """Return the approximate size of the documents as JSON texts; None if some values are objects of Python."""
        if any(type(column) is not WrittenColumn for column in self.values):
            return None
        names = sum(map(len, self.names)) + _AROUND * len(self.names)
        return len(self) * names + sum(column.text_bytes() for column in self.values if type(column) is WrittenColumn)

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


class _NoPandas:
    """An import finder that reports pandas as missing."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise the error of a missing module for pandas, and leave other modules to the other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def spare_pandas() -> None:
    """Make Arrow create arrays without pandas from now on, unless pandas is already imported."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
