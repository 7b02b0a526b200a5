"""Observations of lambdas: for some source documents, the parameters, the state before, changes and publications.

The documents of one shuffle key are replayed up to the observed document, so the whole state of the replay is the state
of this key. SQLite reports each change of a row, so the document that last wrote a row is known. SQLite does not report
which rows a statement has read; the state before the document has these rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import apsw

from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.protocol.derive import ExplainableSession
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import Document
from derive.why.explain import Explainer, Explanation, ShuffleKeys
from derive.why.replay import Replay, SourceRow

TableRow: TypeAlias = tuple[Any, ...]
"""A row of a table of a lambda: values of SQLite."""

MOST_STATE = 100
"""Largest number of rows of state that an observation has."""

_ATTRIBUTED = 5_000
"""Number of the latest documents whose changes are observed one by one."""


class Writer(NamedTuple):
    """A source document for which a lambda wrote a row.

    Attributes:
        transform: name of the transform; None for the end of a tick.
        source: name of the source collection; empty for the end of a tick.
        row: the source document.
    """

    transform: str | None
    source: str
    row: SourceRow


class StateRow(NamedTuple):
    """A row of state, and the document for which it was last written; None if an older document is the reason."""

    table: str
    row: TableRow
    writer: Writer | None


class Change(NamedTuple):
    """A changed row of a table: before and after; None where it does not exist."""

    table: str
    before: TableRow | None
    after: TableRow | None


@dataclass(frozen=True, slots=True)
class Observation:
    """The processing of one source document.

    Attributes:
        given: values of the lambda's parameters, by parameter; empty for a method.
        earlier: number of earlier documents of the same shuffle key; None if the lambdas keep no state.
        state: rows of the key's state before the document.
        state_rows: number of these rows, of which `state` has the first.
        changes: changed rows, in order.
        value_before: state that is in no table, before the document; None without such a state.
        value_after: state that is in no table, after the document.
        published: the published documents, in order.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    earlier: int | None = None
    state: tuple[StateRow, ...] = ()
    state_rows: int = 0
    changes: tuple[Change, ...] = ()
    value_before: JSON = None
    value_after: JSON = None
    published: tuple[Document, ...] = ()


def observe(
    explainer: Explainer, explanation: Explanation, causes: Collection[SourceRow]
) -> dict[SourceRow, Observation]:
    """Return the observation of each of some replayed documents, except ends of ticks."""
    desired = [row for row in causes if row.transform < len(explanation.part(row.part).spec.transforms)]
    observed: dict[SourceRow, Observation] = {}
    if not desired:
        return observed
    for rows, several in _histories(explanation, desired):
        with closing(explainer.open_replay(explanation.past.parts[0])) as replay:
            observed.update(_Observer(explanation, replay).run(rows, several))
    return observed


def _histories(
    explanation: Explanation, causes: list[SourceRow]
) -> Iterator[tuple[list[SourceRow], frozenset[SourceRow]]]:
    """Yield, for each shuffle key of observed documents, the replayed documents and the observed documents."""
    if not any(_keeps_state(explanation, row.part) for row in causes):
        for row in causes:
            yield [row], frozenset([row])
        return
    keys = _keys_of(explanation, [row for rows in explanation.rows.values() for row in rows])
    groups: dict[bytes, list[SourceRow]] = {}
    for row in causes:
        groups.setdefault(keys[row], []).append(row)
    for key, several in groups.items():
        last = max(several)
        rows = [row for part in explanation.rows.values() for row in part if row <= last and keys[row] == key]
        yield sorted(rows), frozenset(several)


def _keeps_state(explanation: Explanation, number: int) -> bool:
    spec = explanation.part(number).spec
    return find_runtime(spec.connector).keeps_state(spec)


def _keys_of(explanation: Explanation, rows: Iterable[SourceRow]) -> dict[SourceRow, bytes]:
    """Return the packed shuffle key of each document."""
    grouped: dict[tuple[int, int], list[SourceRow]] = {}
    for row in rows:
        grouped.setdefault((row.part, row.transform), []).append(row)
    keys: dict[SourceRow, bytes] = {}
    for (number, index), several in grouped.items():
        spec = explanation.part(number).spec
        keys.update(zip(several, ShuffleKeys(spec, spec.transforms[index]).of(several), strict=True))
    return keys


