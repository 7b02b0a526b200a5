"""Invocation of lambdas: from source documents to published documents, and at the end of a tick.

The end of a tick is treated as one more document of one more transform, at the tick's last microsecond. So neither the
division into transactions nor the number of shards changes the timestamps and the order of its publications (law L1). A
shard sees the end of each tick of which it saw a document.

A quarantine has the source documents that the transforms of a transaction put aside. Its segments belong to the
transaction: they are committed together with its documents and its state. An entry has the timestamp at which a
publication of its document would have been stored, so entries are the same for any number of shards and any division
into transactions (law L1).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from types import TracebackType
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.clock import format_rfc3339
from derive.document.columns import Columns
from derive.document.exact import dump_exact, parse_exact
from derive.document.key import absent_fields, compile_keys, key_errors, show_key, unpack
from derive.document.key_columns import KeyColumns
from derive.document.pointer import JSON
from derive.errors import DocumentError, Fact, FlowError, Rejection, SchemaViolation
from derive.position import Position
from derive.protocol.collection import is_of_sql, owner_of_version, quarantine_spec
from derive.protocol.derive import (
    Causes,
    ColumnSession,
    DeriveSession,
    Integers,
    PublishedColumns,
    PublishedDocuments,
    ReadBatch,
    RevertibleSession,
)
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec, Document
from derive.schema.flat import FlatSchema
from derive.schema.redaction import Redactor
from derive.schema.validator import Validator, compile_validator
from derive.shard.plan import Plan
from derive.shard.published import Documents, Keys, Published
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import ReadRows, WrittenRows, concat
from derive.storage.segments.writer import SegmentWriter
from derive.time import BEGINNING, tick_end
from derive.time.positions import Segment


def with_ends(
    parts: Iterator[ReadRows], spec: DerivationSpec, invoker: Invoker, processed: Callable[[int], None]
) -> Iterator[ReadRows]:
    """Yield source rows, with rows for the ends of ticks if the session requests them.

    Args:
        parts: source rows in order, of whole ticks in total.
        spec: the derivation.
        invoker: invoker of the session.
        processed: called with the number of processed documents.
    """
    tick: int | None = None
    last: ReadRows | None = None
    for rows in parts:
        if invoker.flushes:
            yield _marked(rows, spec, tick)
            tick, last = int(rows.adjusted[-1]) // spec.tick, rows
        else:
            yield rows
        processed(len(rows))
    if tick is not None and last is not None:
        yield _ends(spec, np.array([tick])).like(last)


def _marked(rows: ReadRows, spec: DerivationSpec, before: int | None) -> ReadRows:
    """Return rows with the ends of ticks between them, and the end of the previous tick before them."""
    ticks = rows.adjusted // spec.tick
    previous = np.concatenate([ticks[:1] if before is None else [before], ticks[:-1]])
    borders = np.flatnonzero(previous != ticks)
    if not borders.size:
        return rows
    order = np.insert(np.arange(len(rows)), borders, len(rows) + np.arange(borders.size))
    return concat([rows, _ends(spec, previous[borders]).like(rows)]).take(order)


def _ends(spec: DerivationSpec, ticks: np.ndarray) -> ReadRows:
    count = len(ticks)
    clocks, transforms = (ticks + 1) * spec.tick - 1, np.full(count, len(spec.transforms))
    return ReadRows.of(clocks, transforms, np.zeros(count, dtype=np.int32), [b""] * count, ["{}"] * count)


def end_batch(spec: DerivationSpec, tick: int) -> SourceBatch:
    """Return the end of a tick as a batch for lambdas."""
    clocks = np.array([tick_end(tick * spec.tick, spec.tick) - 1])
    return SourceBatch([len(spec.transforms)], clocks, lambda _: b"", [{}], unchecked=np.array([False]))


def order_of(
    rows: ReadRows, causes: Causes, texts: pa.StringArray, spec: DerivationSpec
) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Return the sort columns of the causing documents: the position of each published document in processing order.

    For publications at the end of a tick, their text stands for the key of the source document. So their order does not
    depend on the publishing shard.

    Args:
        rows: source documents.
        causes: index of the causing document in `rows`, for each published document.
        texts: JSON texts of the published documents.
        spec: the derivation.
    """
    adjusted, transforms, seqs, keys = rows.sort_columns(pa.array(causes, pa.int32()))
    ends = pc.equal(transforms, len(spec.transforms))
    if pc.any(ends).as_py():
        keys = pc.if_else(ends, texts.cast(pa.binary()), keys)
    return adjusted, transforms, seqs, keys


