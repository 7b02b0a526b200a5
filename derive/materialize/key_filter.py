"""Knowledge about the keys at an endpoint: keys that are certainly absent need not be loaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FIRST_KEYS, _GROWTH = 1 << 14, 4
_MOST_KEYS = 1 << 22
"""Maximum number of stored keys in the filter, which takes about 80 MB; above it, the filter is dropped."""

_CELLS = 16
_HASHES = (0, 21, 42)


@dataclass(frozen=True, slots=True)
class LastStored:
    """The documents stored by a transaction, which may not be committed yet.

    Attributes:
        keys: packed keys.
        texts: the documents.
        is_deleted: for each key, whether it was deleted.
    """

    keys: pa.BinaryArray
    texts: pa.StringArray
    is_deleted: np.ndarray

    def find(self, keys: pa.BinaryArray) -> np.ndarray:
        """Return the index of each key among the stored keys; -1 for other keys."""
        numbers: np.ndarray = pc.index_in(keys, value_set=self.keys).fill_null(-1).to_numpy()
        return numbers


class KeyFilter:
    """Knowledge about the keys of one binding.

    Args:
        largest: the greatest key ever stored; None if unknown.
        is_empty: whether the endpoint has no documents.

    Attributes:
        last: documents stored by the last transaction.
    """

    def __init__(self, largest: bytes | None = None, *, is_empty: bool = False) -> None:
        self.last: LastStored | None = None
        self.largest = b"" if is_empty else largest
        self._stored: _Filters | None = _Filters() if is_empty else None

    def may_be_there(self, keys: pa.BinaryArray) -> np.ndarray:
        """Return for each key whether the endpoint may have it."""
        may_be = np.ones(len(keys), dtype=np.bool_)
        if self.largest is not None:
            may_be = pc.less_equal(keys, pa.scalar(self.largest)).to_numpy(zero_copy_only=False)
        if self._stored is not None and may_be.any():
            may_be = may_be.copy()
            numbers = np.flatnonzero(may_be)
            may_be[numbers] = self._stored.may_hold(_hashes(keys.take(pa.array(numbers))))
        return may_be

    def store(self, last: LastStored) -> None:
        """Record the documents that a transaction stores."""
        self.last = last
        if not len(last.keys):
            return
        if self.largest is not None:
            self.largest = max(self.largest, pc.max(last.keys).as_py())
        if self._stored is not None and not self._stored.add(_hashes(last.keys)):
            self._stored = None


def _hashes(keys: pa.BinaryArray) -> np.ndarray:
    return np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys)).view(np.uint64)


class _Filters:
    """Bloom filters that grow with the number of added keys, each larger than the one before."""

    def __init__(self) -> None:
        self._filters: list[np.ndarray] = []
        self._left = self._total = 0

    def may_hold(self, hashes: np.ndarray) -> np.ndarray:
        """Return for each hash whether it may have been added."""
        held = np.zeros(len(hashes), dtype=np.bool_)
        for cells in self._filters:
            is_set = np.ones(len(hashes), dtype=np.bool_)
            for numbers in _numbers(hashes, len(cells)):
                is_set &= cells[numbers]
            held |= is_set
        return held

    def add(self, hashes: np.ndarray) -> bool:
        """Add hashes; return False if there are too many."""
        self._total += len(hashes)
        if self._total > _MOST_KEYS:
            return False
        if self._left < len(hashes):
            keys = _FIRST_KEYS * _GROWTH ** len(self._filters)
            while keys < len(hashes):
                keys *= _GROWTH
            self._filters.append(np.zeros(keys * _CELLS, dtype=np.bool_))
            self._left = keys
        self._left -= len(hashes)
        for numbers in _numbers(hashes, len(self._filters[-1])):
            self._filters[-1][numbers] = True
        return True


def _numbers(hashes: np.ndarray, count: int) -> list[np.ndarray]:
    return [(hashes >> np.uint64(shift)) & np.uint64(count - 1) for shift in _HASHES]