_Content: TypeAlias = tuple[str, str]
"""A table and the literals of a row, so that an integer and an equal real number differ."""


def _content(table: str, row: TableRow) -> _Content:
    return table, repr(tuple(row))


def _ignored(_: apsw.PreUpdate) -> None:
    """Observe no change."""


class _Observer:
    """Observes a replay of the documents of one shuffle key."""

    def __init__(self, explanation: Explanation, replay: Replay) -> None:
        self._explanation = explanation
        self._replay = replay
        self._writers: dict[_Content, dict[int, SourceRow]] = {}
        self._changes: list[Change] = []
        self._row: SourceRow | None = None

    def run(self, rows: list[SourceRow], causes: frozenset[SourceRow]) -> Iterator[tuple[SourceRow, Observation]]:
        """Replay documents in order; yield the observation of each cause."""
        singly = set(rows[-_ATTRIBUTED:]) | causes
        first = min(singly)
        earlier = {row: number for number, row in enumerate(rows) if row in causes}
        for number in sorted({row.part for row in rows}):
            self._replay.enter(self._explanation.part(number))
            # Without a hook, SQLite would prepare a DELETE of all rows in a form that does not call a later hook.
            self._replay.database.preupdate_hook(_ignored)
            ended = self._replay.with_ends([row for row in rows if row.part == number])
            for _ in self._replay.run([row for row in ended if row < first]):
                pass
            self._replay.database.preupdate_hook(self._changed)
            for row in ended:
                if first <= row <= rows[-1]:  # the last tick has not ended when its last document is observed
                    self._row, self._changes = row, []
                    if row in causes:
                        yield row, self._observed(row, earlier[row])
                    else:
                        self._run(row)
            self._replay.database.preupdate_hook(None)

    def _run(self, row: SourceRow) -> tuple[Document, ...]:
        return tuple(publication.document for publication in self._replay.run([row]))

    def _observed(self, row: SourceRow, earlier: int) -> Observation:
        given: Mapping[str, Any] = {}
        session = self._replay.session
        if isinstance(session, ExplainableSession):
            given = session.given(row.transform, parse_exact(row.text.encode()), row.clock)
        if not _keeps_state(self._explanation, row.part):
            return Observation(given, published=self._run(row))
        state = list(self._state())
        before = session.state() if isinstance(session, ExplainableSession) else None
        published = self._run(row)
        after = session.state() if isinstance(session, ExplainableSession) else None
        changes = tuple(change for change in self._changes if repr(change.before) != repr(change.after))
        return Observation(given, earlier, tuple(state[:MOST_STATE]), len(state), changes, before, after, published)

    def _state(self) -> Iterator[StateRow]:
        """Yield the rows of all tables; among equal rows of a table, rows with an unknown writer are first."""
        for table, rows in self._replay.tables().items():
            equal = Counter(_content(table, row) for row in rows)
            writers = {
                content: iter([*repeat(None, number - len(known)), *(known[place] for place in sorted(known))])
                for content, number in equal.items()
                for known in [self._writers.get(content, {})]
            }
            for row in rows:
                writer = next(writers[_content(table, row)], None)
                yield StateRow(table, row, None if writer is None else self._writer(writer))

    def _writer(self, row: SourceRow) -> Writer:
        spec = self._explanation.part(row.part).spec
        if row.transform == len(spec.transforms):
            return Writer(None, "", row)
        read = spec.inputs[row.transform]
        return Writer(read.name, read.source, row)

    def _changed(self, update: apsw.PreUpdate) -> None:
        table = update.table_name
        if table.startswith("flow_"):
            return
        before, after = update.old, update.new
        if before is not None and after is not None:
            after = tuple(old if new is apsw.no_change else new for old, new in zip(before, after, strict=True))
        # In a table WITHOUT ROWID, whose rows are all different, `rowid` is 0 and `rowid_new` undefined.
        place, next_place = update.rowid, update.rowid and update.rowid_new
        if before is not None:
            self._writers.get(_content(table, before), {}).pop(place, None)
        if after is not None and self._row is not None:
            self._writers.setdefault(_content(table, after), {})[next_place] = self._row
        self._changes.append(
            Change(table, None if before is None else tuple(before), None if after is None else tuple(after))
        )
