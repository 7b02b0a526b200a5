"""Ingestion: documents from a file into a collection, all of it or nothing.

A file is read as a stream, validated, stamped with clocks and written to segments with flat memory. One metadata
commit at its end makes all of it part of the collection. The write capability held meanwhile keeps the collection from
being sealed past the clocks that are already stamped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa

from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.document.exact import dump_exact, has_wide_integer, parse_exact
from derive.document.key import compile_keys, show_key
from derive.document.pointer import MISSING, compile_pointer
from derive.errors import DocumentError, FrontierError, UsageError
from derive.protocol.specs import JSON, CollectionSpec, Document
from derive.schema.validator import compile_validator
from derive.storage.capability import RENEW_SECONDS, WriteCapability
from derive.storage.label import compile_labels
from derive.storage.metadata import translated
from derive.storage.segment import INGESTED, ROWS, SegmentWriter
from derive.storage.store import Store
from derive.storage.texts import write_texts

Line: TypeAlias = tuple[int, "bytes | Document"]
"""A line number of the input, from 1, and its JSON text or its parsed document."""

_BATCH = 5_000
_MOST_PROBLEMS = 10


@dataclass(slots=True)
class _Problems:
    """The first things wrong with a file, and how many there are."""

    name: str
    count: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        self.count += 1
        if len(self.shown) < _MOST_PROBLEMS:
            self.shown.append(f"{self.name}:{line}: {text}")

    def raise_any(self) -> None:
        if self.count:
            listed = "\n  ".join(self.shown)
            more = f"\n  … and {self.count - len(self.shown)} more" if self.count > len(self.shown) else ""
            what = "1 document is" if self.count == 1 else f"{self.count} documents are"
            raise DocumentError(
                f"{self.name}: {what} not valid:\n  {listed}{more}", hint="nothing of this file was ingested"
            )


class Ingestion:
    """Loads files into one collection.

    Args:
        store: the data folder.
        spec: the collection.
        clock: JSON pointer to an RFC 3339 time in each document, to load history; None to stamp the present.
        progress: told how many documents were read so far.
    """

    def __init__(
        self,
        store: Store,
        spec: CollectionSpec,
        *,
        clock: str | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._spec = spec
        self._clock_pointer = clock
        self._get_clock = compile_pointer(clock) if clock is not None else None
        self._progress = progress
        self._validator = compile_validator(spec.write_schema, name=spec.name)
        self._keys = compile_keys(spec.key, spec.key_defaults)
        self._labels = compile_labels(spec)
        store.create(spec)
        store.files.collect_abandoned(spec.name)

    def load(self, name: str, lines: Iterable[Line]) -> int:
        """Load one file; returns how many documents it held.

        Args:
            name: of the file, for messages.
            lines: its documents.

        Raises:
            DocumentError: some are malformed or invalid; the first ten are listed.
            FrontierError: with `clock`, a time is below the collection's `upper`, or not later than what it holds.
        """
        store, collection = self._store, self._spec.name
        acquire = store.acquire_shared if self._get_clock is None else store.acquire_history
        capability = acquire(collection)
        writer = SegmentWriter(store.root, self._spec, f"{INGESTED}{capability.id}")
        try:
            with translated(store.root):
                last = self._write(name, lines, writer, capability)
            segments = writer.close()
            if segments:
                store.update_and_downgrade(capability, segments, last + 1, ascending=self._get_clock is not None)
        except BaseException:
            writer.abort()
            raise
        finally:
            store.drop(capability)
        return sum(each.documents for each in segments)

    def _write(self, name: str, lines: Iterable[Line], writer: SegmentWriter, capability: WriteCapability) -> int:
        problems = _Problems(name)
        history = _History(capability.frontier, self._spec.name)
        count = 0
        last = capability.frontier
        renewed = time.monotonic()
        for batch in _batches(lines, _BATCH):
            numbers, documents = self._valid(batch, problems)
            if problems.count:
                continue  # keep looking for more, but write nothing
            clocks, seqs = self._stamp(numbers, documents, history, problems)
            if problems.count:
                continue
            last = int(clocks[-1])
            writer.write(self._rows(clocks, seqs, documents))
            count += len(documents)
            self._progress(count)
            if time.monotonic() - renewed > RENEW_SECONDS:
                self._store.renew(capability)
                renewed = time.monotonic()
        problems.raise_any()
        if time.monotonic() - renewed > RENEW_SECONDS:  # the input may have paused for longer than the lease
            self._store.renew(capability)
        return last

    def _valid(self, batch: list[Line], problems: _Problems) -> tuple[list[int], list[Document]]:
        numbers: list[int] = []
        documents: list[Document] = []
        is_valid = self._validator.is_valid
        wide = has_wide_integer(b"\n".join(text for _, text in batch if isinstance(text, bytes)))
        parse = parse_exact if wide else orjson.loads
        for number, text in batch:
            try:
                document = parse(text) if isinstance(text, bytes) else text
            except ValueError as exc:
                problems.add(number, f"not JSON: {exc}")
                continue
            if not is_valid(document):
                key = show_key(self._keys([document])[0]) if isinstance(document, dict) else ""
                violation = self._validator.violation(document, key=key, positions=self._spec.write_positions)
                written = f", which is at {violation.position}" if violation.position else ""
                problems.add(number, violation.message + written)
                continue
            numbers.append(number)
            documents.append(document)
        return numbers, documents

    def _stamp(
        self, numbers: list[int], documents: list[Document], history: _History, problems: _Problems
    ) -> tuple[Any, Any]:
        if self._get_clock is None:
            first = self._store.timeline.assign(len(documents))
            return np.arange(first, first + len(documents)), np.zeros(len(documents), dtype=np.int32)
        clocks: list[int] = []
        seqs: list[int] = []
        for number, document in zip(numbers, documents, strict=True):
            value = self._get_clock(document)
            try:
                clock, seq = history.place(self._parse_clock(value))
            except (DocumentError, FrontierError) as exc:
                problems.add(number, exc.message)
                continue
            clocks.append(clock)
            seqs.append(seq)
        return np.array(clocks, dtype=np.int64), np.array(seqs, dtype=np.int32)

    def _parse_clock(self, value: JSON) -> int:
        if not isinstance(value, str):
            found = "no value" if value is MISSING else dump_exact(value).decode()
            raise DocumentError(f"the clock {self._clock_pointer} must be an RFC 3339 time, and there is {found}")
        try:
            return parse_rfc3339(value)
        except ValueError as exc:
            raise DocumentError(f"the clock {self._clock_pointer} is not an RFC 3339 time: {value}") from exc

    def _rows(self, clocks: Any, seqs: Any, documents: list[Document]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [
                pa.array(clocks, pa.int64()),
                pa.array(seqs, pa.int32()),
                pa.array(self._keys(documents), pa.binary()),
                write_texts(documents),
                self._labels(documents),
            ],
            schema=ROWS,
        )


class _History:
    """Places documents by times of their own, which must ascend; equal ones are numbered."""

    def __init__(self, upper: int, collection: str) -> None:
        self._upper = upper
        self._collection = collection
        self._last = -1
        self._seq = 0

    def place(self, clock: int) -> tuple[int, int]:
        if clock < self._upper:
            raise FrontierError(
                f"its time {format_rfc3339(clock)} is below the upper of '{self._collection}',"
                f" {format_rfc3339(self._upper)}: what comes before is final"
            )
        if clock < self._last:
            raise FrontierError(
                f"its time {format_rfc3339(clock)} is before that of the document above it,"
                f" {format_rfc3339(self._last)}: times must ascend"
            )
        self._seq = self._seq + 1 if clock == self._last else 0
        self._last = clock
        return clock, self._seq


def _batches(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    iterator = iter(lines)
    while batch := list(islice(iterator, size)):
        yield batch


# Formats


def json_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """Documents of a JSON Lines stream; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            yield number, line


