"""Computed shuffle keys: a statement that returns one row per document, which determines the document's shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import apsw

from derive.document.pointer import JSON
from derive.errors import Issue, LambdaError, document_fact
from derive.lambda_sql.determinism import PER_DOCUMENT, Chance, calls_chance
from derive.lambda_sql.guard import FAILURES, Guard, Watch, hint_of, reason_of, show_document
from derive.lambda_sql.parameter import Binding, named_fields, with_field_hint
from derive.lambda_sql.statements import Statement, first_issue, read_block
from derive.plural import counted
from derive.position import Position, Script
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, Document, TransformSpec

_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class _Compiled:
    statement: Statement
    binding: Binding


def check_shuffles(spec: DerivationSpec) -> list[Issue]:
    """Return all issues of a derivation's computed shuffles that can be found without documents."""
    compiled = [
        _compile(_open(has_clock=True), spec, transform) for transform in spec.transforms if transform.shuffle.script
    ]
    return [issue for issues in compiled if isinstance(issues, list) for issue in issues]


class ComputedShuffle:
    """The computed shuffle of one transform. The statement sees only the document, and no state.

    Raises:
        LambdaError: the statement is wrong.
    """

    def __init__(self, spec: DerivationSpec, transform: TransformSpec) -> None:
        script = transform.shuffle.script
        assert script is not None
        self._transform = transform
        self._position: Position = script.locate(0)
        self._chance = Chance(spec.limits.sqlite_megabytes) if calls_chance([script.text]) else None
        self._guard = _open(has_clock=self._chance is not None)
        database = self._guard.db
        if self._chance:
            self._chance.register(database)
        compiled = _compile(self._guard, spec, transform)
        if isinstance(compiled, list):
            raise first_issue(compiled[0])
        self._sql, self._columns = compiled.statement.text, compiled.statement.columns
        self._binding = compiled.binding
        self._cursor = database.cursor()
        self._watch = Watch(database, spec.limits.sqlite_seconds, megabytes=spec.limits.sqlite_megabytes)

    def keys(self, batch: ReadBatch) -> list[tuple[JSON, ...]]:
        """Compute the components of each document's shuffle key.

        Raises:
            LambdaError: a document has no row or several rows, or a component has another type than the shuffle key.
        """
        left = iter(list(batch.documents))
        self._watch.begin(self._cursor, left)
        feed = self._binding.feed(left, batch.published)
        if self._chance is not None:
            feed = self._feed_in_time(self._chance, left, batch)
        rows: list[tuple[Any, ...]] = []
        last = len(batch.documents) - 1
        try:
            with self._guard, self._watch:
                for row in self._cursor.executemany(self._sql, feed):
                    index = last - length_hint(left)
                    if index != len(rows):
                        what = "returned no row" if index > len(rows) else "returned more than one row"
                        raise self._failed(batch.documents[min(index, len(rows))], what)
                    rows.append(row)
        except FAILURES as exc:
            reason = f"failed: {reason_of(exc, self._guard, self._watch)}"
            raise self._failed(batch.documents[last - length_hint(left)], reason, hint_of(exc, self._watch)) from exc
        if len(rows) <= last:
            raise self._failed(batch.documents[len(rows)], "returned no row")
        kinds = self._transform.shuffle.key_types
        return [
            tuple(
                self._component(document, name, kind, value)
                for name, kind, value in zip(self._columns, kinds, row, strict=True)
            )
            for document, row in zip(batch.documents, rows, strict=True)
        ]

    def _feed_in_time(self, chance: Chance, documents: Any, batch: ReadBatch) -> Any:
        transform = self._transform.index
        for index, document in enumerate(documents):
            chance.begin(transform, batch.clocks[index], document)
            yield self._binding.values(document, batch.published[index])

    def _component(self, document: Document, name: str, kind: str, value: Any) -> JSON:
        if value is None:
            return None
        if kind == "string" and type(value) is str:
            return value
        if kind == "integer" and type(value) is int:
            return value
        if kind == "boolean" and type(value) is int and value in (0, 1):
            return value == 1
        raise self._failed(document, f"returned {value!r} for '{name}', but a component of type {kind} is needed")

    def _failed(self, document: Document, reason: str, hint: str | None = None) -> LambdaError:
        what = f"the shuffle of transform '{self._transform.name}'"
        shown = show_document(document, _SHOWN_CHARACTERS)
        return LambdaError(f"{what} {reason}", position=self._position, hint=hint, facts=[document_fact(shown)])


def _open(*, has_clock: bool) -> Guard:
    """Return a guard of an empty database."""
    return Guard(apsw.Connection(":memory:"), has_clock=has_clock)


def _compile(guard: Guard, spec: DerivationSpec, transform: TransformSpec) -> _Compiled | list[Issue]:
    """Compile the statement of a computed shuffle; return its issues if it is wrong."""
    script = transform.shuffle.script
    assert script is not None
    what = f"the shuffle of transform '{transform.name}'"
    with guard:
        block = list(read_block(guard, script, what))
    projections = spec.sources[transform.input.source].projections
    issues = [with_field_hint(item, (), projections) for item in block if isinstance(item, Issue)]
    if issues:
        return issues
    statements = [item for item in block if not isinstance(item, Issue)]
    if any(statement.calls & PER_DOCUMENT for statement in statements):
        message = f"{what} may not call functions that count written rows: a shuffle writes no rows"
        return [Issue("E525", message, script.locate(0))]
    if len(statements) != 1 or not statements[0].columns:
        return [Issue("E527", f"{what} must be one statement that returns a row", script.locate(0))]
    statement, kinds = statements[0], transform.shuffle.key_types
    if len(statement.columns) != len(kinds):
        return [_columns_differ(script, what, statement.columns, kinds)]
    fields = named_fields(script, statement, transform, projections)
    if isinstance(fields, list):
        return fields
    return _Compiled(statement, Binding([fields[name] for name in statement.parameters]))


def _columns_differ(script: Script, what: str, columns: Sequence[str], kinds: Sequence[str]) -> Issue:
    return Issue(
        "E527",
        f"{what} returns {counted(len(columns), 'column')} ({', '.join(columns)}), but the shuffle key has the types"
        f" [{', '.join(kinds)}]",
        script.locate(0),
    )
