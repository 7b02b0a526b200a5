"""Changes of a reduced collection: each new document deletes the row of its key, and inserts the new row.

Where a version of the collection ends, the changes are the difference to the contents of the next version.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import pyarrow as pa

from derive.algebra.types import Row, Type
from derive.contents.reads import ReadOptions, read_between
from derive.contents.reduced import reduced_documents
from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import MISSING
from derive.errors import FencedError, FrontierError, ReductionError, SegmentMissingError
from derive.protocol.collection import owner_of_version
from derive.protocol.specs import CollectionSpec, Document, SelectorSpec
from derive.reduce.combiner import Combiner, key_failure
from derive.relations.columns import columns_of, compile_rows
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.texts import parse_texts
from derive.time import BEGINNING
from derive.time.extent import size_of

MOST_UPDATES = 100_000
"""Approximate number of documents after which a poll ends."""


_Published: TypeAlias = tuple[int, bytes, str]
"""Timestamp, packed key and text of a document."""


class ReducedInput:
    """A reduced collection from a time on, for a dataflow.

    The input holds the capability to read the collection until the input is closed.

    Args:
        store: the data folder.
        spec: the collection.
        as_of: timestamp, at or above the collection's `since` and below its `upper`.
        most_updates: see `MOST_UPDATES`.
        requested: indexes of the needed columns; other columns are NULL. None for all columns.
        place: file of the reduced documents; None for a temporary one.
        on_close: called when the input is closed.

    Attributes:
        types: types of the columns.
        since: time after which updates are returned.
        has_more: whether the last poll ended before all updates.
        keeps: True: the snapshot is stored.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are compacted.
    """

    keeps = True

    def __init__(
        self,
        store: Readable,
        spec: CollectionSpec,
        as_of: int,
        *,
        most_updates: int = MOST_UPDATES,
        requested: Collection[int] | None = None,
        place: Path | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        columns = columns_of(spec)
        self.types: tuple[Type, ...] = tuple(column.type for column in columns)
        self.since = as_of
        self.has_more = False
        self._store = store
        self._source = spec
        self._most_updates = most_updates
        self._rows = compile_rows(columns, requested)
        self._place, self._on_close = place, on_close
        self._frontier = as_of + 1
        self._held: apsw.Connection | None = None
        self._capability = store.capabilities.keep(spec.name, as_of, at=as_of)
        self._spec = self._capability.read_as(spec)
        self._combiner = Combiner(self._spec.read_schema, name=spec.name)

    def close(self) -> None:
        """Release the capability to read."""
        self._capability.close()
        if self._held is not None:
            self._held.close()
        if self._on_close is not None:
            self._on_close()

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `since`, the only time that may be read."""
        assert as_of == self.since
        for documents, clocks in self._hydrated():
            yield self._rows(documents, clocks)

    def count(self, as_of: int) -> int:
        """Return the approximate number of documents published up to a time.

        Raises:
            FrontierError: the collection is not known at that time yet.
        """
        if as_of >= self._capability.upper():
            raise FrontierError(f"'{self._spec.name}' is not yet known at {format_rfc3339(as_of)}")
        read = read_between(self._store, self._spec, SelectorSpec(), BEGINNING, as_of + 1, self._capability.relation)
        return size_of([read]).documents

    def opener(self, as_of: int, requested: Collection[int] | None, place: Path) -> Callable[[], ReducedInput]:
        """Return a function that opens the collection in another process from a time on, with a file for documents."""
        return partial(_opened, self._store.root, self._source, as_of, requested, place)

    def adopt(self, as_of: int, place: Path) -> None:
        """Continue from a time with the documents stored in a file, which is deleted on closing."""
        self._held = _database(place)
        place.unlink()
        self.since = as_of
        self._frontier = as_of + 1

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """Return the updates that are final and were not returned yet.

        Returns:
            A frontier, and all new updates below it: times, rows and diffs, by time.

        Raises:
            FencedError: the collection was reset, or the capability has expired.
        """
        upper = self._capability.upper()
        if upper <= self._frontier:
            turned = self._turn()
            return self._frontier, turned
        held = self._hydrate()
        updates: list[tuple[int, Row, int]] = []
        with held:
            frontier = upper
            for rows, end in self._read(upper):
                updates += self._changes(held, rows)
                if len(updates) >= 2 * self._most_updates:
                    frontier = end
                    break
        self._frontier, self.has_more = frontier, frontier < upper
        self._capability.move(frontier)
        return frontier, updates

    def _hydrate(self) -> apsw.Connection:
        """Return the database of the stored documents, which are read now if the snapshot was not read before."""
        if self._held is None:
            for _ in self._hydrated():
                pass
        assert self._held is not None
        return self._held

    def _turn(self) -> list[tuple[int, Row, int]]:
        """Continue with the next version, if the present one has ended, and return the difference between the two.

        The difference has the first timestamp of the next version, and is empty until that timestamp is final.
        """
        former = self._store.collection_of(self._capability.relation)
        known = self._store.collection(self._spec.name)
        begin = self._frontier
        if former is None or owner_of_version(former.name) != self._spec.name or known is None or known.upper <= begin:
            return []
        capability = self._store.capabilities.keep(self._spec.name, begin, at=begin)
        held = self._hydrate()
        with held:
            held.execute("CREATE TABLE next (key BLOB PRIMARY KEY, clock INTEGER NOT NULL, doc TEXT NOT NULL)")
            with closing(reduced_documents(self._store, self._source, ReadOptions(as_of=begin))) as parts:
                for part in parts:
                    rows = ((key, clock, text) for clock, _, key, text in part.tuples())
                    held.executemany("INSERT INTO next VALUES (?, ?, ?)", rows)
            updates = [(begin, row, -1) for row in self._differing(held, "held", "next")]
            updates += [(begin, row, 1) for row in self._differing(held, "next", "held")]
            held.execute("DELETE FROM held; INSERT INTO held SELECT * FROM next; DROP TABLE next").fetchall()
        self._capability.close()
        self._capability, self._frontier, self.has_more = capability, begin + 1, known.upper > begin + 1
        self._spec = capability.read_as(self._source)
        self._combiner = Combiner(self._spec.read_schema, name=self._spec.name)
        return updates

    def _differing(self, held: apsw.Connection, ours: str, others: str) -> list[Row]:
        """Return the rows of documents in one table that another table lacks."""
        rows: list[Any] = held.execute(
            f"SELECT ours.clock, ours.doc FROM {ours} ours LEFT JOIN {others} others USING (key)"
            " WHERE ours.doc IS NOT others.doc OR ours.clock IS NOT others.clock"
        ).fetchall()
        texts = pa.array([text for _, text in rows], pa.string())
        return list(self._rows(parse_texts(texts), [clock for clock, _ in rows]))

    def _hydrated(self) -> Generator[tuple[list[Document], Sequence[int]]]:
        """Store and yield the documents at `since`."""
        held = _database(self._place)
        held.execute(
            "CREATE TABLE held (key BLOB PRIMARY KEY, clock INTEGER NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID"
        )
        self._held = None
        with held, closing(reduced_documents(self._store, self._source, ReadOptions(as_of=self.since))) as parts:
            for part in parts:
                held.executemany(
                    "INSERT INTO held VALUES (?, ?, ?)", ((key, clock, text) for clock, _, key, text in part.tuples())
                )
                yield part.documents(), part.clocks()
        self._held = held

    def _read(self, upper: int) -> Iterator[tuple[list[_Published], int]]:
        """Yield new documents in order, with the frontier below which they are complete."""
        read = read_between(self._store, self._spec, SelectorSpec(), self._frontier, upper, self._capability.relation)
        pending: list[_Published] = []
        try:
            for rows in read_sorted(self._store.location, [read]):
                pending += [(clock, key, text) for clock, _, key, text in rows.tuples()]
                last = pending[-1][0]  # more documents of this time may follow
                count = bisect_left(pending, last, key=itemgetter(0))
                if count:
                    yield pending[:count], last
                    pending = pending[count:]
        except SegmentMissingError as exc:
            if self._store.is_missing(exc.path):
                raise
            raise FencedError(f"'{self._spec.name}' was reset during the read") from exc
        yield pending, upper

    def _changes(self, held: apsw.Connection, published: list[_Published]) -> list[tuple[int, Row, int]]:
        """Return the changes by the documents of complete times."""
        versions = _Versions(held, self._combiner, self._spec.name)
        documents = parse_texts(pa.array([text for _, _, text in published], pa.string()))
        moves: list[tuple[int, int | None, int]] = []
        for clock, group in groupby(zip(published, documents, strict=True), key=lambda item: item[0][0]):
            before: dict[bytes, int | None] = {}
            for (_, key, _), document in group:
                if key not in before:
                    before[key] = versions.current(key)
                versions.reduce(key, clock, document)
            for key, version in before.items():
                moves += [(clock, version, -1), (clock, versions.current(key), 1)]
        versions.write()
        rows = self._rows(versions.documents, versions.clocks)
        return [(clock, rows[version], diff) for clock, version, diff in moves if version is not None]


