"""Written columns: values of a property in JSON text that Arrow has parsed as a whole.

Most published texts and numbers are only packed into keys, stored in typed columns and written. Python objects are
created for their values on demand only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final, overload

from derive.document.pointer import JSON

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


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
