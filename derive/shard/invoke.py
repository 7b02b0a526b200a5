"""From source documents to published documents: the part of a shard that is the same wherever it runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa

from derive.document.exact import dump_exact
from derive.document.key import compile_keys, key_errors, show_key
from derive.errors import DocumentError, SchemaViolation
from derive.position import Position
from derive.protocol.derive import DeriveSession, ReadBatch
from derive.protocol.installed import find_runtime
from derive.protocol.specs import DerivationSpec, Document
from derive.schema.validator import Validator, compile_validator
from derive.storage.segments.rows import ReadRows

_PART = 10_000
"""How many published documents are worth handling at once."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Source documents in the order of processing, parsed; the columns run in parallel.

    Attributes:
        transforms: index of the transform that reads each document.
        adjusted: int64 array of adjusted clocks.
        keys: packed keys, to name a document in an error.
        documents: parsed.
    """

    transforms: list[int]
    adjusted: np.ndarray
    keys: Sequence[bytes] | pa.Array
    documents: list[Document]

    @staticmethod
    def of_rows(rows: ReadRows) -> SourceBatch:
        """Source rows, parsed."""
        return SourceBatch(rows.transforms.tolist(), rows.adjusted, rows.keys, rows.documents())


@dataclass(frozen=True, slots=True)
class Published:
    """Some of what lambdas published for one batch, in order; the columns run in parallel.

    Attributes:
        causes: index in the batch of the source document that caused each.
        clocks: int64 array of clocks of publication.
        keys: packed keys.
        documents: valid under the write schema.
    """

    causes: list[int]
    clocks: np.ndarray
    keys: list[bytes]
    documents: list[Document]


class Invoker:
    """Validates source documents, runs a session's lambdas over them, and validates what comes out.

    Args:
        spec: the derivation.
        session: its lambdas, open over a shard's state.
        offsets: microseconds from clock to adjusted clock, by transform index.
        clamp: the output's `upper`: published clocks are not below it.
    """

    def __init__(self, spec: DerivationSpec, session: DeriveSession, offsets: Sequence[int], clamp: int) -> None:
        self._spec = spec
        self._clamp = clamp
        self._session = session
        self._offsets = np.array([*offsets, 0], dtype=np.int64)  # the last one is for the ends of ticks
        self._flush = len(spec.transforms)
        by_source = {name: compile_validator(source.read_schema, name=name) for name, source in spec.sources.items()}
        self._sources: list[Validator] = [by_source[input_spec.source] for input_spec in spec.inputs]
        self._one_source = self._sources[0] if len(by_source) == 1 else None
        self._sources.append(compile_validator(True, name=spec.name))
        self._output = compile_validator(spec.collection.write_schema, name=spec.name)
        self._keys = compile_keys(spec.collection.key, spec.collection.key_defaults)

    @property
    def flushes(self) -> bool:
        """Whether the session is to be told where ticks end; asked when there are documents: it may have to start."""
        return self._session.flushes

    def invoke(self, source: SourceBatch) -> Iterator[Published]:
        """Run a batch; what it publishes comes in parts, as a few documents may have many to publish.

        Yields:
            What was published, in order; nothing where that is nothing.

        Raises:
            SchemaViolation: a source document or a published document is invalid.
            LambdaError: a lambda failed.
        """
        self._check_sources(source)
        transforms = source.transforms
        read = (source.adjusted - self._offsets.take(transforms)).tolist()
        batch = ReadBatch(transforms, source.adjusted.tolist(), read, source.documents)
        invoked = self._session.invoke(batch)
        # What is published at the end of a tick is put in order as a whole.
        most = None if self._session.flushes else _PART
        while True:
            causes: list[int] = []
            results: list[Document] = []
            # One by one: keeping the pairs until there are many makes all of them slower by a tenth.
            for cause, document in itertools.islice(invoked, most):
                causes.append(cause)
                results.append(document)
            if not causes:
                return
            if self._session.flushes:
                results = self._in_order(transforms, causes, results)
            clocks = source.adjusted.take(causes)
            if clocks[0] < self._clamp:  # the first is the least
                clocks = np.maximum(clocks, self._clamp)
            yield Published(causes, clocks, self._valid_keys(batch, causes, results), results)
            if most is None or len(causes) < most:
                return

    def _valid_keys(self, batch: ReadBatch, causes: list[int], results: list[Document]) -> list[bytes]:
        """Packed keys of published documents, all of which are valid."""
        if not all(map(self._output.is_valid, results)):
            self._raise_invalid(batch, causes, results)
        try:
            return self._keys(results)
        except DocumentError:
            index, exc = next(key_errors(self._keys, results))
            raise self._unkeyed(batch, causes[index], results[index], exc) from exc

    def _unkeyed(self, batch: ReadBatch, cause: int, document: Document, exc: DocumentError) -> DocumentError:
        position, name, reason = self._publisher(batch, cause)
        shown = dump_exact(document).decode()[:500]
        message = (
            f"{name} of '{self._spec.name}' published a document without a key: {exc.message}; it is {shown}{reason}"
        )
        return DocumentError(message, position=position)

    def _in_order(self, transforms: Sequence[int], causes: list[int], results: list[Document]) -> list[Document]:
        """Published documents, with those of the end of a tick in the order of their JSON texts.

        Which shard publishes first must not matter where documents of one key are reduced.
        """
        ordered: list[Document] = []
        for cause, group in itertools.groupby(zip(causes, results, strict=True), key=itemgetter(0)):
            documents = [document for _, document in group]
            ordered += sorted(documents, key=dump_exact) if transforms[cause] == self._flush else documents
        return ordered

    def _check_sources(self, source: SourceBatch) -> None:
        transforms, documents = source.transforms, source.documents
        if self._one_source is not None and not self._session.flushes:
            if all(map(self._one_source.is_valid, documents)):
                return
        elif all(
            self._sources[index].is_valid(document) for index, document in zip(transforms, documents, strict=True)
        ):
            return
        for row, (index, document) in enumerate(zip(transforms, documents, strict=True)):
            validator = self._sources[index]
            if not validator.is_valid(document):
                packed = source.keys[row]
                key = packed if isinstance(packed, bytes) else packed.as_py()
                transform = self._spec.transforms[index]
                positions = self._spec.sources[transform.input.source].read_positions
                raise _in_context(
                    validator.violation(document, key=show_key(key), positions=positions),
                    f"transform '{transform.name}' of '{self._spec.name}' reads",
                )

    def _raise_invalid(self, batch: ReadBatch, causes: list[int], results: list[Document]) -> None:
        for cause, document in zip(causes, results, strict=True):
            if not self._output.is_valid(document):
                violation = self._output.violation(
                    document, key=show_key(self._keys([document])[0]), positions=self._spec.collection.write_positions
                )
                written = f", which is at {violation.position}" if violation.position else ""
                position, name, reason = self._publisher(batch, cause)
                raise SchemaViolation(
                    f"{name} of '{self._spec.name}' published an invalid document:"
                    f" {violation.message}{written}; it is {dump_exact(document).decode()[:500]}{reason}",
                    position=position,
                    hint=violation.hint,
                )

    def _publisher(self, batch: ReadBatch, cause: int) -> tuple[Position, str, str]:
        """What published for a document of a batch: where it is written, its name, and for what."""
        index = batch.transforms[cause]
        if index == self._flush:
            code = find_runtime(self._spec.connector).shared_code(self._spec)
            return code.position if code else self._spec.collection.position, "flush()", ""
        transform = self._spec.transforms[index]
        reason = f", published for {dump_exact(batch.documents[cause]).decode()[:500]}"
        position = transform.script.position if transform.script else transform.position
        return position, f"transform '{transform.name}'", reason


def _in_context(violation: SchemaViolation, context: str) -> SchemaViolation:
    message = f"{context} an invalid document: {violation.message}"
    return SchemaViolation(message, position=violation.position, hint=violation.hint)