MANY = 64
"""Number of source documents from which columns are cheaper than single documents."""

_PART = 10_000
"""Number of published documents that are handled at once."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Parsed source documents in processing order; the columns are parallel.

    Attributes:
        transforms: index of the transform that reads each document; `Integers` for a connector that reads arrays.
        adjusted: adjusted timestamps, an int64 array.
        key_of: returns the packed key of a document, for error messages.
        documents: parsed documents; with `fields`, loaded on access.
        fields: as in `ReadBatch`.
        unchecked: mask of documents that must still be validated; None for all.
        written: as in `ReadBatch`.
        seq_of: returns the sequence number of a document, for a quarantine.
    """

    transforms: Sequence[int]
    adjusted: np.ndarray
    key_of: Callable[[int], bytes]
    documents: Sequence[Document]
    fields: Sequence[Sequence[Sequence[JSON]]] | None = None
    unchecked: np.ndarray | None = None
    written: Callable[[slice], bytes] | None = None
    seq_of: Callable[[int], int] = lambda _: 0

    def take(self, rows: Sequence[int]) -> SourceBatch:
        """Return the documents with these ascending indices; they are known to be valid."""
        fields = None
        if self.fields is not None:
            ranks: list[list[int]] = [[] for _ in self.fields]
            counts, chosen = [0] * (len(self.fields) + 1), set(rows)
            for row, transform in enumerate(self.transforms):
                if row in chosen and transform < len(ranks):
                    ranks[transform].append(counts[transform])
                counts[transform] += 1
            fields = [
                [[values[rank] for rank in own] for values in columns]
                for own, columns in zip(ranks, self.fields, strict=True)
            ]
        return SourceBatch(
            transforms=[self.transforms[row] for row in rows],
            adjusted=self.adjusted.take(rows),
            key_of=lambda row: self.key_of(rows[row]),
            documents=_Taken(self.documents, rows),
            fields=fields,
            unchecked=np.zeros(len(rows), dtype=bool),
            seq_of=lambda row: self.seq_of(rows[row]),
        )


