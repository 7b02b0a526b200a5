"""Unique keys: checks that a table has at most one row per key where its endpoint stores one row per key.

Rows of a table are a multiset, but an endpoint has one row per key. Of two rows with the same key, the endpoint would
show only the last; after the deletion of either row it would show none. So a materialization stops before it stores
two rows with the same key. A run counts all rows of the table by key once, and then counts each change; a temporary
database holds the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import apsw

from derive.contents.table_updates import read_updates
from derive.document.clock import format_rfc3339
from derive.document.key import show_key
from derive.errors import Issue, TaskError
from derive.materialize.preparation import PreparedMaterialization
from derive.protocol.specs import InputSpec
from derive.storage.roles import Readable
from derive.storage.segments.reader import Selection, read_sorted
from derive.storage.table_types import Table
from derive.time import BEGINNING
from derive.time.positions import SourceRead

DUPLICATES = "E714"
"""Code of the issue that a table has two rows of one key where the endpoint stores one row per key."""

MOST_CHECKED = 500_000
"""Largest number of changes for which `flowctl check` reads a table: about half a second and 20 MB."""

_KEYS_ONLY = Selection(columns={0: ()}, has_documents=False)


def duplicate_issues(prepared: PreparedMaterialization, store: Readable) -> Iterator[Issue]:
    """Yield an issue for each binding that stores one row per key, but reads a table with two rows of one key.

    A run of the materialization stops with the same error. Tables of more than `MOST_CHECKED` changes are skipped here,
    and checked by the run.

    Args:
        prepared: the validated bindings.
        store: the data folder, which may be read-only.
    """
    for binding in prepared.bindings:
        item = binding.spec.input
        known, table = store.collection(item.source), store.tables.find(item.source)
        if binding.delta_updates or known is None or table is None or known.documents > MOST_CHECKED:
            continue
        try:
            keys = UniqueKeys(store, prepared.spec.name, item, table, known.relation)
            keys.require(SourceRead(0, 0, table.upper, table.upper, ()))
        except TaskError as error:
            yield Issue(DUPLICATES, error.message, item.position, error.hint)


class UniqueKeys:
    """The keys of the rows that one input has read.

    Args:
        store: the data folder.
        task: name of the task.
        spec: the input.
        table: the source table.
        relation: the relation of the table; the name of the table may change.
    """

    def __init__(self, store: Readable, task: str, spec: InputSpec, table: Table, relation: int) -> None:
        self._store, self._task, self._spec = store, task, spec
        self._table, self._relation = table, relation
        self._begin = spec.not_before or BEGINNING
        self._counted = self._begin  # all rows before this timestamp are counted
        self._db = apsw.Connection("")
        self._db.execute("PRAGMA synchronous=OFF").fetchall()
        self._db.execute("CREATE TABLE held (key BLOB PRIMARY KEY, n INTEGER NOT NULL CHECK (n <= 1)) WITHOUT ROWID")

    def require(self, read: SourceRead) -> None:
        """Require that no key has two rows at any time of a read, and count its rows.

        Args:
            read: the next read of the input, or the repeated read of a failed attempt.

        Raises:
            TaskError: a key has two rows.
        """
        if self._counted < read.clock_begin:
            segments = self._store.segments(self._table.spec, None, self._begin, self._relation)
            self._count(SourceRead(0, 0, self._counted, read.clock_begin, tuple(segments)))
        begin = max(self._counted, read.clock_begin)
        if begin < read.clock_end:
            self._count(SourceRead(0, 0, begin, read.clock_end, read.segments))

    def _count(self, read: SourceRead) -> None:
        last = b"", BEGINNING

        def rows() -> Iterator[tuple[bytes, int]]:
            nonlocal last
            for part in read_sorted(self._store.location, [read], selection=_KEYS_ONLY):
                for key, diff, clock in zip(
                    part.keys.to_pylist(), part.diffs.tolist(), part.adjusted.tolist(), strict=True
                ):
                    last = key, clock
                    yield key, diff

        try:
            with self._db:
                self._db.executemany(
                    "INSERT INTO held VALUES (?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n", rows()
                )
        except apsw.ConstraintError:
            raise self._violated(*last) from None
        self._counted = read.clock_end

    def _violated(self, key: bytes, clock: int) -> TaskError:
        """Return the error of a key that has two rows from a timestamp on."""
        counts: Counter[str] = Counter()
        for update in read_updates(self._store, self._table.id, self._begin, clock + 1):
            if update.key == key:
                counts[update.text] += update.diff
        rows = " and ".join(sorted((+counts).elements())[:2])
        source, columns = self._spec.source, ", ".join(pointer[1:] for pointer in self._table.key)
        return TaskError(
            f"'{self._spec.name}' of '{self._task}' stores one row for each key of '{source}', but the key"
            f" {show_key(key)} has two rows from {format_rfc3339(clock)} on: {rows}",
            position=self._spec.position,
            hint="let the binding read a materialized view with one row for each key, such as SELECT DISTINCT ON"
            f" ({columns}) … of the table; or give the name of the table to a table whose keys never had two rows, and"
            " write 'onSourceReset: follow'",
        )
