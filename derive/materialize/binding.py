"""Bindings: a worker's description of a stored collection, and the conversion of rows to the endpoint's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.clock import format_rfc3339
from derive.document.key import compile_keys, pack, show_key
from derive.document.key_columns import join_columns, pack_array, pack_values
from derive.document.pointer import MISSING
from derive.errors import SchemaViolation
from derive.protocol.collection import CollectionSpec, Document
from derive.reduce.combiner import Combiner
from derive.schema.projection import UUID_POINTER, ProjectionSpec
from derive.schema.validator import compile_validator, fingerprint
from derive.storage.segments.columns import (
    LOOK,
    OTHER_NUMBER,
    Codes,
    Kind,
    TypedColumn,
    compile_values,
    typed_columns,
    unpack_codes,
)
from derive.storage.segments.reader import Selection
from derive.storage.segments.rows import ReadRows

_MOST_CLOCK = 253_402_300_799_999_999
"""The timestamp of the last microsecond of the year 9999."""


@dataclass(frozen=True, slots=True)
class StoredBinding:
    """One binding, as data.

    Attributes:
        name: name of the input.
        state_key: name of the binding's progress.
        offset: microseconds from a timestamp of the source to its adjusted timestamp.
        collection: the source.
        keys: fields of the key.
        values: fields beside the key, sorted.
        is_delta: whether each stored document combines the updates of one transaction, and nothing is loaded.
        contents: identity of the rows to which the position of the binding refers; empty if it was never refilled.
        is_refilling: whether new rows are stored beside the visible rows, to replace these later.
    """

    name: str
    state_key: str
    offset: int
    collection: CollectionSpec
    keys: tuple[str, ...]
    values: tuple[str, ...]
    is_delta: bool
    contents: str = ""
    is_refilling: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The columns to read of the sources of some bindings.

    Attributes:
        selection: selection of columns in segments.
        places: for each binding, the typed column of each value; None for a value without a typed column.
    """

    selection: Selection
    places: tuple[tuple[int | None, ...], ...]


def reading_of(bindings: Sequence[StoredBinding]) -> Reading:
    """Return the columns to read for bindings: documents, and the typed columns of values."""
    kinds: list[Kind] = []
    columns: dict[int, dict[int, TypedColumn]] = {}
    places = []
    for index, binding in enumerate(bindings):
        typed = {column.name: column for column in typed_columns(binding.collection)}
        taken = columns[index] = {}
        for column in (typed[name] for name in binding.values if name in typed):
            free = (place for place, kind in enumerate(kinds) if kind == column.kind and place not in taken)
            place = next(free, len(kinds))
            if place == len(kinds):
                kinds.append(column.kind)
            taken[place] = column
        by_name = {column.name: place for place, column in taken.items()}
        places.append(tuple(by_name.get(name) for name in binding.values))
    schemas = {index: fingerprint(binding.collection.read_schema) for index, binding in enumerate(bindings)}
    if not kinds:
        return Reading(Selection(schemas=schemas, marks_deletions=True), tuple(places))
    padded = {index: tuple(taken.get(place) for place in range(len(kinds))) for index, taken in columns.items()}
    return Reading(Selection(tuple(kinds), padded, schemas=schemas, marks_deletions=True), tuple(places))


