"""Rows that a session collects, to publish many of them at once as columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from connectors.derive_sqlite.row import Row

PART, FEW = 9_984, 256
"""Number of published documents, and of rows, in one batch; a multiple of rows."""
_FIRST, _SECOND = itemgetter(0), itemgetter(1)


class Gathered:
    """Rows as columns, and the index of the document that caused each, until a batch is full.

    Rows are transposed in small groups, which stay in the processor's caches; this costs a third of the time.
    """

    def __init__(self, width: int) -> None:
        self.columns: list[list[Any]] = [[] for _ in range(width)]
        self.causes: list[int] = []
        self._rows: list[Row] = []

    def is_filled(self, counted: Iterator[tuple[Row, int]], last: int) -> bool:
        """Collect rows, each with the number of documents that were left; the last document's index is `last`.

        Returns:
            Whether a batch is full; if not, there are no more rows.
        """
        while len(self.causes) < PART:
            taken: list[tuple[Row, int]] = []
            try:
                taken.extend(itertools.islice(counted, FEW - len(self._rows)))
            finally:  # also if a lambda has failed
                self._rows.extend(map(_FIRST, taken))
                self.causes.extend(map(last.__sub__, map(_SECOND, taken)))
            if len(self._rows) < FEW:
                return False
            self._transpose()
        return True

    def add(self, rows: Sequence[Row], causes: Sequence[int]) -> None:
        """Collect rows and the indexes of their documents."""
        self._rows.extend(rows)
        self.causes.extend(causes)
        if len(self._rows) >= FEW:
            self._transpose()

    def take(self) -> tuple[list[int], list[list[Any]]]:
        """Return and clear the indexes and columns."""
        self._transpose()
        causes, columns = self.causes, self.columns
        self.causes, self.columns = [], [[] for _ in columns]
        return causes, columns

    def _transpose(self) -> None:
        if self._rows:
            for column, values in zip(self.columns, zip(*self._rows, strict=True), strict=True):
                column.extend(values)
        self._rows = []
