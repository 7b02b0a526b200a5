"""The documents of one binding in one transaction, grouped by key: keys to load, and keys that are certainly absent.

The document of a key that occurs once, and is absent at the endpoint, is stored from its text and its columns. Only
documents that have to be reduced are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.exact import parse_exact
from derive.document.key import show_key
from derive.document.pointer import JSON, MISSING
from derive.errors import ProtocolError, ReductionError
from derive.materialize.binding import CompiledBinding
from derive.protocol.collection import Document
from derive.reduce.combiner import key_failure
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.texts import write_texts

_FIRST_KEYS, _GROWTH = 1 << 14, 4
_MOST_KEYS = 1 << 22
"""Maximum number of stored keys in the filter, which takes about 80 MB; with more keys, the filter is dropped."""

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
    """Knowledge about the keys of one binding at its endpoint.

    Args:
        largest: the greatest key that was ever stored; None if unknown.
        is_empty: whether the endpoint has no documents.

    Attributes:
        last: documents stored by the last transaction.
    """

    def __init__(self, largest: bytes | None = None, *, is_empty: bool = False) -> None:
        self.last: LastStored | None = None
        self.largest = b"" if is_empty else largest
        self._stored: _Filters | None = _Filters() if is_empty else None

    def may_be_there(self, keys: pa.BinaryArray) -> np.ndarray:
        """Return, for each key, whether the endpoint may have a document."""
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
    """A sequence of Bloom filters for a growing number of keys; each filter is larger than the one before."""

    def __init__(self) -> None:
        self._filters: list[np.ndarray] = []
        self._left = self._total = 0

    def may_hold(self, hashes: np.ndarray) -> np.ndarray:
        """Return, for each hash, whether the hash may have been added."""
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


@dataclass(frozen=True, slots=True)
class Stored:
    """Documents to store, as parallel columns.

    Attributes:
        keys: packed keys.
        values: packed values.
        texts: the documents.
        exists: for each key, whether the endpoint has a document.
        is_deleted: for each key, whether its document is to be deleted.
    """

    keys: pa.BinaryArray
    values: pa.BinaryArray
    texts: pa.StringArray
    exists: np.ndarray
    is_deleted: np.ndarray


class Grouped:
    """Documents of one binding in one transaction.

    Args:
        binding: binding of the documents.
        rows: rows of the transaction, in order.
        known: knowledge about keys at the endpoint.
        is_clearing: whether the documents of these keys at the endpoint are deleted, and no documents are stored.
    """

    def __init__(
        self, binding: CompiledBinding, rows: ReadRows, known: KeyFilter, *, is_clearing: bool = False
    ) -> None:
        binding.check(rows)
        encoded = rows.keys.dictionary_encode()
        self._binding = binding
        self._rows = rows
        self._known = known
        self._is_clearing = is_clearing
        self._keys: pa.BinaryArray = encoded.dictionary
        count = len(self._keys)
        self._groups = None if count == len(rows) else encoded.indices.to_numpy()
        self._last = np.arange(count)  # for each key, the index of its last row
        self._counts = np.ones(count, dtype=np.int64)
        if self._groups is not None:
            self._last[self._groups] = np.arange(len(rows))
            self._counts = np.bincount(self._groups, minlength=count)
        self._before = np.full(count, -1)  # for each key, its index among the keys that were stored last
        requested = np.zeros(count, dtype=np.bool_)
        self._is_delta = binding.spec.is_delta
        if not self._is_delta:
            if known.last is not None and len(known.last.keys):
                self._before = known.last.find(self._keys)
            requested = known.may_be_there(self._keys) & (self._before < 0)
        self._requested = requested
        self._loaded: dict[int, Document] = {}

    @property
    def requested(self) -> pa.BinaryArray:
        """Return the keys of documents that must be loaded."""
        return self._keys if self._requested.all() else self._keys.filter(pa.array(self._requested))

    @property
    def greatest(self) -> bytes:
        """Return the greatest key."""
        greatest: bytes = pc.max(self._keys).as_py()
        return greatest

    def load(self, texts: Sequence[bytes]) -> None:
        """Add documents that the endpoint has loaded.

        Raises:
            ProtocolError: a document was not requested.
        """
        documents: list[Document] = parse_exact(b"[%b]" % b",".join(texts))
        for key, document in zip(self._binding.pack_keys(documents), documents, strict=True):
            number = self._asked.get(key)
            if number is None:
                name = self._binding.spec.name
                raise ProtocolError(f"the connector has loaded {show_key(key)} of '{name}', which was not requested")
            self._loaded[number] = document

    @cached_property
    def _asked(self) -> dict[bytes, int]:
        """Return the indices of the keys whose documents must be loaded."""
        return dict(zip(self.requested.to_pylist(), np.flatnonzero(self._requested).tolist(), strict=True))

    def stored(self) -> list[Stored]:
        """Return the documents to store, after all requested documents are loaded.

        Raises:
            ReductionError: documents of a key cannot be reduced.
        """
        parts = self._gone() if self._is_clearing else self._combined() if self._is_delta else self._reduced()
        keys = pa.concat_arrays([part.keys for part in parts])
        texts = pa.concat_arrays([part.texts for part in parts])
        is_deleted = np.concatenate([part.is_deleted for part in parts])
        self._known.store(LastStored(keys, texts, is_deleted))
        return [part for part in parts if len(part.keys)]

    def _gone(self) -> list[Stored]:
        """Return deletions of these keys' documents at the endpoint."""
        numbers = np.flatnonzero(self._exists())
        everything = np.ones(len(numbers), dtype=np.bool_)
        return [self._as_read(numbers, everything, everything)]

    def _reduced(self) -> list[Stored]:
        """Return the documents, fully reduced onto the documents at the endpoint."""
        combiner = self._binding.combiner
        exists = self._exists()
        is_folded = np.zeros(len(self._keys), dtype=np.bool_)
        if not combiner.takes_last:
            is_folded = (self._counts > 1) | exists | (not combiner.keeps_single)
        folded = np.flatnonzero(is_folded)
        values = [self._fold(number, documents) for number, documents in self._documents(folded)]
        is_gone = np.array([value is MISSING for value in values], dtype=np.bool_)
        is_deleted = np.zeros(len(self._keys), dtype=np.bool_)
        is_deleted[folded[is_gone]] = True
        as_read = np.flatnonzero(~is_folded | (is_deleted & exists))
        present = [value for value in values if value is not MISSING]
        return [
            self._as_read(as_read, exists[as_read], is_deleted[as_read]),
            self._of_documents(folded[~is_gone], present, exists[folded[~is_gone]]),
        ]

    def _combined(self) -> list[Stored]:
        """Return the documents of this transaction, combined as far as possible."""
        single = np.flatnonzero(self._counts == 1)
        combined = np.flatnonzero(self._counts > 1)
        numbers: list[int] = []
        values: list[JSON] = []
        for number, documents in self._documents(combined):
            try:
                folded = self._binding.combiner.partial(documents)
            except ReductionError as error:
                raise self._failure(number, error) from error
            numbers += [number] * len(folded)
            values += folded
        nothing, everything = np.zeros(len(single), dtype=np.bool_), np.array(numbers, dtype=np.int64)
        return [
            self._as_read(single, nothing, nothing),
            self._of_documents(everything, values, np.zeros(len(values), dtype=np.bool_)),
        ]

    def _exists(self) -> np.ndarray:
        """Return for each key whether the endpoint has a document after the previous transaction."""
        exists = np.zeros(len(self._keys), dtype=np.bool_)
        exists[list(self._loaded)] = True
        if self._known.last is not None:
            before = self._before >= 0
            exists[before] = ~self._known.last.is_deleted[self._before[before]]
        return exists

    def _documents(self, numbers: np.ndarray) -> Iterator[tuple[int, list[Document]]]:
        """Yield the number and the documents, in order, of each of some keys."""
        if not len(numbers):
            return
        if self._groups is None:
            rows = numbers
        else:
            order = np.argsort(self._groups, kind="stable")
            chosen = np.zeros(len(self._keys), dtype=np.bool_)
            chosen[numbers] = True
            rows = order[chosen[self._groups[order]]]
        documents = self._rows.take(rows).documents()
        begin = 0
        for number, count in zip(numbers.tolist(), self._counts[numbers].tolist(), strict=True):
            yield number, documents[begin : begin + count]
            begin += count

    def _fold(self, number: int, documents: Sequence[Document]) -> JSON:
        step, value = self._binding.combiner.full_step, self._base(number)
        try:
            for document in documents:
                value = step(value, document)
        except ReductionError as error:
            raise self._failure(number, error) from error
        return value

    def _base(self, number: int) -> JSON:
        """Return the document of a key at the endpoint after the commit of the previous transaction."""
        last, before = self._known.last, self._before[number]
        if before < 0 or last is None:
            return self._loaded.get(number, MISSING)
        return MISSING if last.is_deleted[before] else parse_exact(last.texts[int(before)].as_py().encode())

    def _failure(self, number: int, error: ReductionError) -> ReductionError:
        return key_failure(self._binding.spec.collection.name, self._keys[number].as_py(), error)

    def _as_read(self, numbers: np.ndarray, exists: np.ndarray, is_deleted: np.ndarray) -> Stored:
        """Return the last documents of some keys, without a reduction."""
        rows = self._rows if len(numbers) == len(self._rows) else self._rows.take(self._last[numbers])
        return Stored(rows.keys, self._binding.values_of_rows(rows), rows.texts, exists, is_deleted)

    def _of_documents(self, numbers: np.ndarray, documents: Sequence[Document], exists: np.ndarray) -> Stored:
        """Return reduced documents of some keys."""
        keys = self._keys.take(pa.array(numbers))
        values = self._binding.values_of_documents(documents, self._rows.adjusted[self._last[numbers]])
        return Stored(keys, values, write_texts(documents), exists, np.zeros(len(numbers), dtype=np.bool_))
