"""Sessions that record the effects of each source document: publications, changed state, and messages.

A recording session passes documents to the lambdas one at a time. The results are the same, because results do not
depend on batches (law L1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from derive.document.pointer import JSON, MISSING
from derive.errors import UsageError
from derive.protocol.derive import DeriveSession, ExplainableSession, Level, Log, ReadBatch, RevertibleSession
from derive.protocol.specs import DerivationSpec, Document
from derive.schema.redaction import Redactor
from derive.shard.inspection import HIDDEN, json_value
from derive.shard.session import Opened
from derive.storage.folder_id import redactor_of
from derive.testing import differences

MODULE_STATE = "state"
"""Name in changes of state that is in no table."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state by one document.

    Attributes:
        table: name of the table; `state` for the state of a module.
        pointer: place in the state of a module; empty for a row.
        old: the row as an object, or the value, before the document; `MISSING` for none.
        new: the row or value after the document; `MISSING` for none.
    """

    table: str
    pointer: str
    old: JSON
    new: JSON


@dataclass(frozen=True, slots=True)
class Effect:
    """The effects of one source document, or of the end of a tick.

    Attributes:
        task: name of the derivation.
        transform: name of the transform; None for the end of a tick.
        source: name of the source collection; None for the end of a tick.
        published_at: timestamp of the document, microseconds.
        at: adjusted timestamp, microseconds: the time `now` of the lambda.
        document: the document; empty for the end of a tick.
        published: published documents, in order.
        changes: changes of state.
        messages: level and text of each message.
    """

    task: str
    transform: str | None
    source: str | None
    published_at: int
    at: int
    document: Document
    published: tuple[Document, ...]
    changes: tuple[Change, ...]
    messages: tuple[tuple[Level, str], ...]


Report: TypeAlias = Callable[[Effect], None]
"""A function that receives effects, in the order of processing."""


class Recorder:
    """Opens recording sessions, as the observer of `observing`.

    Args:
        root: the data folder of the preview.
        report: receives effects.
        has_state: whether changes of state are recorded.
    """

    def __init__(self, root: Path, report: Report, *, has_state: bool) -> None:
        self._root = root
        self._report = report
        self._has_state = has_state

    def __call__(self, spec: DerivationSpec, database: apsw.Connection, _: Log, opened: Opened) -> DeriveSession:
        """Open a recording session; messages of lambdas become a part of effects, and are not logged."""
        rows = RowChanges(database) if self._has_state else None
        messages: list[tuple[Level, str]] = []
        session = opened(spec, database, lambda level, text: messages.append((level, text)))
        redactor = redactor_of(spec.collection, self._root)
        if spec.quarantines and isinstance(session, RevertibleSession):
            recording = _RevertibleRecording(spec, session, messages, rows, redactor, self._report)
            recording.revertible = session
            return recording
        return _RecordingSession(spec, session, messages, rows, redactor, self._report)


class _RecordingSession:
    """A session that wraps another session.

    Args:
        spec: the derivation.
        session: the other session.
        messages: receives the messages of its lambdas.
        rows: changed rows of its database; None to record no state.
        redactor: redactor of published documents; None for none.
        report: receives effects.
    """

    def __init__(
        self,
        spec: DerivationSpec,
        session: DeriveSession,
        messages: list[tuple[Level, str]],
        rows: RowChanges | None,
        redactor: Redactor | None,
        report: Report,
    ) -> None:
        self._spec = spec
        self._session = session
        self._messages = messages
        self._rows = rows
        self._redactor = redactor
        self._report = report
        self._state: JSON = MISSING  # state that is in no table, after the last document
        if rows is not None:
            rows.take()  # changes of migrations are not recorded

    @property
    def flushes(self) -> bool:
        """Return true if batches must include the end of each tick with documents."""
        return self._session.flushes

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the lambdas over a batch, one document after the other."""
        for index, transform in enumerate(batch.transforms):
            document = batch.documents[index]
            if self._rows is not None and self._state is MISSING:
                self._state = self._module_state()
            alone = ReadBatch([transform], [batch.clocks[index]], [batch.published[index]], [document])
            published = [result for _, result in self._session.invoke(alone)]
            self._report(self._effect(transform, alone, published))
            for result in published:
                yield index, result

    def _effect(self, transform: int, batch: ReadBatch, published: list[Document]) -> Effect:
        is_end = transform == len(self._spec.transforms)
        called = None if is_end else self._spec.transforms[transform]
        messages = tuple(self._messages)
        self._messages.clear()
        shown = published if self._redactor is None else list(map(self._redactor.redact, published))
        return Effect(
            task=self._spec.name,
            transform=called.name if called else None,
            source=called.input.source if called else None,
            published_at=batch.published[0],
            at=batch.clocks[0],
            document=batch.documents[0],
            published=tuple(shown),
            changes=tuple(self._changes()),
            messages=messages,
        )

    def _changes(self) -> Iterator[Change]:
        if self._rows is None:
            return
        after = self._module_state()
        yield from self._rows.take()
        for one in differences(self._state, after, strict=True):
            yield Change(MODULE_STATE, one.pointer, one.expected, one.actual)
        self._state = after

    def _module_state(self) -> JSON:
        """Return the state that is in no table; an empty object without such a state."""
        value = self._session.state() if isinstance(self._session, ExplainableSession) else None
        return {} if value is None else value

    def prepare_commit(self) -> None:
        """Write the connector's state."""
        self._session.prepare_commit()

    def close(self) -> None:
        """Release all resources."""
        if self._rows is not None:
            self._rows.close()
        self._session.close()


