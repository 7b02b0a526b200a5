"""Combine the documents of ended ticks in memory, per tick and key, in the order of processing.

Sorted group numbers reveal unique documents of a key and tick, which are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from derive.protocol.specs import Document
from derive.shard.key_fold import KeyFold
from derive.shard.published import Documents, Published, RowMaker
from derive.storage.segments.rows import WrittenRows, concat


def combine_ended(parts: Sequence[Published], tick: int, fold: KeyFold, make: RowMaker) -> WrittenRows:
    """Combine the publications of ended ticks.

    Args:
        parts: publications in the order of processing, at least one.
        tick: length of a tick, microseconds.
        fold: reducer of documents.
        make: converter of documents to rows.

    Returns:
        Rows in storage order.
    """
    ticks = np.concatenate([part.clocks for part in parts]) // tick
    groups = _groups(ticks, pa.concat_arrays([part.key_array for part in parts]))
    ascending = np.sort(groups)
    several = ascending[1:][ascending[1:] == ascending[:-1]]
    if not several.size:
        return _alone(parts, make).in_order()
    is_alone = np.isin(groups, several, invert=True)
    borders = np.cumsum([len(part) for part in parts])[:-1]
    alone, others = [], []
    for part, chosen, numbers in zip(parts, np.split(is_alone, borders), np.split(groups, borders), strict=True):
        if chosen.any():
            alone.append(part.take(np.flatnonzero(chosen)))
        if not chosen.all():
            others.append((part.take(np.flatnonzero(~chosen)), numbers[~chosen].tolist()))
    rows = [_folded(others, fold, make)]
    if alone:
        rows.append(_alone(alone, make))
    return concat(rows).in_order()


def _groups(ticks: np.ndarray, keys: pa.BinaryArray) -> np.ndarray:
    """Return a group number for each document: equal for equal tick and key, and different otherwise."""
    encoded = keys.dictionary_encode()
    ordinals = np.concatenate([[0], np.cumsum(np.diff(ticks) != 0)])
    groups: np.ndarray = ordinals * len(encoded.dictionary) + encoded.indices.to_numpy()
    return groups


def _alone(parts: Sequence[Published], make: RowMaker) -> WrittenRows:
    """Return rows of documents that are unique in their tick and key."""
    clocks = np.concatenate([part.clocks for part in parts])
    columns = (
        pa.concat_arrays([part.key_array for part in parts]),
        pa.concat_arrays([make.texts(part.content) for part in parts]),
        pa.concat_arrays([make.labels(part.content) for part in parts]),
    )
    fields = [made for part in parts if (made := make.fields(part.content)) is not None]
    rows = WrittenRows.of(clocks, np.zeros(len(clocks), dtype=np.int32), *columns)
    return rows.with_fields(pa.concat_arrays(fields) if fields else None)


def _folded(parts: Sequence[tuple[Published, list[int]]], fold: KeyFold, make: RowMaker) -> WrittenRows:
    """Return rows of reduced documents that share a tick and key, by their group numbers."""
    opened: dict[int, tuple[int, bytes, list[Document]]] = {}
    for part, groups in parts:
        columns = (groups, part.clocks.tolist(), part.key_list, part.content.documents())
        for group, clock, key, document in zip(*columns, strict=True):
            entry = opened.get(group)
            if entry is None:
                opened[group] = (clock, key, [document])
            else:
                fold.add(key, entry[2], document)
                opened[group] = (clock, key, entry[2])
    rows = [
        (clock, seq, key, document)
        for clock, key, documents in opened.values()
        for seq, document in enumerate(documents)
    ]
    clocks, seqs, keys, documents = zip(*rows, strict=True)
    content = Documents(documents)
    return WrittenRows.sorted_of(clocks, seqs, keys, documents, make.labels(content), make.fields(content))
