"""Replays: run the lambdas of a derivation again, over a state that is empty at first.

A replay of the documents of some shuffle keys has only the state of these keys, because lambdas use only the state of
their own shuffle key. A replay commits nothing: its state is in a temporary folder.

The past of a derivation has the parts that a replay needs, with their definitions. A folder of an older version has no
record of the transactions before its first commit by this version. For these times, a replay assumes that the first
known definition was in force, and that all transactions were regular. An explanation reports these assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import numpy as np

from derive.document.clock import format_rfc3339
from derive.document.exact import parse_exact
from derive.engine.edits import reset_command
from derive.errors import UsageError
from derive.protocol.definition_text import restored
from derive.protocol.derive import DeriveSession
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec, Document, TransformSpec
from derive.shard.invoke import Invoker, SourceBatch
from derive.storage.folder_id import redactor_of
from derive.storage.metadata.descriptions import PastPart
from derive.storage.roles import Readable
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import offset_of


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a derivation's past.

    Attributes:
        number: number of the part, ascending with time.
        spec: the definition that was in force.
        is_regular: true if the extents of its transactions do not matter; another part is one transaction, or one step
            of a transaction on a cycle.
        clamp: the output's `upper` before the part: no published timestamp is below it.
        upper: the output's `upper` after the part.
        ranges: the processed adjusted timestamps of each transform by its index: the first, and the one after the last.
    """

    number: int
    spec: DerivationSpec
    is_regular: bool
    clamp: int
    upper: int
    ranges: Mapping[int, tuple[int, int]]

    @property
    def has_steps(self) -> bool:
        """Return whether the part may have several steps, so that the order of its documents is not recorded.

        A transaction on a cycle has many steps. If priorities differ, each step reads the documents that exist.
        """
        inputs = self.spec.inputs
        return len({item.priority for item in inputs}) > 1 and any(item.feedback for item in inputs)

    def bounds(self, transform: TransformSpec, last: int = END_OF_TIME) -> tuple[int, int]:
        """Return the timestamps of the source that a transform read: the first, and the one after the last.

        Args:
            transform: a transform of the part's definition.
            last: adjusted timestamp from which on documents are left out.
        """
        read, offset = transform.input, offset_of(transform.input, self.spec.tick)
        begin, end = self.ranges[transform.index]
        least = max(begin - offset, read.not_before or BEGINNING)
        return least, min(min(end, last) - offset, END_OF_TIME if read.not_after is None else read.not_after)


@dataclass(frozen=True, slots=True)
class Past:
    """The past of a derivation.

    Attributes:
        parts: its parts in order, at least one.
        unknown: `upper` of the output below which the first definition is assumed; `BEGINNING` for a complete record.
    """

    parts: tuple[Part, ...]
    unknown: int


def past_of(store: Readable, present: DerivationSpec) -> Past:
    """Return the past of a derivation.

    Args:
        store: the data folder.
        present: the derivation as the catalog defines it now.

    Raises:
        UsageError: a former definition cannot be restored.
    """
    recorded = store.past(present.name)
    if not recorded:
        everything = {item.index: (BEGINNING, END_OF_TIME) for item in present.inputs}
        upper = store.upper(present.name)
        return Past((Part(0, present, True, BEGINNING, upper, everything),), upper)
    parts = tuple(_restored(store, recorded, present))
    first = parts[0]
    if first.clamp == BEGINNING:
        return Past(parts, BEGINNING)
    before = {index: (BEGINNING, begin) for index, (begin, _) in first.ranges.items()}
    return Past((Part(first.number - 1, first.spec, True, BEGINNING, first.clamp, before), *parts), first.clamp)


def _restored(store: Readable, recorded: list[PastPart], present: DerivationSpec) -> Iterator[Part]:
    specs: dict[str, DerivationSpec] = {}
    for part in recorded:
        spec = specs.get(part.definition) or restored(part.definition, present)
        if spec is None:
            raise UsageError(
                f"documents of '{present.name}' from {format_rfc3339(part.clamp)} on were derived under another"
                " definition, which cannot be restored: its connector stores no configurations, or its salt differs",
                hint=f"restore the former definition, or start over: {reset_command(store, present.name)}",
            )
        specs[part.definition] = spec
        ranges = {}
        for item in spec.inputs:
            begin = part.begins.get(item.state_key, BEGINNING)
            ranges[item.index] = (begin, max(begin, part.ends.get(item.state_key, begin)))
        yield Part(part.number, spec, part.is_regular, part.clamp, part.upper, ranges)


