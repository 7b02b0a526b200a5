"""Fields instead of documents: columns for lambdas that declare the fields they need.

Documents of such a derivation are not read, parsed or moved. Only if an error message shows a document is it read from
its segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import pyarrow as pa

from derive.document.exact import parse_exact
from derive.document.key_columns import Values
from derive.document.pointer import JSON
from derive.errors import InternalError
from derive.protocol.derive import Integers, ReadsArrays, ReadsFields
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec, Document, TransformSpec
from derive.schema.validator import fingerprint
from derive.shard.invoke import SourceBatch
from derive.shard.plan import Plan
from derive.storage.segments.columns import (
    LOOK,
    Codes,
    Kind,
    TypedColumn,
    compile_values,
    decode,
    typed_columns,
    unpack_codes,
)
from derive.storage.segments.reader import TOLD_DOCUMENTS, Selection, read_sorted
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.texts import JoinedTexts


@dataclass(frozen=True, slots=True)
class FieldPlaces:
    """The column slots of one transform.

    Attributes:
        fields: slot and schema default of each field of the lambda.
        shuffle: slot of each component of the shuffle key; None if rows are shuffled by their own key.
    """

    fields: tuple[tuple[int, JSON], ...]
    shuffle: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Reading:
    """The columns that a derivation reads of its sources.

    Attributes:
        selection: selection for segments.
        transforms: column slots of each transform; None if all transforms read documents.
        as_arrays: whether lambdas take arrays.
    """

    selection: Selection
    transforms: tuple[FieldPlaces, ...] | None = None
    as_arrays: bool = False

    def column(self, transform: int, place: int) -> TypedColumn:
        """Return the column of a transform in a slot."""
        assert self.selection.columns is not None
        column = self.selection.columns[transform][place]
        assert column is not None
        return column


def reading_of_documents(spec: DerivationSpec) -> Reading:
    """Return the reading of a derivation whose lambdas see documents."""
    schemas = {item.index: fingerprint(spec.sources[item.source].read_schema) for item in spec.inputs}
    return Reading(Selection(schemas=schemas, marks_deletions=True))


def reading_of(spec: DerivationSpec) -> Reading:
    """Return the reading of a derivation: fields, if its lambdas declare them and each has a column.

    A derivation with a computed shuffle reads documents, because the shuffle sees documents.
    """
    documents = reading_of_documents(spec)
    runtime = find_runtime(spec.connector)
    desired, as_arrays = None, isinstance(runtime, ReadsArrays)
    if isinstance(runtime, ReadsArrays):
        desired = runtime.arrays_read(spec)
    elif isinstance(runtime, ReadsFields):
        desired = runtime.fields_read(spec)
    if desired is None:
        return documents
    places = _Places()
    try:
        transforms = tuple(
            places.of(spec, transform, fields) for transform, fields in zip(spec.transforms, desired, strict=True)
        )
    except LookupError:
        return documents
    columns = {item.index: places.padded(item.index) for item in spec.inputs}
    selection = replace(documents.selection, kinds=tuple(places.kinds), columns=columns, has_documents=False)
    return Reading(selection, transforms, as_arrays)


class _Places:
    """Assigns column slots, which several transforms can share."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self._columns: dict[int, dict[int, TypedColumn]] = {}

    def of(self, spec: DerivationSpec, transform: TransformSpec, names: Sequence[str]) -> FieldPlaces:
        """Return the slots of one transform. Several transforms may share a slot.

        Raises:
            LookupError: a needed field has no column.
        """
        source, shuffle = spec.sources[transform.input.source], transform.shuffle
        if shuffle.kind == "lambda" or (shuffle.kind == "key" and not shuffle.key):
            raise LookupError
        by_name = {column.name: column for column in typed_columns(source)}
        by_pointer = {column.pointer: column for column in by_name.values()}
        defaults = {item.field: item.default[0] if item.default else None for item in source.projections}
        fields = tuple((self._place(transform.index, by_name[name]), defaults[name]) for name in names)
        by_key = (shuffle.key, shuffle.key_defaults) == (source.key, source.key_defaults)
        if shuffle.kind == "any" or by_key:
            return FieldPlaces(fields, None)
        return FieldPlaces(fields, tuple(self._place(transform.index, by_pointer[key]) for key in shuffle.key))

    def _place(self, transform: int, column: TypedColumn) -> int:
        taken = self._columns.setdefault(transform, {})
        for place, known in taken.items():
            if known == column:
                return place
        free = (place for place, kind in enumerate(self.kinds) if kind == column.kind and place not in taken)
        place = next(free, len(self.kinds))
        if place == len(self.kinds):
            self.kinds.append(column.kind)
        taken[place] = column
        return place

    def padded(self, transform: int) -> tuple[TypedColumn | None, ...]:
        """Return the column of a transform in each slot."""
        taken = self._columns.get(transform, {})
        return tuple(taken.get(place) for place in range(len(self.kinds)))