def _opened(
    root: Path, spec: CollectionSpec, as_of: int, requested: Collection[int] | None, place: Path
) -> ReducedInput:
    from derive.storage.store import Store

    store = Store(root, reading=True)
    try:
        return ReducedInput(store, spec, as_of, requested=requested, place=place, on_close=store.close)
    except BaseException:
        store.close()
        raise


def _database(place: Path | None) -> apsw.Connection:
    """Open a database for one connection; the database is not used after a crash."""
    held = apsw.Connection("" if place is None else str(place))
    held.execute(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-65536"
    ).fetchall()
    return held


class _Versions:
    """The reduced documents of keys, one version after the other.

    Attributes:
        documents: the document of each version.
        clocks: timestamp of the last update in each version.
    """

    def __init__(self, held: apsw.Connection, combiner: Combiner, name: str) -> None:
        self._held = held
        self._name = name
        self._step = combiner.full_step
        self._versions: dict[bytes, int | None] = {}
        self.documents: list[Document] = []
        self.clocks: list[int] = []

    def current(self, key: bytes) -> int | None:
        """Return the number of a key's current version; None if missing."""
        if key not in self._versions:
            row: Any = self._held.execute("SELECT clock, doc FROM held WHERE key = ?", (key,)).fetchone()
            self._versions[key] = None if row is None else self._add(row[0], parse_exact(row[1].encode()))
        return self._versions[key]

    def reduce(self, key: bytes, clock: int, document: Document) -> None:
        """Reduce a document onto a key's current version.

        Raises:
            ReductionError: a strategy does not fit the two documents.
        """
        version = self.current(key)
        try:
            value = self._step(MISSING if version is None else self.documents[version], document)
        except ReductionError as exc:
            raise key_failure(self._name, key, exc) from exc
        self._versions[key] = None if value is MISSING else self._add(clock, value)

    def _add(self, clock: int, document: Document) -> int:
        self.documents.append(document)
        self.clocks.append(clock)
        return len(self.documents) - 1

    def write(self) -> None:
        """Store the current versions."""
        there = [(key, version) for key, version in self._versions.items() if version is not None]
        texts = [dump_exact(self.documents[version]).decode() for _, version in there]
        self._held.executemany(
            "INSERT OR REPLACE INTO held VALUES (?, ?, ?)",
            ((key, self.clocks[version], text) for (key, version), text in zip(there, texts, strict=True)),
        )
        gone = [(key,) for key, version in self._versions.items() if version is None]
        self._held.executemany("DELETE FROM held WHERE key = ?", gone)
