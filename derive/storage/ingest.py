"""Ingestion: load the documents of a file into a collection, all of them or none.

The documents of a file are read as a stream, validated, given timestamps and written to segments, with constant memory.
At the end, one metadata commit adds the segments to the collection. Until then, a write capability keeps `upper` of the
collection at or below these timestamps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import orjson

from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.document.exact import dump_exact, has_wide_integer, parse_exact
from derive.document.key import compile_keys, key_errors, show_key
from derive.document.pointer import JSON, MISSING, compile_pointer
from derive.errors import DocumentError, FencedError, FrontierError, StorageError
from derive.protocol.specs import CollectionSpec, Document
from derive.schema.redaction import Redactor
from derive.schema.validator import compile_validator
from derive.storage.blobs import translated
from derive.storage.capability.table import RENEW_SECONDS, Capability
from derive.storage.folder_id import redactor_of
from derive.storage.inputs.growing_file import NOTHING_LOST, FilePart
from derive.storage.inputs.line import NOTHING_INGESTED, Line
from derive.storage.metadata.followed import FileMove, FilePosition
from derive.storage.metadata.ingestions import LoadedFile, require_new
from derive.storage.metadata.owner import Door
from derive.storage.roles import Writable
from derive.storage.segments.columns import compile_fields
from derive.storage.segments.partition import INGESTED, compile_labels
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.texts import write_texts
from derive.storage.segments.writer import SegmentWriter
from derive.storage.store import Store
from derive.time import BEGINNING
from derive.time.positions import Segment

SKEW = 60_000_000
"""Tolerance for a document's own time after the present, microseconds, because clocks of machines differ."""

_BATCH, _BATCH_BYTES = 5_000, 8 << 20
"""Limits of a batch, in documents and in bytes."""

_MOST_PROBLEMS = 10

_NO_CLOCK = "without a clock, documents get the present time: leave out --clock"


@dataclass(slots=True)
class Problems:
    """The first defects of a file, and the number of all defects.

    Attributes:
        name: name of the file.
        hint: hint of the error.
        count: number of defects.
        shown: line numbers and messages of the first ten defects.
        first: least line number of a defect.
        is_late: whether a document has a time that is final.
    """

    name: str
    hint: str = NOTHING_INGESTED
    count: int = 0
    shown: list[tuple[int, str]] = field(default_factory=list)
    is_late: bool = False
    first: int = sys.maxsize

    def add(self, line: int, text: str) -> None:
        """Add a defect of a line."""
        self.count += 1
        self.first = min(self.first, line)
        if len(self.shown) < _MOST_PROBLEMS:
            self.shown.append((line, f"{self.name}:{line}: {text}"))

    def add_late(self, line: int, text: str) -> None:
        """Add a document whose time is final: of many, only the first one is shown."""
        if not self.is_late:
            self.is_late = True
            self.hint = f"{self.hint}; {_NO_CLOCK}"
            self.add(line, text)
            return
        self.count += 1

    def add_syntax(self, line: int, error: orjson.JSONDecodeError) -> None:
        """Add a defect of the JSON text that begins in a line."""
        at = min(error.pos, len(error.doc.rstrip()))  # not behind the line break that ends the document
        column = at - error.doc.rfind("\n", 0, at)
        self.add(line + error.doc.count("\n", 0, at), f"not JSON: {error.msg} in column {column}")

    def error(self) -> DocumentError | None:
        """Return an error that lists the defects; None if there are none."""
        if not self.count:
            return None
        listed = "\n  ".join(text for _, text in sorted(self.shown))
        more = f"\n  … and {self.count - len(self.shown):,} more" if self.count > len(self.shown) else ""
        what = "1 document is" if self.count == 1 else f"{self.count:,} documents are"
        return DocumentError(f"{self.name}: {what} not valid:\n  {listed}{more}", hint=self.hint)

    def raise_any(self) -> None:
        """Raise a `DocumentError` that lists the defects, if there are any."""
        if error := self.error():
            raise error


