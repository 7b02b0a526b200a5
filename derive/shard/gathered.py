"""Publications of a cycle's derivation, gathered over several ticks and written together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from derive.document.columns import Columns, Kinds
from derive.document.key_columns import KeyColumns
from derive.shard.published import Combined, Content, Documents, RowMaker
from derive.storage.segments.rows import WrittenRows, concat

MOST_ROWS = 20_000


@dataclass(slots=True)
class _Group:
    """Documents that are all columns with the same names, or all objects; either all keys are packed, or none.

    Attributes:
        columns: timestamps, sequence numbers, labels and, if packed, keys.
        values: values of each property; for objects, one list of documents.
        kinds: types of the values of each property.
    """

    columns: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], [], []))
    values: list[list[Any]] = field(default_factory=list)
    kinds: tuple[Kinds, ...] = ()

    def add(self, combined: Combined) -> None:
        """Add documents of the same group."""
        content = combined.content
        values: Sequence[Sequence[Any]] = content.values if isinstance(content, Columns) else (content.listed,)
        kinds: tuple[Kinds, ...] = content.kinds if isinstance(content, Columns) else ()
        if not self.values:
            self.values, self.kinds = [[] for _ in values], kinds
        elif kinds != self.kinds:
            self.kinds = tuple([known | more for known, more in zip(self.kinds, kinds, strict=True)])
        for column, part in zip(self.values, values, strict=True):
            column.extend(part)
        keys = [] if isinstance(combined.keys, KeyColumns) else combined.keys
        columns: tuple[list[Any], ...] = (combined.clocks, combined.seqs, combined.labels, keys)
        for column, part in zip(self.columns, columns, strict=True):
            column.extend(part)

    def rows(self, names: tuple[str, ...], pack: KeyColumns | None, make: RowMaker) -> WrittenRows:
        """Return the documents as rows, in the order of their addition."""
        clocks, seqs, labels, keys = self.columns
        content: Content = Documents(self.values[0])
        packed: pa.BinaryArray | list[bytes] = keys
        if names:
            content = Columns(names, tuple(self.values), self.kinds)
            packed = pack.pack(content) if pack else keys
        rows = WrittenRows.of(np.array(clocks, dtype=np.int64), seqs, packed, make.texts(content), labels)
        return rows.with_fields(make.fields(content))


class Gathered:
    """Gathers published documents.

    Args:
        write: takes rows, in order.
        make: converter of documents to rows.
        most_bytes: approximate limit for the gathered bytes.
        most_rows: limit for the gathered documents.
    """

    def __init__(
        self, write: Callable[[WrittenRows], None], make: RowMaker, most_bytes: int, most_rows: int = MOST_ROWS
    ) -> None:
        self._write = write
        self._make = make
        self._most_bytes = most_bytes
        self._most_rows = most_rows
        self._clear()

    def _clear(self) -> None:
        # Groups by property names (empty for documents) and by the packer of keys.
        self._groups: dict[tuple[tuple[str, ...], KeyColumns | None], _Group] = {}
        self._count = self._weight = 0

    def add(self, combined: Combined, weight: int) -> None:
        """Add documents of one tick, with an approximate size of `weight` bytes."""
        names = combined.content.names if isinstance(combined.content, Columns) else ()
        kind = (names, combined.keys if isinstance(combined.keys, KeyColumns) else None)
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _Group()
        group.add(combined)
        self._count += len(combined.clocks)
        self._weight += weight
        if self._count >= self._most_rows or self._weight > self._most_bytes:
            self.flush()

    def add_rows(self, rows: WrittenRows) -> None:
        """Write the gathered rows, and then these rows."""
        self.flush()
        self._write(rows)

    def flush(self) -> None:
        """Write the gathered rows."""
        if self._groups:
            self._write(concat([group.rows(*kind, self._make) for kind, group in self._groups.items()]).in_order())
        self._clear()