def source_batch(plan: Plan, reading: Reading, rows: ReadRows) -> SourceBatch:
    """Convert source rows to a batch for lambdas."""
    transforms: Sequence[int] = Integers(rows.transforms) if reading.as_arrays else rows.transforms.tolist()

    def key_of(row: int) -> bytes:
        key: bytes = rows.keys[row].as_py()
        return key

    def seq_of(row: int) -> int:
        return rows.slice(row, 1).lists()[2][0]

    if reading.transforms is None:
        unparsed = UnparsedDocuments(rows)
        return SourceBatch(
            transforms,
            rows.adjusted,
            key_of,
            unparsed,
            unchecked=rows.unchecked,
            written=unparsed.written,
            seq_of=seq_of,
        )
    present = set(np.unique(rows.transforms).tolist())
    fields = [
        FieldValues(reading, rows if present == {index} else rows.filter(rows.transforms == index)).all_of(index)
        if index in present
        else [[] for _ in places.fields]
        for index, places in enumerate(reading.transforms)
    ]
    documents = StoredDocuments(plan, rows)
    return SourceBatch(transforms, rows.adjusted, key_of, documents, fields, rows.unchecked, seq_of=seq_of)


class FieldValues:
    """Values of the documents behind rows with fields.

    Args:
        reading: columns of the rows.
        rows: rows of one transform.
    """

    def __init__(self, reading: Reading, rows: ReadRows) -> None:
        fields = rows.fields
        assert fields is not None
        self._reading = reading
        self._rows = rows
        self._fields = fields
        self._codes = unpack_codes(fields.field(len(reading.selection.kinds)))

    def all_of(self, transform: int) -> list[list[JSON]]:
        """Return the values of each field that the lambda of their transform reads."""
        transforms = self._reading.transforms
        assert transforms is not None
        if self._reading.as_arrays:
            return [self._array(transform, place) for place, _ in transforms[transform].fields]
        return [self.of(transform, place, default) for place, default in transforms[transform].fields]

    def _array(self, transform: int, place: int) -> Any:
        """Return the values of one slot as an array; as a list if only documents have some of them."""
        if self._codes is not None and (self._codes[:, place] == LOOK).any():
            return self.of(transform, place, None)
        return self._fields.field(place)

    def of(self, transform: int, place: int, default: JSON) -> list[JSON]:
        """Return the values of one slot.

        Args:
            transform: index of their transform.
            place: one of its slots.
            default: value of an absent field.
        """
        codes: Codes | None = None if self._codes is None else self._codes[:, place]
        get = compile_values(self._reading.column(transform, place).pointer)
        return decode(self._fields.field(place), codes, default, lambda rows: get(self._rows.take(rows).documents()))

    def packable(self, transform: int, place: int, default: JSON) -> Values:
        """Return the values of one slot, to pack them into keys; as an array if all are texts, or all are integers."""
        array = self._fields.field(place)
        is_exact = self._codes is None or not self._codes[:, place].any()
        is_packed = pa.types.is_string(array.type) or pa.types.is_int64(array.type)
        if is_exact and is_packed and not array.null_count:
            return array
        return self.of(transform, place, default)


class UnparsedDocuments(Sequence[Document]):
    """Documents of rows; the first access parses all of them.

    Args:
        rows: rows with their documents.
    """

    def __init__(self, rows: ReadRows) -> None:
        self._rows = rows
        self._parsed: list[Document] | None = None
        self._joined: JoinedTexts | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if self._parsed is None:
            self._parsed = self._rows.documents()
        return self._parsed[index]

    def __iter__(self) -> Iterator[Document]:
        return iter(self[:])  # avoids a call per document

    def written(self, part: slice) -> bytes:
        """Return a JSON array of a slice, as stored."""
        if self._joined is None:
            self._joined = JoinedTexts(self._rows.texts)
        begin, end, _ = part.indices(len(self))
        return self._joined.array(begin, end)


class StoredDocuments(Sequence[Document]):
    """Documents of rows without text; each access reads a document from its segment.

    If the texts of all rows were read, because all documents must be validated, they are parsed together.

    Args:
        plan: the transaction.
        rows: rows of the documents.
    """

    def __init__(self, plan: Plan, rows: ReadRows) -> None:
        self._plan = plan
        self._rows = rows
        self._parsed: list[Document] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if self._parsed is None and not self._rows.texts.null_count:
            self._parsed = self._rows.documents()
        if self._parsed is not None:
            return self._parsed[index]
        if isinstance(index, slice):
            return [self[row] for row in range(len(self))[index]]
        row = self._rows.slice(range(len(self))[index], 1)
        text = row.texts[0].as_py() or self._find(row)
        document: Document = parse_exact(text.encode())
        return document

    def _find(self, row: ReadRows) -> str:
        """Return the text of a row's document from its segment."""
        ((adjusted, transform, seq, key),) = zip(*row.lists(), strict=True)
        reads = [read.within(adjusted, adjusted + 1) for read in self._plan.reads if read.index == transform]
        for stored in read_sorted(self._plan.location, reads, selection=TOLD_DOCUMENTS):
            for _, stored_seq, stored_key, text in stored.tuples():
                if (stored_seq, stored_key) == (seq, key):
                    return text
        raise InternalError(f"a document that '{self._plan.spec.name}' reads is missing from its segment")