class _Checker:
    """Finds the defects of documents.

    Args:
        spec: the collection.
        clock: JSON pointer to the time in each document; None for documents without own times.
        redactor: redacts documents; None if the collection has no redactions.

    Attributes:
        keys: packs the keys of documents.
    """

    def __init__(self, spec: CollectionSpec, clock: str | None, redactor: Redactor | None) -> None:
        self._spec = spec
        self._clock_pointer = clock
        self._get_clock = compile_pointer(clock) if clock is not None else None
        self._redactor = redactor
        self._validator = compile_validator(spec.write_schema, name=spec.name)
        self.keys = compile_keys(spec.key, spec.key_defaults)

    def valid(self, batch: list[Line], problems: Problems) -> tuple[list[int], list[Document], list[bytes]]:
        """Return the valid documents of a batch with line numbers and packed keys.

        Record the errors of other documents.
        """
        numbers: list[int] = []
        documents: list[Document] = []
        is_valid = self._validator.is_valid
        wide = has_wide_integer(b"\n".join(text for _, text in batch if isinstance(text, bytes)))
        parse = parse_exact if wide else orjson.loads
        for number, text in batch:
            try:
                document = parse(text) if isinstance(text, bytes) else text
            except orjson.JSONDecodeError as exc:  # the message quotes no value
                problems.add_syntax(number, exc)
                continue
            except ValueError as exc:
                problems.add(number, f"not JSON: {exc}" if self._redactor is None else "not JSON")
                continue
            if isinstance(document, DocumentError):
                problems.add(number, document.message)
                continue
            if self._redactor is not None:
                document = self._redactor.redact(document)
            if not is_valid(document):
                positions = self._spec.write_positions
                violation = self._validator.violation(document, key=self._shown_key(document), positions=positions)
                written = f", which is at {violation.position}" if violation.position else ""
                problems.add(number, violation.message + written)
                continue
            numbers.append(number)
            documents.append(document)
        try:
            return numbers, documents, self.keys(documents)
        except DocumentError:
            for index, error in key_errors(self.keys, documents):
                problems.add(numbers[index], error.message)
            return [], [], []

    def _shown_key(self, document: JSON) -> str:
        try:
            is_shown = self._redactor is None and isinstance(document, dict)  # the key may contain a redacted value
            return show_key(self.keys([document])[0]) if is_shown else ""
        except DocumentError:
            return ""

    def positions(
        self, numbers: list[int], documents: list[Document], history: _History, problems: Problems
    ) -> tuple[list[int], list[int]]:
        """Return the timestamps and sequence numbers of documents with own times. Record the errors of times."""
        assert self._get_clock is not None
        clocks: list[int] = []
        seqs: list[int] = []
        for number, document in zip(numbers, documents, strict=True):
            value = self._get_clock(document)
            try:
                clock, seq = history.place(self._parse_clock(value))
            except LateError as exc:
                problems.add_late(number, exc.message)
                continue
            except (DocumentError, FrontierError) as exc:
                problems.add(number, exc.message)
                continue
            clocks.append(clock)
            seqs.append(seq)
        return clocks, seqs

    def _parse_clock(self, value: JSON) -> int:
        if not isinstance(value, str):
            text = dump_exact(value).decode() if self._redactor is None else "another value"
            shown = "no value" if value is MISSING else text
            raise DocumentError(f"the clock {self._clock_pointer} must be an RFC 3339 time, but is {shown}")
        try:
            return parse_rfc3339(value)
        except ValueError as exc:
            shown = f": {value}" if self._redactor is None else ""
            raise DocumentError(f"the clock {self._clock_pointer} is not an RFC 3339 time{shown}") from exc


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """The result for a part of a followed file.

    Attributes:
        documents: number of documents that were ingested.
        after: the new position in the file; None if the first document of the part has a defect.
        error: the defects in the rest of the part; None without defects.
    """

    documents: int
    after: FilePosition | None
    error: DocumentError | None


_Batch: TypeAlias = tuple[list[bytes], Any, Any, Any]
"""The keys, texts, labels and fields of documents."""


