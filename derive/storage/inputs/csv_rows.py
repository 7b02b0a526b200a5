"""CSV: a header that names columns, and a document for each row."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from derive.document.exact import parse_exact
from derive.errors import DocumentError
from derive.protocol.specs import JSON, CollectionSpec
from derive.schema.infer import infer
from derive.storage.inputs.line import NOTHING_INGESTED, Line

_OTHER_THAN_TEXT = frozenset({"integer", "fractional", "boolean", "object", "array"})
_LARGEST_CELL = (1 << 31) - 1


def csv_rows(stream: BinaryIO, spec: CollectionSpec, name: str) -> Iterator[Line]:
    """Documents of a CSV stream with a header: a column is a field, and its type is the one the schema infers.

    An empty cell is left out. Numbers are JSON numbers where the schema allows them.

    Raises:
        DocumentError: the header names no columns, one of them twice, or not all that the schema requires; or what
            follows is no CSV in UTF-8.
    """
    csv.field_size_limit(_LARGEST_CELL)
    reader = csv.reader(_texts(stream), strict=True)
    try:
        header = next(reader, [])
        _check_header(header, spec, name)
        types = {projection.field: projection.types for projection in spec.projections}
        columns = [(column, types.get(column, frozenset({"string"}))) for column in header]
        for row in reader:
            if not row:
                continue  # a blank line
            if len(row) > len(columns):
                told = f"{len(row)} cells, and the header names {len(columns)}"
                yield reader.line_num, DocumentError(told)
                continue
            document = {
                column: _typed(cell, kinds) for cell, (column, kinds) in zip(row, columns, strict=False) if cell != ""
            }
            yield reader.line_num, document
    except csv.Error as exc:
        raise DocumentError(f"{name}:{reader.line_num}: this is no CSV: {exc}", hint=NOTHING_INGESTED) from exc
    except UnicodeDecodeError as exc:
        raise DocumentError(f"{name}:{reader.line_num + 1}: this is not UTF-8", hint=NOTHING_INGESTED) from exc


def _texts(stream: BinaryIO) -> Iterator[str]:
    yield next(stream, b"").decode("utf-8-sig")
    yield from map(bytes.decode, stream)


def _check_header(header: Sequence[str], spec: CollectionSpec, name: str) -> None:
    if not header:
        raise DocumentError(f"{name} has no header line", hint="its first line is to name the columns")
    for index, column in enumerate(header):
        if column in header[:index]:
            raise DocumentError(f"{name}:1: the header names '{column}' twice", hint=NOTHING_INGESTED)
    missing = sorted(infer(spec.write_schema).required - set(header))
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing)
        raise DocumentError(
            f"{name}:1: '{spec.name}' requires {listed}, and the header does not name"
            f" {'it' if len(missing) == 1 else 'them'}: {','.join(header)[:200]}",
            hint="the first line is to name the columns",
        )


def _typed(cell: str, types: frozenset[str]) -> JSON:
    if types & _OTHER_THAN_TEXT:
        try:
            value = parse_exact(cell.encode())
        except ValueError:
            return cell
        return cell if isinstance(value, str) else value
    return cell
