"""Collections, rows and what a table must hold, for tests of materializations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from derive.document.exact import dump_exact
from derive.document.key import compile_keys, pack
from derive.document.pointer import MISSING, compile_pointer
from derive.materialize.binding import CompiledBinding, StoredBinding, reading_of
from derive.position import Position
from derive.protocol.collection import CollectionSpec, Document
from derive.reduce.combiner import Combiner
from derive.schema.projection import project
from derive.schema.shape import infer
from derive.storage.segments.columns import compile_values, encode, fields_of
from derive.storage.segments.reader import Selection
from derive.storage.segments.rows import UNCHECKED, ReadRows
from derive.storage.segments.texts import write_texts

AT = Position("flow.yaml", 1, 1)


def collection(name: str, schema: Any, key: tuple[str, ...] = ("/k",)) -> CollectionSpec:
    projections = project(infer(schema), key, {})
    return CollectionSpec(name, key, (MISSING,) * len(key), schema, schema, projections, AT)


def binding(
    source: CollectionSpec, name: str = "table", *, is_delta: bool = False, values: tuple[str, ...] | None = None
) -> StoredBinding:
    """A binding of all scalar fields."""
    names = [item.field for item in source.projections if not item.is_key and item.pointer not in ("", "/_meta/uuid")]
    keys = tuple(item.field for pointer in source.key for item in source.projections if item.pointer == pointer)
    return StoredBinding(name, name, 0, source, keys, tuple(sorted(names)) if values is None else values, is_delta)


def compiled(bindings: Sequence[StoredBinding]) -> list[CompiledBinding]:
    reading = reading_of(bindings)
    return [CompiledBinding(*pair) for pair in zip(bindings, reading.places, strict=True)]


def rows_of(bindings: Sequence[StoredBinding], documents: Sequence[tuple[int, int, Document]]) -> ReadRows:
    """Rows as a segment's reader gives them: of adjusted clock, index of the binding, and document, in order."""
    selection = reading_of(bindings).selection
    adjusted, indexes, contents = zip(*documents, strict=True) if documents else ((), (), ())
    keys = [
        compile_keys(bindings[index].collection.key, bindings[index].collection.key_defaults)([document])[0]
        for index, document in zip(indexes, contents, strict=True)
    ]
    count = len(documents)
    rows = ReadRows.of(adjusted, np.array(indexes, dtype=np.int16), np.arange(count), keys, write_texts(contents))
    fields = _fields(selection, indexes, contents)
    batch = rows.with_fields(fields).batch
    return ReadRows(batch.append_column(UNCHECKED, pa.repeat(pa.scalar(False), count)))


def _fields(selection: Selection, indexes: Sequence[int], documents: Sequence[Document]) -> pa.StructArray | None:
    if selection.columns is None:
        return None
    arrays, codes = [], []
    for place, kind in enumerate(selection.kinds):
        values = []
        for index, document in zip(indexes, documents, strict=True):
            column = selection.columns[index][place]
            values.append(MISSING if column is None else compile_values(column.pointer)([document])[0])
        array, code = encode(kind, values)
        arrays.append(array)
        codes.append(code)
    return fields_of(arrays, codes, len(documents))


def expected(spec: StoredBinding, documents: Sequence[Document]) -> dict[bytes, tuple[bytes, bytes]]:
    """What a table holds in the end: one fold of each key's documents."""
    source = spec.collection
    pack_key = compile_keys(source.key, source.key_defaults)
    histories: dict[bytes, list[Document]] = {}
    for document in documents:
        histories.setdefault(pack_key([document])[0], []).append(document)
    combiner = Combiner(source.read_schema, name=source.name)
    pointers = {item.field: item.pointer for item in source.projections}
    table = {}
    for key, history in histories.items():
        value = combiner.full(history)
        if value is not MISSING:
            fields = [compile_pointer(pointers[name])(value) for name in spec.values]
            table[key] = pack([None if item is MISSING else item for item in fields]), dump_exact(value)
    return table