class Ingestion:
    """Loads files into one collection.

    Args:
        store: the data folder.
        spec: the collection.
        clock: JSON pointer to an RFC 3339 time in each document, to load history; None to stamp the present.
        progress: called with the number of documents read so far.
        renew_seconds: interval for the renewal of the write capability, also while the input has a pause.
        door: kind of writer.

    Raises:
        OwnedError: the collection belongs to another writer.
    """

    def __init__(
        self,
        store: Writable,
        spec: CollectionSpec,
        *,
        clock: str | None = None,
        progress: Callable[[int], None] = lambda _: None,
        renew_seconds: float = RENEW_SECONDS,
        door: Door = Door.INGEST,
    ) -> None:
        store.require_open(spec.name, door)
        self._store, self._door = store, door
        self._spec = spec
        self._is_history = clock is not None
        self._progress = progress
        self._renew_seconds = renew_seconds
        self._checker = _Checker(spec, clock, redactor_of(spec, store.root))
        self._labels = compile_labels(spec)
        self._fields = compile_fields(spec)
        store.create(spec)
        store.garbage.collect_abandoned(spec.name)

    def load(self, name: str, lines: Iterable[Line], file: LoadedFile | None = None) -> int:
        """Load one file, and return the number of its documents.

        Args:
            name: name of the file, for messages.
            lines: documents of the file, with line numbers.
            file: input to record as a load; None to record none.

        Raises:
            RepeatedLoadError: a load with the same identifier and content is in the collection already.
            StorageError: a load has the same identifier and other content.
            DocumentError: documents are malformed or invalid; the first ten are listed.
            OwnedError: another writer has become the owner of the collection.
            FencedError: the collection was truncated or dropped meanwhile.
            FrontierError: with `clock`, a time is below the collection's `upper`, or not later than a stored document.
        """

        def write(writer: SegmentWriter, capability: Capability) -> int:
            if file is not None and file.load_id is not None:
                # The capability exists already: a later commit of another load does not move `upper` past its frontier.
                require_new(self._store.load(self._spec.name, file.load_id), file)
            return self._write(name, lines, writer, capability)

        return self._commit(name, write, file)

    def load_parts(self, parts: Sequence[FilePart]) -> list[LoadedPart]:
        """Load parts of followed files in one commit, which also moves the positions of the files.

        Of a part with a defect, the documents before the defect are ingested.

        Raises:
            MovedPositionError: another process has moved the position of a file, and nothing was ingested.
            OwnedError: another writer has become the owner of the collection.
            FencedError: the collection was truncated or dropped meanwhile.
        """
        checked = [self._check_part(part) for part in parts]
        moves = [
            FileMove(part.before, result.after)
            for part, (_, result) in zip(parts, checked, strict=True)
            if result.after is not None
        ]

        def write(writer: SegmentWriter, capability: Capability) -> int:
            last = capability.frontier
            for keys, texts, labels, fields in (batch for batches, _ in checked for batch in batches):
                first = self._store.timeline.assign(len(keys))
                last = first + len(keys) - 1
                rows = WrittenRows.of(np.arange(first, last + 1), np.zeros(len(keys), np.int32), keys, texts, labels)
                writer.write(rows.with_fields(fields))
            return last

        if moves:
            self._commit("the followed files", write, moves=moves)
        return [result for _, result in checked]

    def _check_part(self, part: FilePart) -> tuple[list[_Batch], LoadedPart]:
        """Return the documents of a part up to its first defect."""
        problems = Problems(part.name, NOTHING_LOST)
        ends: list[DocumentError] = []
        batches: list[_Batch] = []
        last: int | None = None
        for batch in batches_of(part.name, _until_error(part.lines(), ends)):
            had_problems = problems.count > 0
            numbers, prepared = self._prepared(batch, problems)
            if not had_problems and problems.count:  # the lines before the first defect are valid
                numbers, prepared = self._prepared(
                    [line for line in batch if line[0] < problems.first], Problems(part.name)
                )
            if numbers and not had_problems:
                batches.append(prepared)
                last = numbers[-1]
        error = problems.error() or next(iter(ends), None)
        if error is None:
            after: FilePosition | None = part.after(None)
        else:
            after = None if last is None else part.after(last)
        count = sum(len(keys) for keys, *_ in batches)
        if after is not None:
            after = replace(after, documents=after.documents + count)
        return batches, LoadedPart(count, after, error)

    def _prepared(self, batch: list[Line], problems: Problems) -> tuple[list[int], _Batch]:
        """Return the line numbers and the columns of the valid documents of a batch."""
        numbers, documents, keys = self._checker.valid(batch, problems)
        try:
            columns = keys, write_texts(documents), self._labels(documents), self._fields(documents)
        except DocumentError:
            if not self._find_defects(numbers, documents, problems):
                raise
            return [], ([], [], [], [])
        return numbers, columns

    def _find_defects(self, numbers: list[int], documents: list[Document], problems: Problems) -> bool:
        """Record the documents that cannot be stored; return true if there are any."""
        before = problems.count
        for number, document in zip(numbers, documents, strict=True):
            try:
                write_texts([document])
                self._labels([document])
                self._fields([document])
            except DocumentError as exc:
                problems.add(number, exc.message)
        return problems.count > before

    def _commit(
        self,
        name: str,
        write: Callable[[SegmentWriter, Capability], int],
        file: LoadedFile | None = None,
        moves: Sequence[FileMove] = (),
    ) -> int:
        """Write documents to segments, add these to the collection, and return the number of documents."""
        store, collection = self._store, self._spec.name
        capability = store.acquire_write(collection, history=self._is_history, door=self._door)
        writer = SegmentWriter(store.location, self._spec, f"{INGESTED}{capability.id}", is_valid=True)
        is_done = False
        segments: list[Segment] = []
        try:
            with translated(store.root), store.capabilities.renewed(capability, self._renew_seconds):
                last = write(writer, capability)
                segments = writer.close()
                if file is not None:
                    file.digest()  # the rest of the input is read before the commit
            if segments or file is not None or moves:
                frontier = last + 1 if segments else capability.frontier
                store.update_and_downgrade(
                    capability, segments, frontier, ascending=self._is_history, is_last=True, file=file, moves=moves
                )
                is_done = True
        except BaseException as exc:
            if not self._are_committed(segments):
                writer.abort()
            if isinstance(exc, StorageError):
                self._require_live(capability, name, exc)
            raise
        finally:
            if not is_done:
                store.capabilities.release(capability)
        return sum(segment.documents for segment in segments)

    def _require_live(self, capability: Capability, name: str, cause: StorageError) -> None:
        """Raise an error if a failure follows from the end of the capability: files without it may be removed."""
        try:
            self._store.capabilities.renew(capability)
        except FencedError:
            raise FencedError(
                f"the capability to write '{self._spec.name}' has expired, or the collection was truncated or dropped",
                hint=f"nothing of {name} was ingested; run the command again",
            ) from cause

    def _are_committed(self, segments: list[Segment]) -> bool:
        """Return true if segments are committed: Ctrl-C may interrupt the process directly after the commit."""
        known = self._store.garbage.known(self._spec.name) if segments else set()
        return any(segment.path in known for segment in segments)

    def _write(self, name: str, lines: Iterable[Line], writer: SegmentWriter, capability: Capability) -> int:
        problems = Problems(name)
        history = _History(capability.frontier, self._spec.name)
        count = 0
        last = capability.frontier
        for batch in batches_of(name, lines):
            numbers, documents, keys = self._checker.valid(batch, problems)
            if problems.count and not self._is_history:
                _find_unwritable(numbers, documents, problems)  # report more defects, but write nothing
                continue
            clocks, seqs = self._stamp(numbers, documents, history, problems)
            if problems.count:
                continue
            try:
                rows = self._rows(clocks, seqs, keys, documents)
            except DocumentError:
                if not _find_unwritable(numbers, documents, problems):
                    raise
                continue
            last = int(clocks[-1])
            writer.write(rows)
            count += len(documents)
            self._progress(count)
        problems.raise_any()
        return last

    def _stamp(
        self, numbers: list[int], documents: list[Document], history: _History, problems: Problems
    ) -> tuple[Any, Any]:
        if not self._is_history:
            first = self._store.timeline.assign(len(documents))
            return np.arange(first, first + len(documents)), np.zeros(len(documents), dtype=np.int32)
        history.present = self._store.timeline.time()
        clocks, seqs = self._checker.positions(numbers, documents, history, problems)
        return np.array(clocks, dtype=np.int64), np.array(seqs, dtype=np.int32)

    def _rows(self, clocks: Any, seqs: Any, keys: list[bytes], documents: list[Document]) -> WrittenRows:
        rows = WrittenRows.of(clocks, seqs, keys, write_texts(documents), self._labels(documents))
        return rows.with_fields(self._fields(documents))


