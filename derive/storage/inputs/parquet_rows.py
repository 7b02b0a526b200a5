"""Parquet: a document for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from derive.errors import DocumentError
from derive.protocol.specs import JSON, CollectionSpec
from derive.schema.infer import infer
from derive.storage.inputs.line import NOTHING_INGESTED, Line

_BATCH = 5_000


def parquet_rows(path: str, spec: CollectionSpec) -> Iterator[Line]:
    """Documents of a Parquet file: a column is a property; a null is left out.

    A value that JSON cannot hold exactly makes its row a `DocumentError` that names the column.

    Raises:
        DocumentError: it is no Parquet file, it is damaged, or a column's type has no JSON form.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    read = 0
    try:
        with pq.ParquetFile(path) as file:
            rows = _Rows(file.schema_arrow, spec, path)
            for batch in file.iter_batches(batch_size=_BATCH):
                yield from enumerate(rows.of(batch), start=read + 1)
                read += batch.num_rows
    except (OSError, pa.ArrowException) as exc:
        what = "is not a readable Parquet file" if not read else f"is damaged behind its row {read:,}"
        raise DocumentError(f"{path} {what}: {' '.join(str(exc).split())}", hint=NOTHING_INGESTED) from exc


class _Rows:
    """Makes documents of batches."""

    def __init__(self, schema: Any, spec: CollectionSpec, path: str) -> None:
        from derive.storage.inputs.arrow_values import UnfitError, converter

        self._names: list[str] = schema.names
        shape = infer(spec.write_schema)
        self._converters = []
        for name, kind in zip(schema.names, schema.types, strict=True):
            try:
                self._converters.append(converter(kind, shape.member(name)))
            except UnfitError as exc:
                raise DocumentError(
                    f"{path}: column '{name}' has {exc}", hint="convert it before, or leave it out"
                ) from exc
        if len(set(self._names)) < len(self._names):
            raise DocumentError(f"{path} has two columns of one name: {', '.join(self._names)}", hint=NOTHING_INGESTED)

    def of(self, batch: Any) -> Iterator[dict[str, JSON] | DocumentError]:
        unfit: dict[int, str] = {}
        columns = [self._values(index, batch.column(index), unfit) for index in range(batch.num_columns)]
        rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
        for index, row in enumerate(rows):
            if index in unfit:
                yield DocumentError(unfit[index])
            else:
                yield {name: value for name, value in zip(self._names, row, strict=True) if value is not None}

    def _values(self, index: int, column: Any, unfit: dict[int, str]) -> list[JSON]:
        from derive.storage.inputs.arrow_values import UnfitError

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
                unfit.setdefault(row, f"column '{self._names[index]}': {exc}")
        return values
