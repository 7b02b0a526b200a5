"""Rows that a session gathers, to publish many of them at once as columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from connectors.derive_sqlite.row import Row

PART, FEW = 9_984, 256
"""How many published documents are worth handling at once, and how many rows; many times as many."""
_FIRST, _SECOND = itemgetter(0), itemgetter(1)


class Gathered:
    """Rows as columns, and the numbers of the documents that caused them, until they are many.

    Few rows at a time become parts of columns: as long as the processor's caches hold them, that costs a third.
    """

    def __init__(self, width: int) -> None:
        self.columns: list[list[Any]] = [[] for _ in range(width)]
        self.causes: list[int] = []
        self._rows: list[Row] = []

    def is_filled(self, counted: Iterator[tuple[Row, int]], last: int) -> bool:
        """Take rows, each with how many documents were left then, of which the last is `last`.

        Returns:
            Whether there are many; if not, no more can be had.
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
        """Take rows and their causes."""
        self._rows.extend(rows)
        self.causes.extend(causes)
        if len(self._rows) >= FEW:
            self._transpose()

    def take(self) -> tuple[list[int], list[list[Any]]]:
        """Causes and columns, which are no longer held."""
        self._transpose()
        causes, columns = self.causes, self.columns
        self.causes, self.columns = [], [[] for _ in columns]
        return causes, columns

    def _transpose(self) -> None:
        if self._rows:
            for column, values in zip(self.columns, zip(*self._rows, strict=True), strict=True):
                column.extend(values)
        self._rows = []