def check(
    store: Store,
    spec: CollectionSpec,
    name: str,
    lines: Iterable[Line],
    *,
    clock: str | None,
    after: int = BEGINNING,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Check the documents of a file as an ingestion does, and store nothing.

    Args:
        store: the data folder, which may not exist.
        spec: the collection.
        name: name of the file, for messages.
        lines: documents of the file, with line numbers.
        clock: JSON pointer to the time of each document; None to stamp the present.
        after: with `clock`, the least time of a document, if the `upper` of the collection is not later.
        progress: called with the number of documents read so far.

    Returns:
        The number of documents, and the least time that a next file may have.

    Raises:
        DocumentError: documents are malformed or invalid; the first ten are listed.
        OwnedError: the collection belongs to another writer.
    """
    store.require_open(spec.name, Door.INGEST)
    known = store.collection(spec.name)
    # Redaction with another salt finds the same defects.
    checker = _Checker(spec, clock, Redactor(spec.redaction, b"") if spec.redaction else None)
    labels, fields = compile_labels(spec), compile_fields(spec)
    problems = Problems(name)
    history = _History(max(after, known.upper if known else BEGINNING), spec.name)
    history.present = store.timeline.time()
    count = 0
    for batch in batches_of(name, lines):
        numbers, documents, _ = checker.valid(batch, problems)
        if clock is not None:
            after = max([after, *(at + 1 for at in checker.positions(numbers, documents, history, problems)[0][-1:])])
        if not _find_unwritable(numbers, documents, problems):
            labels(documents)
            fields(documents)
        count += len(documents)
        progress(count)
    problems.raise_any()
    return count, after


def _find_unwritable(numbers: list[int], documents: list[Document], problems: Problems) -> bool:
    """Record the documents that cannot be stored as JSON text; return true if there are any."""
    before = problems.count
    for number, document in zip(numbers, documents, strict=True):
        try:
            write_texts([document])
        except DocumentError as exc:
            problems.add(number, exc.message)
    return problems.count > before


class LateError(FrontierError):
    """The time of a document is below `upper`."""


class _History:
    """Assigns positions to documents: their own times, which must not decrease, and numbers for equal times.

    Attributes:
        present: the present time.
    """

    def __init__(self, upper: int, collection: str) -> None:
        self.present = upper
        self._upper = upper
        self._collection = collection
        self._last = -1
        self._seq = 0

    def place(self, clock: int) -> tuple[int, int]:
        if clock < self._upper:
            raise LateError(
                f"the time {format_rfc3339(clock)} is below the upper of '{self._collection}',"
                f" {format_rfc3339(self._upper)}: earlier times are final and take no documents"
            )
        if clock < self._last:
            raise FrontierError(
                f"the time {format_rfc3339(clock)} is before the time of the previous document,"
                f" {format_rfc3339(self._last)}: sort the documents by time"
            )
        if clock > self.present + SKEW:
            raise FrontierError(
                f"the time {format_rfc3339(clock)} is in the future: the time is now {format_rfc3339(self.present)},"
                f" and"
                f" '{self._collection}' would be final up to the time of the document"
            )
        self._seq = self._seq + 1 if clock == self._last else 0
        self._last = clock
        return clock, self._seq


def _until_error(lines: Iterator[Line], ends: list[DocumentError]) -> Iterator[Line]:
    """Yield lines; add the error that ends them to `ends`."""
    try:
        yield from lines
    except DocumentError as exc:
        if exc.hint == NOTHING_INGESTED:
            exc.hint = NOTHING_LOST
        ends.append(exc)


def batches_of(name: str, lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield the lines of a file in batches of limited size.

    Raises:
        DocumentError: the file cannot be read.
    """
    iterator = iter(lines)
    while True:
        batch: list[Line] = []
        size = 0
        try:
            for line in islice(iterator, _BATCH):
                batch.append(line)
                if type(line[1]) is bytes:
                    size += len(line[1])
                    if size >= _BATCH_BYTES:
                        break
        except OSError as exc:
            raise DocumentError(f"{name} cannot be read: {exc.strerror or exc}", hint=NOTHING_INGESTED) from exc
        if not batch:
            return
        yield batch
