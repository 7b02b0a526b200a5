"""Rows to store in an endpoint, as columns, which most endpoints accept and which convert to rows quickly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | bytes | None
"""A value of a field; bytes are the JSON text of an object or an array."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one binding to store. All sequences and columns are parallel and not empty.

    Attributes:
        key_columns: for each field of the key, its values.
        value_columns: for each other field, its values.
        documents: whole documents as JSON; they may be empty if the binding does not materialize them.
        exists: whether the endpoint has a row with this key.
        deleted: whether the row with this key is to be deleted; a missing row is ignored.
    """

    key_columns: Sequence[Sequence[Value]]
    value_columns: Sequence[Sequence[Value]]
    documents: Sequence[bytes]
    exists: Sequence[bool]
    deleted: Sequence[bool]

    def __len__(self) -> int:
        return len(self.exists)

    @property
    def keys(self) -> Sequence[tuple[Value, ...]]:
        """Return the keys by row."""
        return list(zip(*self.key_columns, strict=True))

    @property
    def values(self) -> Sequence[tuple[Value, ...]]:
        """Return the values of the other fields by row."""
        return list(zip(*self.value_columns, strict=True)) if self.value_columns else [()] * len(self)

    def rows(self, *, with_document: bool) -> Iterator[tuple[Value, ...]]:
        """Yield rows in the order of an INSERT: key, values and, if requested, the document."""
        documents = (self.documents,) if with_document else ()
        return zip(*self.key_columns, *self.value_columns, *documents, strict=True)

    def where(self, flags: Sequence[bool]) -> StoredRows | None:
        """Return the rows whose flag is set; None if there are none.

        Args:
            flags: flags parallel to the rows, such as `exists`.
        """
        count = sum(flags)
        if count in (0, len(self)):
            return self if count else None
        return StoredRows(
            [list(compress(column, flags)) for column in self.key_columns],
            [list(compress(column, flags)) for column in self.value_columns],
            list(compress(self.documents, flags)),
            list(compress(self.exists, flags)),
            list(compress(self.deleted, flags)),
        )
