"""The file of a transaction's rows, written incrementally in one of three formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from connectors.kit import Binding, StoredRows


class Sink(Protocol):
    """A file that rows are added to."""

    def add(self, rows: StoredRows) -> None:
        """Add rows."""

    def close(self) -> None:
        """Flush everything to the file. Called also after an error."""


def _parquet(path: Path, binding: Binding) -> Sink:
    from connectors.materialize_files.parquet import ParquetSink

    return ParquetSink(path, binding)


def _json_lines(path: Path, binding: Binding) -> Sink:
    from connectors.materialize_files.text import JsonLinesSink

    return JsonLinesSink(path)


def _csv(path: Path, binding: Binding) -> Sink:
    from connectors.materialize_files.text import CsvSink

    return CsvSink(path, binding)


FORMATS: Mapping[str, Callable[[Path, Binding], Sink]] = {"parquet": _parquet, "jsonl": _json_lines, "csv": _csv}
"""Formats by name, which is also the suffix of their files."""