_BATCH = 10_000
"""Number of documents that are parsed at once."""


class SourceRow(NamedTuple):
    """A source document as a transform reads it; rows sort in the order of processing: by part, then by law L4.

    The transform of the end of a tick is the number of transforms, as for `Invoker`.
    """

    part: int
    adjusted: int
    transform: int
    clock: int
    seq: int
    key: bytes
    text: str


class Publication(NamedTuple):
    """A published document, before it is combined: its cause, timestamp, packed key and value."""

    cause: SourceRow
    clock: int
    key: bytes
    document: Document


class Replay:
    """A replay of one derivation.

    Args:
        root: the data folder, for the salt of hashes.
        folder: an empty folder for the state.
        part: the first part.

    Attributes:
        part: the part in force.
        session: session over the state.
        invoker: invoker of the session.
        database: the state.
    """

    session: DeriveSession
    invoker: Invoker
    database: apsw.Connection

    def __init__(self, root: Path, folder: Path, part: Part) -> None:
        self._root = root
        # A connector recognizes a shard by the folder around the attempt's folder.
        self._file = folder / "shard" / "attempt" / "state.db"
        self._file.parent.mkdir(parents=True)
        self._begin(part)

    def enter(self, part: Part) -> None:
        """Continue with another part over the same state, like a shard in its next transaction."""
        if part is self.part:
            return
        self.session.prepare_commit()
        self.session.close()
        self.database.execute("COMMIT")
        self.database.close(True)
        self._begin(part)

    def _begin(self, part: Part) -> None:
        self.part, spec = part, part.spec
        self.database = apsw.Connection(str(self._file))
        self.database.execute("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF").fetchall()
        self.database.execute("BEGIN")
        self.session = find_runtime(spec.connector).open(spec, self.database, lambda level, text: None)
        offsets = [offset_of(item, spec.tick) for item in spec.inputs]
        self.invoker = Invoker(
            spec, self.session, offsets, part.clamp, redactor=redactor_of(spec.collection, self._root)
        )

    def with_ends(self, rows: Sequence[SourceRow]) -> list[SourceRow]:
        """Return rows of the present part, with the ends of their ticks if the session needs them."""
        if not rows or not self.invoker.flushes:
            return list(rows)
        tick, end = self.part.spec.tick, len(self.part.spec.transforms)
        ticks = {(row.part, row.adjusted // tick) for row in rows}
        ends = [
            SourceRow(part, (number + 1) * tick - 1, end, (number + 1) * tick - 1, 0, b"", "{}")
            for part, number in ticks
        ]
        return sorted([*rows, *ends])

    def run(self, rows: Sequence[SourceRow]) -> Iterator[Publication]:
        """Process rows of the present part, in order and with the ends of ticks; yield the publications.

        Raises:
            LambdaError: a lambda failed.
            SchemaViolation: a document is invalid.
        """
        for begin in range(0, len(rows), _BATCH):
            batch = rows[begin : begin + _BATCH]
            documents = [parse_exact(row.text.encode()) for row in batch]
            adjusted = np.array([row.adjusted for row in batch], dtype=np.int64)
            transforms = [row.transform for row in batch]
            source = SourceBatch(transforms, adjusted, lambda index, batch=batch: batch[index].key, documents)  # type: ignore[misc]
            for published in self.invoker.invoke(source, as_columns=False):
                columns = (published.clocks.tolist(), published.key_list, published.content.documents())
                for cause, clock, key, document in zip(published.causes, *columns, strict=True):
                    yield Publication(batch[cause], clock, key, document)

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows of the tables of the lambdas, by name."""
        names: list[Any] = self.database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'flow\\_%' ESCAPE '\\'"
            " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        ).fetchall()
        return {
            name: self.database.execute('SELECT * FROM "' + name.replace('"', '""') + '"').fetchall()
            for (name,) in names
        }

    def close(self) -> None:
        """Discard the state."""
        self.session.close()
        self.database.close(True)
