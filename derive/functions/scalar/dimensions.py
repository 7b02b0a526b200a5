"""Functions of arrays with several dimensions; `derive.functions.scalar.array` calls them for such arrays only.

PostgreSQL stores the elements of all dimensions row by row, and so do the data of arrays here. A row is the part of an
array at one subscript of the first dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.types.array import EMPTY, MOST_DIMENSIONS, Elements, Sizes, array_of, elements_of, sizes_of
from derive.functions.types.array_literal import too_many_dimensions
from derive.functions.types.type_info import INFO_OF


@dataclass(frozen=True, slots=True)
class Array:
    """An array of any number of dimensions.

    Attributes:
        elements: the elements, row by row.
        sizes: the sizes of the dimensions; none if the array is empty.

    >>> Array((1, 2, 3, 4), (2, 2)).rows()
    [(1, 2), (3, 4)]
    """

    elements: Elements
    sizes: Sizes

    @classmethod
    def of(cls, element: Type, datum: bytes) -> Array:
        """Return the array of a datum."""
        elements = elements_of(element, datum)
        return cls(elements, sizes_of(element, datum) or ((len(elements),) if elements else ()))

    def datum(self, element: Type) -> bytes:
        """Return the datum of the array."""
        return array_of(element, self.elements, self.sizes if self.elements else ())

    def rows(self) -> list[Elements]:
        """Return the elements of each row."""
        if not self.elements:
            return []
        size = len(self.elements) // self.sizes[0]
        return [self.elements[begin : begin + size] for begin in range(0, len(self.elements), size)]

    def of_rows(self, rows: Sequence[Elements]) -> Array:
        """Return an array of rows that have the sizes of this array's rows."""
        return Array(tuple(element for row in rows for element in row), (len(rows), *self.sizes[1:]))

    def size(self, dimension: int) -> int | None:
        """Return the size of a dimension, counted from 1; None if the array lacks it."""
        return self.sizes[dimension - 1] if 1 <= dimension <= len(self.sizes) else None


Part: TypeAlias = tuple[int, int]
"""The first and the last subscript of a slice."""

MOST_FILLED = 1_000_000
"""Maximum number of elements that `array_fill` makes."""


def concatenated(left: Array | None, right: Array | None) -> Array | None:
    """Return `left || right`: the rows of both, or the rows of one and the other as a row.

    Raises:
        SqlError: 2202E, the dimensions differ.
    """
    if left is None or not left.elements:
        return left if right is None else right
    if right is None or not right.elements:
        return left
    deeper = left if len(left.sizes) >= len(right.sizes) else right
    ends = [one.sizes[1:] if len(one.sizes) == len(deeper.sizes) else one.sizes for one in (left, right)]
    difference = abs(len(left.sizes) - len(right.sizes))
    if difference > 1 or any(end != deeper.sizes[1:] for end in ends):
        if difference > 1:
            detail = f"Arrays of {len(left.sizes)} and {len(right.sizes)} dimensions"
        else:
            detail = "Arrays with differing dimensions" if difference else "Arrays with differing element dimensions"
        detail += " are not compatible for concatenation."
        raise SqlError("2202E", "cannot concatenate incompatible arrays", detail=detail)
    count = sum(one.sizes[0] if len(one.sizes) == len(deeper.sizes) else 1 for one in (left, right))
    return Array(left.elements + right.elements, (count, *deeper.sizes[1:]))


def fail_to_add(*_: Any) -> NoReturn:
    """Refuse to append an element to an array of several dimensions."""
    raise SqlError("22000", "argument must be empty or one-dimensional array", hint="Append an array of one row.")


def fail_to_remove(*_: Any) -> NoReturn:
    """Refuse to remove elements, as PostgreSQL does."""
    message = "removing elements from multidimensional arrays is not supported"
    raise SqlError("0A000", message, hint="Call unnest, and aggregate the rows that remain.")


def fail_to_search(*_: Any) -> NoReturn:
    """Refuse to search for an element, as PostgreSQL does."""
    message = "searching for elements in multidimensional arrays is not supported"
    raise SqlError("0A000", message, hint="Call unnest WITH ORDINALITY.")


def fail_to_find(*_: Any) -> NoReturn:
    """Refuse an array of thresholds."""
    raise SqlError("2202E", "thresholds must be one-dimensional array")


def sorted_rows(element: Type) -> Callable[..., Array]:
    """Return the function that sorts the rows of arrays with such elements."""
    sort_key = INFO_OF[element.array or element].sort_key

    def key(row: Elements) -> Any:
        datum = array_of(element, row)
        return datum if sort_key is None else sort_key(datum)

    def sort(own: Array, is_descending: int = 0, _: int | None = None) -> Array:
        return own.of_rows(sorted(own.rows(), key=key, reverse=bool(is_descending)))

    return sort


def bounds(own: Array) -> str:
    """Return the bounds of all dimensions, such as `[1:2][1:3]`."""
    return "".join(f"[1:{size}]" for size in own.sizes)


def subscripts(own: Array, dimension: int, is_reversed: int = 0) -> bytes:
    """Return the array of the subscripts of a dimension; empty if the array lacks it."""
    ascending = range(1, (own.size(dimension) or 0) + 1)
    return array_of(Type.INTEGER, ascending[::-1] if is_reversed else ascending)


def element(own: Array, places: bytes) -> Datum:
    """Return the element at subscripts; NULL if there is none, or if these are not as many as the dimensions."""
    indexes = elements_of(Type.INTEGER, places)
    if len(indexes) != len(own.sizes):
        return None
    at = 0
    for index, size in zip(indexes, own.sizes, strict=True):
        if not isinstance(index, int) or not 1 <= index <= size:
            return None
        at = at * size + index - 1
    return own.elements[at]


