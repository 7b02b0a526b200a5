"""Fold the history of reduced documents into one document per key.

A read at a time T reduces each key's documents up to T fully, from the left. A prefix of these can be replaced by its
full reduction, in the same order, and every later read returns the same bytes. Partial reductions would change sums of
floating-point numbers. A deleted key leaves no document. The folded document has the position (clock, seq) of the last
document that it replaces.

The fold checks its result. A key keeps its documents if a second reduction would change the result, if they cannot be
reduced, or if the result is invalid. A key also keeps its documents after its first change of logical partition,
because a reader of one partition must find its documents there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import MISSING
from derive.errors import ReductionError
from derive.protocol.specs import JSON, CollectionSpec
from derive.reduce.combiner import Combiner
from derive.schema.validator import compile_validator
from derive.storage.segments.rows import ReadRows


@dataclass(slots=True)
class _Key:
    """State of a key.

    Attributes:
        value: reduction of its documents so far; `MISSING` once it is deleted.
        partition: logical partition of its first document.
        folded: number of reduced documents: those before the first one of another partition.
        is_open: true until a document of another partition is seen.
        text: JSON text that replaces the folded documents; empty for none.
        keeps: true if the documents stay as they are.
        seen: number of documents that were written or dropped.
    """

    value: JSON
    partition: int
    folded: int = 0
    is_open: bool = True
    text: str = ""
    keeps: bool = False
    seen: int = 0


class ReducedFold:
    """Reduces documents per key.

    Args:
        spec: the collection.
    """

    def __init__(self, spec: CollectionSpec) -> None:
        self._combiner = Combiner(spec.read_schema, name=spec.name)
        schemas = [spec.write_schema] + ([spec.read_schema] if spec.read_schema != spec.write_schema else [])
        self._validators = [compile_validator(schema, name=spec.name) for schema in schemas]

    def fold(self, read: Callable[[], Iterator[ReadRows]]) -> Iterator[ReadRows]:
        """Yield the folded documents, in order; their `transform` is the number of their logical partition."""
        keys: dict[bytes, _Key] = {}
        for rows in read():
            columns = (rows.keys.to_pylist(), rows.transforms.tolist(), rows.documents())
            for key, partition, document in zip(*columns, strict=True):
                known = keys.get(key)
                if known is None:
                    known = keys[key] = _Key(MISSING, partition)
                self._add(known, partition, document)
        for known in keys.values():
            self._finish(known)
        for rows in read():
            yield _left(rows, keys)

    def _add(self, known: _Key, partition: int, document: JSON) -> None:
        if partition != known.partition:
            known.is_open = False
        if not known.is_open:
            return
        known.folded += 1
        if known.keeps:
            return
        try:
            known.value = self._combiner.full_step(known.value, document)
        except ReductionError:  # readers get the error
            known.keeps, known.value = True, MISSING

    def _finish(self, known: _Key) -> None:
        if known.keeps or known.value is MISSING:
            return
        text = dump_exact(known.value)
        known.keeps = not self._stands(known.value, text)
        known.text, known.value = text.decode(), MISSING

    def _stands(self, value: JSON, text: bytes) -> bool:
        """Return true if a document of this text can replace the history that reduces to `value`."""
        document = parse_exact(text)
        try:
            again = self._combiner.full([document])
        except ReductionError:
            return False
        is_same = document == value and again is not MISSING and dump_exact(again) == text
        return is_same and all(validator.is_valid(document) for validator in self._validators)


def _left(rows: ReadRows, keys: dict[bytes, _Key]) -> ReadRows:
    """Return the remaining rows, with the text of the documents that they replace."""
    kept: list[int] = []
    replaced: list[bool] = []
    texts: list[str] = []
    for row, key in enumerate(rows.keys.to_pylist()):
        known = keys[key]
        known.seen += 1
        if known.keeps or known.seen > known.folded:
            kept.append(row)
            replaced.append(False)
        elif known.seen == known.folded and known.text:
            kept.append(row)
            replaced.append(True)
            texts.append(known.text)
    left = rows.take(kept)
    mask, replacements = pa.array(replaced, pa.bool_()), pa.array(texts, pa.string())
    return left.with_texts(pc.replace_with_mask(left.texts, mask, replacements))