class _Taken(Sequence[Document]):
    """Some documents of a sequence, looked up on access."""

    def __init__(self, documents: Sequence[Document], rows: Sequence[int]) -> None:
        self._documents = documents
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if isinstance(index, slice):
            return [self._documents[row] for row in self._rows[index]]
        return self._documents[self._rows[index]]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A source document to put aside.

    Attributes:
        transform: index of the transform that reads it.
        clock: its timestamp.
        adjusted: its adjusted timestamp.
        seq: its sequence number.
        key: its packed key.
        document: the document.
        error: the reason.
    """

    transform: int
    clock: int
    adjusted: int
    seq: int
    key: bytes
    document: Document
    error: str


class Invoker:
    """Validates source documents, runs a session's lambdas over them, and validates the published documents.

    Args:
        spec: the derivation.
        session: its session over a shard's state.
        offsets: microseconds from timestamp to adjusted timestamp, by transform index.
        clamp: the output's `upper`, the lower bound of published timestamps.
        many: number of source documents from which columns are published, if the session can publish columns.
        packs_later: whether distinct keys of columns are packed later, together with other keys.
        redactor: redactor of published documents; None for none.
        reject: called with each source document that a transform puts aside.
    """

    def __init__(
        self,
        spec: DerivationSpec,
        session: DeriveSession,
        offsets: Sequence[int],
        clamp: int,
        many: int = MANY,
        *,
        packs_later: bool = False,
        redactor: Redactor | None = None,
        reject: Callable[[Rejected], None] = lambda _: None,
    ) -> None:
        self._spec = spec
        self._clamp = clamp
        self._many = many
        self._packs_later = packs_later
        self._redactor = redactor
        self._session = session
        self._reject = reject
        self._revertible = session if spec.quarantines and isinstance(session, RevertibleSession) else None
        self._columns = session if isinstance(session, ColumnSession) else None
        self._offsets = np.array([*offsets, 0], dtype=np.int64)  # the last offset is for the ends of ticks
        self._flush = len(spec.transforms)
        by_source = {name: compile_validator(source.read_schema, name=name) for name, source in spec.sources.items()}
        self._sources: list[Validator] = [by_source[input_spec.source] for input_spec in spec.inputs]
        self._one_source = self._sources[0] if len(by_source) == 1 else None
        self._sources.append(compile_validator(True, name=spec.name))
        collection = spec.collection
        self._output = compile_validator(collection.write_schema, name=spec.name)
        self._flat = FlatSchema(collection.write_schema)
        self._keys = compile_keys(collection.key, collection.key_defaults)
        self._column_keys = KeyColumns(collection.key, collection.key_defaults)

    @property
    def flushes(self) -> bool:
        """Return true if the session needs the ends of ticks.

        The invoker calls the session only if there are documents, because the call may start the session.
        """
        return self._session.flushes

    def invoke(self, source: SourceBatch, *, as_columns: bool = True) -> Iterator[Published]:
        """Run a batch; yield its publications in parts, because few documents can cause many publications.

        Args:
            source: the batch.
            as_columns: whether to accept columns from the session; this is faster, unless most documents are parsed
                later.

        Yields:
            Publications in order; none for an empty result.

        Raises:
            SchemaViolation: a source document or a published document is invalid.
            LambdaError: a lambda failed.
        """
        if not self._spec.quarantines:
            self._check_sources(source)
            yield from self._run(source, as_columns=as_columns)
            return
        rows: Sequence[int] = range(len(source.transforms))
        try:
            self._check_sources(source)
        except SchemaViolation:
            rows = self._valid_rows(source)
            source = source.take(rows)
        if rows:
            yield from self._run_isolated(source, np.asarray(rows), as_columns=as_columns)

    def _valid_rows(self, source: SourceBatch) -> list[int]:
        """Return the indices of valid documents, and put invalid documents aside.

        Raises:
            SchemaViolation: an invalid document has a transform that stops.
        """
        rows = []
        for row, (index, document) in enumerate(zip(source.transforms, source.documents, strict=True)):
            is_known = source.unchecked is not None and not source.unchecked[row]
            if is_known or self._sources[index].is_valid(document):
                rows.append(row)
            else:
                violation = self._invalid_source(index, source.key_of(row), document)
                self._put_aside(source, row, violation, violation.message)
        return rows

    def _run_isolated(self, source: SourceBatch, rows: np.ndarray, *, as_columns: bool) -> Iterator[Published]:
        """Run valid documents; isolate each document that fails, and put it aside.

        If a document fails, the documents before it run again, and then the document alone. Its error is therefore
        independent of the batch, and its work is undone before the next document runs. Documents run in parts, which
        shrink with each failure and grow again.

        Args:
            source: the documents.
            rows: index of each document in the batch of the caller.
            as_columns: as for `invoke`.

        Raises:
            FlowError: a failure that is no document's, or one of a transform that stops.
        """
        count = len(source.transforms)
        begin, end, size, is_suspect = 0, count, count, False
        while begin < count:
            part = source if end - begin == count else source.take(range(begin, end))
            parts = self._attempt(part, as_columns=as_columns)
            if isinstance(parts, int) and len(part.transforms) == 1:  # it was put aside
                begin, end, is_suspect = end, min(count, end + size), False
                continue
            if isinstance(parts, int):  # the index of a document that fails in this part
                size = max(1, parts)
                end, is_suspect = begin + size, parts > 0
                continue
            for published in parts:
                yield replace(published, causes=rows[begin:end].take(published.causes))
            size = size if is_suspect else 2 * size
            begin, end = end, min(count, end + (1 if is_suspect else size))
            is_suspect = False

    def _attempt(self, source: SourceBatch, *, as_columns: bool) -> list[Published] | int:
        """Run documents; undo them if one of them fails, and put a single one aside.

        Returns:
            The publications; or the index of a document that has failed. Its failure may depend on documents before it.
        """
        if self._revertible is None:
            return list(self._run(source, as_columns=as_columns))
        self._revertible.mark()
        try:
            parts = list(self._run(source, as_columns=as_columns))
        except FlowError as error:
            rejection = error.rejection
            if rejection is None:
                raise
            if len(source.transforms) == 1:
                self._put_aside(source, 0, error, rejection.reason)
            self._revertible.undo()
            return rejection.index
        self._revertible.keep()
        return parts

    def _put_aside(self, source: SourceBatch, row: int, error: FlowError, reason: str) -> None:
        """Put a document aside, or raise its error if its transform stops."""
        index = source.transforms[row]
        if index == self._flush or not self._spec.transforms[index].quarantines:
            raise error
        adjusted = int(source.adjusted[row])
        clock = adjusted - int(self._offsets[index])
        self._reject(
            Rejected(index, clock, adjusted, source.seq_of(row), source.key_of(row), source.documents[row], reason)
        )

    def _run(self, source: SourceBatch, *, as_columns: bool) -> Iterator[Published]:
        """Run valid documents."""
        read = source.adjusted - self._offsets.take(np.asarray(source.transforms))
        listed = Integers if isinstance(source.transforms, Integers) else np.ndarray.tolist
        clocks = listed(source.adjusted), listed(read)
        batch = ReadBatch(source.transforms, *clocks, source.documents, source.fields, source.written)
        parts = None
        are_many = as_columns and len(batch.documents) >= self._many
        if are_many and self._columns is not None:
            parts = self._columns.invoke_columns(batch)
        if parts is not None and self._revertible is not None:
            parts = iter(list(parts))  # all documents have run before one of them is found to be invalid
        if parts is None:
            yield from self._invoke_one_by_one(source, batch, are_many=are_many)
            return
        for published in parts:
            part = published if self._redactor is None else _redacted(published, self._redactor)
            if isinstance(part, PublishedDocuments):
                yield self._published_documents(source, batch, part.causes, part.documents)
                continue
            if not self._flat.proves(part.columns):
                self._check_published(batch, part.causes, part.columns.documents())
            yield self._published_columns(source, batch, part)

    def _invoke_one_by_one(self, source: SourceBatch, batch: ReadBatch, *, are_many: bool) -> Iterator[Published]:
        invoked = self._session.invoke(batch)
        if self._revertible is not None:
            invoked = iter(list(invoked))
        # Publications at the end of a tick are sorted as a whole.
        most = None if self._session.flushes else _PART
        while True:
            causes: list[int] = []
            results: list[Document] = []
            # Pairs are consumed one by one, because a list of them would make the whole run a tenth slower.
            for cause, document in itertools.islice(invoked, most):
                causes.append(cause)
                results.append(document)
            if not causes:
                return
            if self._redactor is not None:
                results = list(map(self._redactor.redact, results))
            if self._session.flushes:
                results = self._in_order(batch.transforms, causes, results)
            columns = self._proven(results) if are_many else None
            if columns is not None:
                yield self._published_columns(source, batch, PublishedColumns(causes, columns))
            else:
                yield self._published_documents(source, batch, causes, results)
            if most is None or len(causes) < most:
                return

    def _proven(self, results: Sequence[Document]) -> Columns | None:
        """Return published documents as columns if the columns prove their validity; None otherwise."""
        columns = Columns.of_documents(results) if self._flat.may_prove(tuple(results[0])) else None
        return columns if columns is not None and self._flat.proves(columns) else None

    def _published_documents(
        self, source: SourceBatch, batch: ReadBatch, causes: Causes, documents: Sequence[Document]
    ) -> Published:
        """Return the publication of single documents."""
        self._check_published(batch, causes, documents)
        keys = self._valid_keys(batch, causes, documents)
        return Published(causes, self._clocks(source, causes), keys, Documents(documents))

    def _published_columns(self, source: SourceBatch, batch: ReadBatch, part: PublishedColumns) -> Published:
        """Return the publication of valid columns."""
        columns = part.columns
        keys: Keys | KeyColumns
        if self._packs_later and self._column_keys.are_distinct(columns):
            keys = self._column_keys
        else:
            try:
                keys = self._column_keys.pack(columns)
            except DocumentError:
                keys = self._valid_keys(batch, part.causes, columns.documents())
        return Published(part.causes, self._clocks(source, part.causes), keys, columns)

    def _clocks(self, source: SourceBatch, causes: Causes) -> np.ndarray:
        """Return the timestamps of publication."""
        clocks: np.ndarray = source.adjusted.take(causes)
        # The first timestamp is the least.
        return np.maximum(clocks, self._clamp) if clocks[0] < self._clamp else clocks

    def _valid_keys(self, batch: ReadBatch, causes: Causes, results: Sequence[Document]) -> list[bytes]:
        """Return the packed keys of published documents."""
        try:
            return self._keys(results)
        except DocumentError:
            index, exc = next(key_errors(self._keys, results))
            raise self._unkeyed(batch, causes[index], results[index], exc) from exc

    def _unkeyed(self, batch: ReadBatch, cause: int, document: Document, exc: DocumentError) -> DocumentError:
        position, name, source = self._publisher(batch, cause)
        message = f"{name} of '{self._spec.name}' published a document without a key: {exc.message}"
        facts = self._shown(document)
        rejection = Rejection(int(cause), FlowError(message, facts=facts).message)
        return DocumentError(message, position=position, rejection=rejection, facts=[*facts, *source])

    def _in_order(self, transforms: Sequence[int], causes: list[int], results: list[Document]) -> list[Document]:
        """Return published documents in order; documents of the end of a tick are sorted by their JSON text.

        So the order of the publishing shards does not change the reduction of documents of one key.
        """
        ordered: list[Document] = []
        for cause, group in itertools.groupby(zip(causes, results, strict=True), key=itemgetter(0)):
            documents = [document for _, document in group]
            ordered += sorted(documents, key=dump_exact) if transforms[cause] == self._flush else documents
        return ordered

    def _check_sources(self, source: SourceBatch) -> None:
        """Validate the documents that are not known to be valid."""
        rows: Sequence[int] = range(len(source.transforms))
        transforms, documents = source.transforms, source.documents
        if source.unchecked is not None and not source.unchecked.all():
            if not source.unchecked.any():
                return
            rows = np.flatnonzero(source.unchecked).tolist()
            transforms, documents = [transforms[row] for row in rows], [documents[row] for row in rows]
        if self._one_source is not None and not self._session.flushes:
            if all(map(self._one_source.is_valid, documents)):
                return
        elif all(
            self._sources[index].is_valid(document) for index, document in zip(transforms, documents, strict=True)
        ):
            return
        for row, index, document in zip(rows, transforms, documents, strict=True):
            if not self._sources[index].is_valid(document):
                raise self._invalid_source(index, source.key_of(row), document)

    def _invalid_source(self, index: int, key: bytes, document: Document) -> SchemaViolation:
        transform = self._spec.transforms[index]
        positions = self._spec.sources[transform.input.source].read_positions
        return _in_context(
            self._sources[index].violation(document, key=show_key(key), positions=positions),
            f"transform '{transform.name}' of '{self._spec.name}' reads",
        )

    def _check_published(self, batch: ReadBatch, causes: Causes, results: Sequence[Document]) -> None:
        if all(map(self._output.is_valid, results)):
            return
        for cause, document in zip(causes, results, strict=True):
            if not self._output.is_valid(document):
                is_keyed = self._redactor is None and not self._absent(document)
                key = show_key(self._keys([document])[0]) if is_keyed else ""
                positions = self._spec.collection.write_positions
                violation = self._output.violation(document, key=key, positions=positions)
                position, name, source = self._publisher(batch, cause)
                message = f"{name} of '{self._spec.name}' published an invalid document"
                reason, shown = Fact("reason", ": ", violation.message), self._shown(document)
                written = [Fact("schema", ", which is at ", str(violation.position))] if violation.position else []
                raise SchemaViolation(
                    message,
                    position=position,
                    hint=violation.hint or self._key_hint(document),
                    rejection=Rejection(int(cause), FlowError(message, facts=[reason, *shown]).message),
                    facts=[reason, *written, *shown, *source],
                )

    def _key_hint(self, document: Document) -> str | None:
        """Return the hint for a published document that lacks a field of the key; None for other documents."""
        absent = ", ".join(self._absent(document))
        return f"each published document needs its key: add {absent} to what the lambda publishes" if absent else None

    def _absent(self, document: Document) -> list[str]:
        """Return the fields of the key that a published document lacks."""
        collection = self._spec.collection
        return absent_fields(collection.key, collection.key_defaults, document)

    def _shown(self, document: Document) -> list[Fact]:
        """Return a published document for a message.

        With redaction there is no fact, because a value that must be redacted may be at a wrong location.
        """
        if self._redactor is not None:
            return []
        return [Fact("published", "; it is ", dump_exact(document).decode()[:500])]

    def _publisher(self, batch: ReadBatch, cause: int) -> tuple[Position, str, list[Fact]]:
        """Return the position and name of the publisher of a batch's document, and the reason of the publication."""
        index = batch.transforms[cause]
        if index == self._flush:
            code = find_runtime(self._spec.connector).shared_code(self._spec)
            return code.position if code else self._spec.collection.position, "flush()", []
        transform = self._spec.transforms[index]
        source = Fact("document", ", published for ", dump_exact(batch.documents[cause]).decode()[:500])
        position = transform.script.position if transform.script else transform.position
        return position, f"transform '{transform.name}'", [source]


