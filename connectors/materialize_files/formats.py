"""Columns and formats of a file: JSON Lines and CSV; Parquet has its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from connectors.kit import Binding, Field, StoredRows, Value

Kind: TypeAlias = Literal["boolean", "integer", "number", "string", "json"]
"""`json` is for objects, arrays, and values of several types: each is its JSON text."""

DELETED = "flow_deleted"
"""Name of the last column, which says whether the row's key is deleted."""


def kind_of(field: Field) -> Kind:
    """Return the kind of values in a field's column."""
    types = set(field.types) - {"null"}
    if types == {"boolean"}:
        return "boolean"
    if types == {"integer"}:
        return "integer"
    if types and types <= {"integer", "number"}:
        return "number"
    return "string" if types == {"string"} else "json"


class JsonLinesSink:
    """Whole documents, one per line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def add(self, rows: StoredRows) -> None:
        """Add the rows' documents."""
        # An unescaped line break can only be between tokens.
        self._file.writelines(document.replace(b"\n", b" ") + b"\n" for document in rows.documents)

    def close(self) -> None:
        """Write the remaining data."""
        self._file.close()


class CsvSink:
    """A line of names, and then one line per row (RFC 4180).

    Only texts are quoted, so that an absent value differs from an empty text.
    """

    def __init__(self, path: Path, binding: Binding) -> None:
        fields = [field.name for field in (*binding.keys, *binding.values)]
        self._has_document = binding.document is not None
        names = [*fields, *([binding.document] if binding.document else []), DELETED]
        self._file = path.open("w", encoding="utf-8", errors="surrogatepass", newline="")
        self._file.write(",".join(map(_show, names)) + "\r\n")

    def add(self, rows: StoredRows) -> None:
        """Add rows."""
        columns: list[Sequence[Value]] = [*rows.key_columns, *rows.value_columns]
        columns += [rows.documents] if self._has_document else []
        columns.append(rows.deleted)
        shown = [list(map(_show, column)) for column in columns]
        self._file.writelines(",".join(row) + "\r\n" for row in zip(*shown, strict=True))

    def close(self) -> None:
        """Write the remaining data."""
        self._file.close()


def _show(value: Value) -> str:
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else repr(value)


class Sink(Protocol):
    """A file to which rows are added."""

    def add(self, rows: StoredRows) -> None:
        """Add rows."""

    def close(self) -> None:
        """Flush everything to the file. Called also after an error."""


def _parquet(path: Path, binding: Binding) -> Sink:
    from connectors.materialize_files.parquet import ParquetSink

    return ParquetSink(path, binding)


def _json_lines(path: Path, binding: Binding) -> Sink:
    return JsonLinesSink(path)


def _csv(path: Path, binding: Binding) -> Sink:
    return CsvSink(path, binding)


FORMATS: Mapping[str, Callable[[Path, Binding], Sink]] = {"parquet": _parquet, "jsonl": _json_lines, "csv": _csv}
"""Formats by name, which is also the suffix of their files."""