class _RevertibleRecording(_RecordingSession):
    """A recording session around a session that can undo the work of documents; undone effects are not reported.

    Attributes:
        revertible: the other session.
    """

    revertible: RevertibleSession

    def __init__(
        self,
        spec: DerivationSpec,
        session: DeriveSession,
        messages: list[tuple[Level, str]],
        rows: RowChanges | None,
        redactor: Redactor | None,
        report: Report,
    ) -> None:
        self._effects: list[Effect] = []
        super().__init__(spec, session, messages, rows, redactor, self._effects.append)
        self._kept = report

    def mark(self) -> None:
        """Remember the present state."""
        self.revertible.mark()

    def keep(self) -> None:
        """Report the effects since the mark."""
        self.revertible.keep()
        for effect in self._effects:
            self._kept(effect)
        self._effects.clear()

    def undo(self) -> None:
        """Return to the state at the mark, without the effects since then."""
        self.revertible.undo()
        for recorded in (self._effects, self._messages):
            recorded.clear()
        if self._rows is not None:
            self._rows.forget()
        self._state = MISSING


class RowChanges:
    """The changed rows of a database, in tables that belong to the catalog's author.

    SQLite's preupdate hook reports each change. Several changes of one row are one change from the first old row to the
    last new row.

    Args:
        database: the database; statements must be prepared after this object is created, because without a hook SQLite
            clears a table without a report of its rows.
    """

    def __init__(self, database: apsw.Connection) -> None:
        self._database = database
        self._raw: list[tuple[str, int, int, Row | None, Row | None]] = []
        self._unreadable: str | None = None  # name of a table with a changed row that has a text that is not UTF-8
        database.preupdate_hook(self._note)

    def forget(self) -> None:
        """Forget the changes since the last call of `take`, which were undone."""
        self._raw = []

    def close(self) -> None:
        """End the recording."""
        self._database.preupdate_hook(None)

    def _note(self, update: apsw.PreUpdate) -> None:
        if update.database_name == "main" and not update.table_name.startswith(HIDDEN):
            try:
                old, new = update.old, update.new
            except UnicodeDecodeError:
                self._unreadable = update.table_name
            else:
                self._raw.append((update.table_name, update.rowid, update.rowid_new, old, new))

    def take(self) -> list[Change]:
        """Return and forget the changes after the last call.

        Raises:
            UsageError: a changed row has a text that is not UTF-8.
        """
        if self._unreadable is not None:
            raise UsageError(
                f"a changed row of the table '{self._unreadable}' has a text that is not valid UTF-8",
                hint="leave out --show-state",
            )
        raw, self._raw = self._raw, []
        if not raw:
            return []
        tables = self._tables({name for name, *_ in raw})
        net: dict[tuple[str, Row], tuple[Row | None, Row | None]] = {}
        for name, rowid, new_rowid, old, new in raw:
            if name not in tables:
                continue
            key = tables[name].key
            before = None if old is None else _identity(old, rowid, key)
            after = None if new is None else _identity(new, new_rowid, key)
            first = old
            if before is not None:
                first = net.pop((name, before), (old, None))[0]
                if before != after and first is not None:
                    net[name, before] = first, None
                    first = None
            if after is not None:
                held = net.pop((name, after), None)  # the row was deleted before, and is inserted again
                net[name, after] = (held[0] if held and first is None else first), new
        return [
            Change(name, "", tables[name].shown(old), tables[name].shown(new))
            for (name, _), (old, new) in net.items()
            if old != new
        ]

    def _tables(self, names: set[str]) -> dict[str, _Table]:
        """Return the tables of the author with these names, which exclude the inner tables of virtual tables."""
        # the authorizer would refuse the queries of pragmas
        authorizer, self._database.authorizer = self._database.authorizer, None
        try:
            kinds = dict(self._database.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'"))
            sql = "SELECT name, pk FROM pragma_table_info(?) ORDER BY cid"
            described = {name: self._database.execute(sql, (name,)).fetchall() for name in names}
        finally:
            self._database.authorizer = authorizer
        return {
            name: _Table([(str(column), int(place or 0)) for column, place in columns])
            for name, columns in described.items()
            if kinds.get(name) == "table"
        }


Row: TypeAlias = tuple[Any, ...]
"""Values of a row, in the order of columns."""


class _Table:
    """The columns of a table.

    Args:
        columns: name of each column, and its place in the primary key, from 1; 0 for other columns.
    """

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self._names = [name for name, _ in columns]
        self.key = [index for index, (_, place) in enumerate(columns) if place]

    def shown(self, row: Row | None) -> JSON:
        """Return a row as an object; `MISSING` for none."""
        return MISSING if row is None else dict(zip(self._names, map(json_value, row), strict=False))


def _identity(row: Row, rowid: int, key: Sequence[int]) -> Row:
    """Return the primary key of a row, or its row id."""
    return tuple(row[index] for index in key) if key else (rowid,)