def _in_context(violation: SchemaViolation, context: str) -> SchemaViolation:
    message = f"{context} an invalid document: {violation.message}"
    return SchemaViolation(message, position=violation.position, hint=violation.hint)


def _redacted(part: PublishedDocuments | PublishedColumns, redactor: Redactor) -> PublishedDocuments | PublishedColumns:
    if isinstance(part, PublishedDocuments):
        return PublishedDocuments(part.causes, list(map(redactor.redact, part.documents)))
    columns = part.columns
    redacted = [
        redactor.redact_column(name, values) for name, values in zip(columns.names, columns.values, strict=True)
    ]
    names = tuple(name for name, values in zip(columns.names, redacted, strict=True) if values is not None)
    if not names:
        return PublishedDocuments(part.causes, [{} for _ in range(len(columns))])
    return PublishedColumns(part.causes, Columns.of(names, [values for values in redacted if values is not None]))


_MOST_BUFFERED = 1_000
_SHOWN = 2_000
_DIGITS = 20


class QuarantineWriter:
    """Writes the entries of one part of a transaction; removes them if the block raises.

    Args:
        plan: the transaction.
        name: name of the part.
        attempt: number of this attempt.

    Attributes:
        clamp: lower bound of the timestamps of entries.
        last: greatest timestamp of an entry; `BEGINNING` without entries.
    """

    def __init__(self, plan: Plan, name: str, attempt: int) -> None:
        self.clamp = plan.clamp
        self.last = BEGINNING
        self._plan = plan
        self._name = f"{plan.attempt(attempt)}-{name}"
        self._writer: SegmentWriter | None = None
        self._entries: list[tuple[int, Document]] = []
        self._equal: Counter[bytes] = Counter()  # entries for equal rows of tables, by their origin

    def __enter__(self) -> QuarantineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._writer is not None:
            self._writer.abort()

    def put(self, rejected: Rejected) -> None:
        """Add an entry."""
        clock = max(rejected.adjusted, self.clamp)
        self.last = max(self.last, clock)
        self._entries.append((clock, self._entry(rejected)))
        if len(self._entries) >= _MOST_BUFFERED:
            self._flush()

    def close(self) -> tuple[Segment, ...]:
        """Write the remaining entries; return the durable files."""
        self._flush()
        return () if self._writer is None else tuple(self._writer.close())

    def _flush(self) -> None:
        if not self._entries:
            return
        spec = quarantine_spec(self._plan.spec.name)
        if self._writer is None:
            self._writer = SegmentWriter(self._plan.location, spec, self._name, is_valid=True)
        clocks, documents = [clock for clock, _ in self._entries], [document for _, document in self._entries]
        keys = compile_keys(spec.key, spec.key_defaults)(documents)
        seqs = [0] * len(documents)
        self._writer.write(WrittenRows.sorted_of(clocks, seqs, keys, documents, compile_labels(spec)(documents)))
        self._entries.clear()

    def _entry(self, rejected: Rejected) -> Document:
        spec = self._plan.spec
        transform = spec.transforms[rejected.transform]
        state_key, source = transform.input.state_key, transform.input.source
        origin = f"{state_key}\0{rejected.clock}\0{rejected.seq}\0".encode() + rejected.key
        if is_of_sql(source):  # a table may have equal rows
            self._equal[origin] += 1
            origin += b"\0%d" % self._equal[origin]
        error = rejected.error
        for name in (spec.name, *spec.sources):  # after a swap, the quarantine of a shadow is that of the live task
            if (live := owner_of_version(name)) is not None:
                error = error.replace(f"'{name}'", f"'{live}'")
        return {
            "id": hashlib.sha256(origin).hexdigest()[:_DIGITS],
            "input": state_key,
            "transform": transform.name,
            "source": owner_of_version(source) or source,
            "key": [parse_exact(value) if isinstance(value, bytes) else value for value in unpack(rejected.key)],
            "clock": format_rfc3339(rejected.clock),
            "error": error if len(error) <= _SHOWN else f"{error[:_SHOWN]}…",
            "document": rejected.document,
        }
