"""Parquet input: one document per row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from derive.errors import DocumentError
from derive.protocol.specs import JSON, CollectionSpec
from derive.schema.infer import infer
from derive.schema.redaction import Redactor
from derive.storage.inputs.line import MOST_DOCUMENT_BYTES, NOTHING_INGESTED, Line, sized, too_large, too_many
from derive.value_count import most_values

if TYPE_CHECKING:
    from derive.storage.inputs.parquet_batches import ParquetBatches

_HIDDEN = "a value that has no JSON form, which is not shown as the schema redacts it"


def parquet_rows(path: str, spec: CollectionSpec, most_bytes: int = MOST_DOCUMENT_BYTES) -> Iterator[Line]:
    """Yield the documents of a Parquet file: a column is a property, and a null is omitted.

    A value without an exact JSON form makes its row a `DocumentError` that names the column. A row of more than
    `most_bytes`, or of too many values, is a `DocumentError` too.

    Raises:
        DocumentError: the file is no Parquet file or damaged, or a column's type has no JSON form.
    """
    import pyarrow as pa

    from derive.storage.inputs.parquet_batches import ParquetBatches

    read = 0
    try:
        with ParquetBatches(path) as batches:
            rows = _Rows(batches, spec, path, most_bytes)
            for batch in batches:
                yield from enumerate(rows.of(batch), start=read + 1)
                read += batch.num_rows
    except (OSError, pa.ArrowException) as exc:
        what = "is not a readable Parquet file" if not read else f"is damaged behind its row {read:,}"
        raise DocumentError(f"{path} {what}: {' '.join(str(exc).split())}", hint=NOTHING_INGESTED) from exc


class _Rows:
    """Converts batches to documents."""

    def __init__(self, batches: ParquetBatches, spec: CollectionSpec, path: str, most_bytes: int) -> None:
        from derive.storage.inputs.unfit import UnfitError

        self._names: list[str] = batches.schema.names
        self._most_bytes = most_bytes
        redactor = Redactor(spec.redaction, b"") if spec.redaction else None
        self._hidden = frozenset(name for name in self._names if redactor is not None and redactor.hides(name))
        shape = infer(spec.input_schema)
        self._converters = []
        for index, name in enumerate(self._names):
            try:
                self._converters.append(batches.converter(index, shape.member(name)))
            except UnfitError as exc:
                raise DocumentError(
                    f"{path}: column '{name}' has {exc}", hint="convert it before, or leave it out"
                ) from exc
        if len(set(self._names)) < len(self._names):
            raise DocumentError(f"{path} has two columns of one name: {', '.join(self._names)}", hint=NOTHING_INGESTED)

    def of(self, batch: Any) -> Iterator[bytes | dict[str, JSON] | DocumentError]:
        from derive.storage.inputs.arrow_values import exceeds

        is_large = batch.nbytes > self._most_bytes
        has_many = not is_large and exceeds(batch, most_values(self._most_bytes))
        if (is_large or has_many) and batch.num_rows > 1:
            for row in range(batch.num_rows):
                yield from self.of(batch.slice(row, 1))
            return
        size = batch.nbytes // max(batch.num_rows, 1)
        if size > self._most_bytes:
            yield too_large(self._most_bytes, "the row")
            return
        if has_many:
            yield too_many(self._most_bytes)
            return
        unfit: dict[int, str] = {}
        columns = [self._values(index, batch.column(index), unfit) for index in range(batch.num_columns)]
        rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
        for index, cells in enumerate(rows):
            if index in unfit:
                yield DocumentError(unfit[index])
            else:
                document = {name: value for name, value in zip(self._names, cells, strict=True) if value is not None}
                yield sized(document, size)

    def _values(self, index: int, column: Any, unfit: dict[int, str]) -> list[JSON]:
        from derive.storage.inputs.unfit import UnfitError

        convert = self._converters[index]
        try:
            return convert(column)
        except UnfitError:
            pass
        values: list[JSON] = []
        for row in range(len(column)):
            try:
                values += convert(column.slice(row, 1))
            except UnfitError as exc:
                values.append(None)
                name = self._names[index]
                unfit.setdefault(row, f"column '{name}': {_HIDDEN if name in self._hidden else exc}")
        return values