def csv_lines(stream: Any, spec: CollectionSpec, name: str) -> Iterator[Line]:
    """Documents of a CSV stream with a header: a column is a field, and its type is the one the schema infers.

    An empty cell is left out. Numbers are JSON numbers where the schema allows them.

    Raises:
        UsageError: the file has no header.
        DocumentError: a row has more cells than the header.
    """
    import csv
    from io import TextIOWrapper

    text = TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    reader = csv.reader(text)
    header = next(reader, None)
    if not header:
        raise UsageError(f"{name} has no header line")
    types = {each.field: each.types for each in spec.projections}
    columns = [(column, types.get(column, frozenset({"string"}))) for column in header]
    for row in reader:
        if len(row) > len(columns):
            raise DocumentError(f"{name}:{reader.line_num}: {len(row)} cells, and the header names {len(columns)}")
        document = {
            column: _typed(cell, kinds) for cell, (column, kinds) in zip(row, columns, strict=False) if cell != ""
        }
        yield reader.line_num, document
    text.detach()  # the stream is its opener's to close


def _typed(cell: str, types: frozenset[str]) -> JSON:
    if types & {"integer", "fractional", "boolean", "object", "array"}:
        try:
            value = parse_exact(cell.encode())
        except ValueError:
            return cell
        return cell if isinstance(value, str) else value
    return cell


def parquet_rows(path: str) -> Iterator[Line]:
    """Documents of a Parquet file: a column is a property; a null is left out."""
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                number += 1
                kept = {name: value for name, value in row.items() if value is not None}
                yield number, orjson.dumps(kept, default=_from_arrow)


def _from_arrow(value: Any) -> JSON:
    import base64
    from decimal import Decimal

    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")