class CompiledBinding:
    """A binding with the functions that are compiled from its schema.

    Args:
        binding: the binding.
        places: typed column of each value, as in `Reading`.

    Attributes:
        spec: the binding.
        combiner: reducer of its documents.
        pack_keys: function that takes documents and returns their packed keys.
    """

    def __init__(self, binding: StoredBinding, places: Sequence[int | None]) -> None:
        collection = binding.collection
        self.spec = binding
        self.combiner = Combiner(collection.read_schema, name=collection.name)
        self.pack_keys = compile_keys(collection.key, collection.key_defaults)
        self._validator = compile_validator(collection.read_schema, name=collection.name)
        by_field = {projection.field: projection for projection in collection.projections}
        self._values = [_Value(by_field[name], place) for name, place in zip(binding.values, places, strict=True)]

    def check(self, rows: ReadRows) -> None:
        """Validate the documents that were not validated when they were written.

        Raises:
            SchemaViolation: a document is not valid.
        """
        unchecked = rows.unchecked
        if unchecked is None or not unchecked.any():
            return
        rows = rows.filter(unchecked)
        for key, document in rows.pairs():
            if not self._validator.is_valid(document):
                positions = self.spec.collection.read_positions
                violation = self._validator.violation(document, key=show_key(key), positions=positions)
                message = f"binding '{self.spec.name}' reads an invalid document: {violation.message}"
                raise SchemaViolation(message, position=violation.position, hint=violation.hint)

    def values_of_rows(self, rows: ReadRows) -> pa.BinaryArray:
        """Return the packed values of documents, from typed columns where possible."""
        fields, documents = rows.fields, _Parsed(rows)
        codes = None if fields is None else unpack_codes(fields.field(fields.type.num_fields - 1))
        return join_columns([value.of_rows(self, rows, documents, fields, codes) for value in self._values], len(rows))

    def values_of_documents(self, documents: Sequence[Document], adjusted: np.ndarray) -> pa.BinaryArray:
        """Return the packed values of documents, each with the adjusted timestamp of its last update."""
        columns = [value.of_documents(documents, self.published(adjusted)) for value in self._values]
        return join_columns(columns, len(documents))

    def published(self, adjusted: np.ndarray) -> np.ndarray:
        """Return the timestamps of documents with these adjusted timestamps."""
        clocks: np.ndarray = adjusted - self.spec.offset
        return clocks


class _Parsed:
    """The documents of rows, which are parsed on first use and at most once."""

    def __init__(self, rows: ReadRows) -> None:
        self._rows = rows
        self._documents: list[Document] | None = None

    def all(self) -> list[Document]:
        if self._documents is None:
            self._documents = self._rows.documents()
        return self._documents


class _Value:
    """One value that is stored beside the key."""

    def __init__(self, projection: ProjectionSpec, place: int | None) -> None:
        self._is_clock = projection.pointer == UUID_POINTER
        self._place = place
        self._get = compile_values(projection.pointer)
        self._default = projection.default[0] if projection.default else None

    def of_documents(self, documents: Sequence[Document], clocks: np.ndarray) -> pa.BinaryArray:
        """Return the packed value in documents with given timestamps."""
        if self._is_clock:
            return pack_array(_times(clocks))
        return pack_values([self._default if value is MISSING else value for value in self._get(documents)])

    def of_rows(
        self,
        binding: CompiledBinding,
        rows: ReadRows,
        documents: _Parsed,
        fields: pa.StructArray | None,
        codes: Codes | None,
    ) -> pa.BinaryArray:
        """Return the packed value in the documents of rows."""
        if self._is_clock:
            return self.of_documents([], binding.published(rows.adjusted))
        if self._place is None or fields is None:
            return self.of_documents(documents.all(), rows.adjusted)
        return self._of_column(fields.field(self._place), None if codes is None else codes[:, self._place], rows)

    def _of_column(self, column: pa.Array, codes: Codes | None, rows: ReadRows) -> pa.BinaryArray:
        packed = pack_array(column)
        if self._default is not None and column.null_count:
            is_absent = column.is_null().to_numpy(zero_copy_only=False)
            if codes is not None:
                is_absent &= codes == 0
            packed = pc.if_else(pa.array(is_absent), pa.scalar(pack((self._default,))), packed)
        if codes is None or not codes.any():
            return packed
        is_other = codes == OTHER_NUMBER
        if is_other.any():
            packed = pc.if_else(pa.array(is_other), pack_array(_other_numbers(column, is_other)), packed)
        looked = np.flatnonzero(codes == LOOK)
        if len(looked):
            packed_again = self.of_documents(rows.take(looked).documents(), rows.adjusted[looked])
            packed = pc.replace_with_mask(packed, pa.array(codes == LOOK), packed_again)
        return packed


def _times(clocks: np.ndarray) -> pa.StringArray:
    """Return timestamps as texts in the format of `format_rfc3339`."""
    if len(clocks) and (clocks.min() < 0 or clocks.max() > _MOST_CLOCK):
        return pa.array(list(map(format_rfc3339, clocks.tolist())), pa.string())
    texts = pa.array(clocks).cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "")


def _other_numbers(column: pa.Array, is_other: np.ndarray) -> pa.Array:
    """Return the numbers of the rows whose documents write the other numeric type, in that type; 0 for other rows."""
    is_integer = pa.types.is_int64(column.type)
    filled = column.fill_null(pa.scalar(0, column.type)).to_numpy()
    return pa.array(np.where(is_other, filled, 0).astype(np.float64 if is_integer else np.int64))
