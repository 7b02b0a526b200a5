"""Replays: run the lambdas of a derivation again, over a state that is empty at first.

A replay of the documents of some shuffle keys has only the state of these keys, because lambdas use only the state of
their own shuffle key. A replay commits nothing: its state is in a temporary folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import numpy as np

from derive.document.exact import parse_exact
from derive.protocol.derive import DeriveSession
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import Document
from derive.shard.invoke import Invoker, SourceBatch
from derive.storage.folder_id import redactor_of
from derive.time.positions import offset_of
from derive.why.past import Part

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
