"""The documents of a collection at a time, computed in memory in the plainest way: the oracle of other readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from derive.document.exact import parse_exact
from derive.document.pointer import MISSING
from derive.protocol.specs import CollectionSpec, Document
from derive.reduce.combiner import Combiner
from derive.storage.segments.rows import Consolidation, ReadRows, times_present


def contents_in_memory(spec: CollectionSpec, parts: Iterable[ReadRows]) -> list[tuple[bytes, Document]]:
    """Reduce or consolidate rows, and return packed keys and documents in the order of keys.

    A reduced collection has one document per key. A multiset has each document as often as its count says.

    Args:
        spec: the collection.
        parts: rows, in the order of `read_rows`.

    Raises:
        ReductionError: documents of a key cannot be reduced.
        StorageError: a multiset has more retractions than insertions of a document.
    """
    if spec.kind == "reduced":
        return reduce_in_memory(spec, chain.from_iterable(rows.pairs() for rows in parts))
    documents: list[tuple[bytes, Document]] = []
    for key, text, count in Consolidation(parts).counts():
        documents += [(key, parse_exact(text.encode())) for _ in range(times_present(spec.name, text, count))]
    return documents


def reduce_in_memory(spec: CollectionSpec, rows: Iterator[tuple[bytes, Document]]) -> list[tuple[bytes, Document]]:
    """Reduce documents fully per key; return them in the order of packed keys.

    Args:
        spec: the collection.
        rows: packed keys and documents, in the order of reduction.
    """
    groups: dict[bytes, list[Document]] = {}
    for key, document in rows:
        groups.setdefault(key, []).append(document)
    combiner = Combiner(spec.read_schema, name=spec.name)
    reduced = ((key, combiner.full(groups[key])) for key in sorted(groups))
    return [(key, document) for key, document in reduced if document is not MISSING]
