"""Conditions: filters on columns of segments. A row group without matching rows is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter on a column; at least one bound is set.

    Attributes:
        column: name of the column.
        values: permitted values, without null; None for any.
        least: lower bound, inclusive; None for none.
        most: upper bound, inclusive; None for none.
    """

    column: str
    values: pa.Array | None = None
    least: int | str | None = None
    most: int | str | None = None

    def may_hold(self, statistics: pq.Statistics | None) -> bool:
        """Return true if a column with these statistics may have matching rows."""
        if statistics is None or not statistics.has_min_max:
            return True
        least, most = statistics.min, statistics.max
        if self.values is not None and not any(least <= value <= most for value in self.values.to_pylist()):
            return False
        return (self.least is None or self.least <= most) and (self.most is None or least <= self.most)

    def mask(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the mask of matching rows; null for no match."""
        parts: list[Any] = []
        if self.values is not None:
            parts.append(pc.is_in(column, value_set=self.values))
        if self.least is not None:
            parts.append(pc.greater_equal(column, self.least))
        if self.most is not None:
            parts.append(pc.less_equal(column, self.most))
        return reduce(pc.and_, parts)


class RowFilter:
    """Filter of the rows of one file.

    Args:
        file: file of a segment, which has the columns of the conditions.
        conditions: filters that all must match.
    """

    def __init__(self, file: pq.ParquetFile, conditions: Sequence[Condition]) -> None:
        self._file = file
        schema = file.schema_arrow
        self._conditions = [(schema.get_field_index(one.column), one) for one in conditions]

    def of(self, number: int) -> pa.ChunkedArray | None:
        """Return the mask of matching rows of a row group; None if all match, and length 0 if none does."""
        if not self._conditions:
            return None
        group = self._file.metadata.row_group(number)
        if all(condition.may_hold(group.column(index).statistics) for index, condition in self._conditions):
            held = self._file.read_row_group(number, columns=[one.column for _, one in self._conditions])
            mask = reduce(pc.and_, (one.mask(held.column(one.column)) for _, one in self._conditions))
            if pc.any(mask).as_py():
                return mask
        return pa.chunked_array([], pa.bool_())
