"""What history leaves of documents that are reduced: one document per key.

Reading a collection at a time T fully reduces each key's documents up to T, from the left. A beginning of these can
therefore be replaced by what it reduces to, fully and in the same order, and every later read gives the same bytes; not
even sums of floating-point numbers come out differently, as they might by partial reductions. What is deleted leaves
nothing behind. The document left is in the place (clock, seq) of the last one that it stands for.

This is checked and not assumed: where reducing the result once more would change it, or it cannot be reduced, or is no
valid document, the key keeps the documents it has. So it does behind the first change of its logical partition, because
who reads one partition must find what is in it.
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
    """What is known of a key.

    Attributes:
        value: what its documents reduce to so far; `MISSING` once it is deleted.
        partition: the logical partition of its first document.
        folded: how many documents are reduced: those before one of another partition.
        is_open: no document of another partition has come.
        text: JSON text of what takes the place of the folded ones; empty for none.
        keeps: they stay as they are.
        seen: how many documents have been written or left out.
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
        """What documents leave, in order; their `transform` tells logical partitions apart."""
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
        except ReductionError:  # whoever reads it is told
            known.keeps, known.value = True, MISSING

    def _finish(self, known: _Key) -> None:
        if known.keeps or known.value is MISSING:
            return
        text = dump_exact(known.value)
        known.keeps = not self._stands(known.value, text)
        known.text, known.value = text.decode(), MISSING

    def _stands(self, value: JSON, text: bytes) -> bool:
        """Whether a document of this text can stand for the history that reduces to `value`."""
        document = parse_exact(text)
        try:
            again = self._combiner.full([document])
        except ReductionError:
            return False
        is_same = document == value and again is not MISSING and dump_exact(again) == text
        return is_same and all(validator.is_valid(document) for validator in self._validators)


def _left(rows: ReadRows, keys: dict[bytes, _Key]) -> ReadRows:
    """The rows that stay, with the text of what they stand for."""
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