def sliced_rows(own: Array, begin: int, end: int) -> Array:
    """Return the rows of a slice."""
    return _cut(own, [(begin, end)])


def sliced(own: Array, ends: bytes) -> Array | None:
    """Return the part of an array between pairs of subscripts; NULL if a subscript is NULL.

    Args:
        own: the array.
        ends: the first and the last subscript of each dimension; missing dimensions are taken whole.
    """
    listed = elements_of(Type.INTEGER, ends)
    if None in listed:
        return None
    numbers = [int(end) for end in listed if end is not None]
    return _cut(own, list(zip(numbers[::2], numbers[1::2], strict=True)))


def sliced_of_one(_: Elements, ends: bytes) -> Elements | None:
    """Return the slice of an array of one dimension in several dimensions: it is empty."""
    return None if None in elements_of(Type.INTEGER, ends) else ()


def _cut(own: Array, parts: Sequence[Part]) -> Array:
    if len(parts) > len(own.sizes):
        return Array((), ())
    listed = [(max(begin, 1), min(end, size)) for (begin, end), size in zip(parts, own.sizes, strict=False)]
    listed += [(1, size) for size in own.sizes[len(parts) :]]
    sizes = tuple(end - begin + 1 for begin, end in listed)
    if min(sizes) < 1:
        return Array((), ())
    places = [0]
    for (begin, end), size in zip(listed, own.sizes, strict=True):
        places = [place * size + index for place in places for index in range(begin - 1, end)]
    return Array(tuple(own.elements[place] for place in places), sizes)


def filled(element: Datum, sizes: bytes | None, firsts: bytes | None = EMPTY) -> Array:
    """Return an array of one element, repeated.

    Args:
        element: the element.
        sizes: array of the sizes of the dimensions.
        firsts: array of the lower bounds, which must be 1.

    Raises:
        SqlError: a size is NULL (22004), or invalid (2202E or 54000); a bound is not 1 (0A000).
    """
    listed, lower = (_numbers(numbers) for numbers in (sizes, firsts))
    if len(listed) > MOST_DIMENSIONS:
        raise too_many_dimensions(len(listed))
    if any(first != 1 for first in lower):
        raise SqlError("0A000", "lower bounds other than 1 are not supported", hint="Arrays begin with 1.")
    count = math.prod(listed) if listed else 0
    if min(listed, default=0) < 0 or count > MOST_FILLED:
        raise SqlError("54000", f"array size exceeds the maximum allowed ({MOST_FILLED})")
    return Array((element,) * count, tuple(listed) if count else ())


def filled_from(element: Datum, sizes: bytes | None, firsts: bytes | None) -> Array:
    """Return `filled` with a lower bound for each dimension.

    Raises:
        SqlError: 2202E, there are not as many bounds as sizes; as `filled`.
    """
    if len(_numbers(sizes)) != len(_numbers(firsts)):
        detail = "Low bound array has different size than dimensions array."
        raise SqlError("2202E", "wrong number of array subscripts", detail=detail)
    return filled(element, sizes, firsts)


def _numbers(datum: bytes | None) -> list[int]:
    if datum is None:
        raise SqlError("22004", "dimension array or low bound array cannot be null")
    if sizes_of(Type.INTEGER, datum):
        raise SqlError("2202E", "wrong number of array subscripts", detail="Dimension array must be one dimensional.")
    numbers = [number for number in elements_of(Type.INTEGER, datum) if isinstance(number, int)]
    if len(numbers) < len(elements_of(Type.INTEGER, datum)):
        raise SqlError("22004", "dimension values cannot be null")
    return numbers


def _stacked(element: Type, data: Sequence[bytes], mismatch: SqlError) -> bytes:
    """Return the array whose rows are arrays.

    Raises:
        SqlError: the sizes differ (as `mismatch`), or there are too many dimensions (54000).
    """
    arrays = [Array.of(element, datum) for datum in data]
    sizes = arrays[0].sizes
    if any(one.sizes != sizes for one in arrays):
        raise mismatch
    if len(sizes) >= MOST_DIMENSIONS:
        raise too_many_dimensions(len(sizes) + 1)
    elements = tuple(element for one in arrays for element in one.elements)
    return Array(elements, (len(arrays), *sizes)).datum(element)


def array_of_arrays(element: Type, *data: bytes | None) -> bytes:
    """Return `ARRAY[…]` of arrays; the result is empty if all are NULL or empty.

    Raises:
        SqlError: 2202E, the dimensions differ; 54000, the result has too many.
    """
    rows = [datum for datum in data if datum is not None and elements_of(element, datum)]
    message = "multidimensional arrays must have array expressions with matching dimensions"
    mismatch = SqlError("2202E", message)
    if not rows:
        return array_of(element, ())
    if len(rows) < len(data):
        raise mismatch
    return _stacked(element, rows, mismatch)


def aggregated(element: Type, data: Sequence[bytes | None]) -> bytes:
    """Return `array_agg` of arrays.

    Raises:
        SqlError: 22004, an array is NULL; 2202E, an array is empty, or the dimensions differ; 54000, there are too
            many.
    """
    rows = [datum for datum in data if datum is not None]
    if len(rows) < len(data):
        raise SqlError("22004", "cannot accumulate null arrays", hint="Leave out NULL with FILTER (WHERE …).")
    mismatch = SqlError("2202E", "cannot accumulate arrays of different dimensionality")
    if not elements_of(element, rows[0]):
        raise SqlError("2202E", "cannot accumulate empty arrays")
    return _stacked(element, rows, mismatch)
