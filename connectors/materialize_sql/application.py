"""The application of a materialization to a database: tables for sessions, and the completion of refills."""

from __future__ import annotations

from dataclasses import replace

from connectors.kit.requests import Application, Applied, Binding
from connectors.materialize_sql.column import Table
from connectors.materialize_sql.fence import create_checkpoints, fence_all, has_checkpoint
from connectors.materialize_sql.refill import Note, Rows, drop, read_notes, replacement, table_beside, write_notes
from connectors.materialize_sql.tables import Tables, not_ready
from derive.protocol.materialization import FIRST


class Preparation:
    """The statements and notes of one `Apply` call, computed when the object is made.

    Args:
        tables: tables of the bindings.
        request: the request.
        schema_statements: statements that create a missing schema.
    """

    def __init__(self, tables: Tables, request: Application, schema_statements: list[str]) -> None:
        self._tables, self._request = tables, request
        self._dialect, self._query = tables.dialect, tables.endpoint.query
        self._name = request.materialization.name
        self._statements = schema_statements
        self._refilling: set[int] = set()
        self._contents: list[str] = []
        self._has_checkpoint = False
        self._before: dict[str, Note] = {}
        path = tables.checkpoints
        if tables.endpoint.describe(path) is None:
            self._statements.append(create_checkpoints(self._dialect, path))
        else:
            self._has_checkpoint = has_checkpoint(self._query, self._dialect, path, self._name)
            self._before = read_notes(self._query, self._dialect, path, self._name)
        self._notes = dict(self._before)
        for index, binding in enumerate(request.materialization.bindings):
            (self._complete if request.completed else self._make_ready)(index, binding)
            self._contents.append(self._identity(index, binding))
        if request.completed:
            self._require_completed()
        else:
            self._drop_others()

    @property
    def outcome(self) -> Applied:
        """Return the answer to the request."""
        text = "".join(f"{statement};\n" for statement in self._statements)
        return Applied(text, frozenset(self._refilling), tuple(self._contents))

    def execute(self) -> None:
        """Execute the statements, in the running transaction."""
        path = self._tables.checkpoints
        if self._statements and self._request.completed:
            self._query(fence_all(self._dialect, path), [self._name])
        for statement in self._statements:
            self._query(statement, [])
        if self._notes != self._before:
            write_notes(self._query, self._dialect, path, self._name, self._notes)

    def _make_ready(self, index: int, binding: Binding) -> None:
        """Prepare the table of a binding, and the refill's table if the rows belong to another generation."""
        migration, generation = self._tables.migration(binding), binding.generation
        note = self._note(index, binding, migration.table)
        is_refilled = bool(generation) and note.rows.generation != generation
        if index in self._request.begun and self._has_checkpoint and not is_refilled:
            self._tables.require(binding)
        self._statements += migration.statements
        if not generation:
            return
        if not is_refilled:
            note = replace(note, refill=None)
        else:
            self._refilling.add(index)
            if not self._tables.has_refill(migration.table, note, generation):
                refill = Rows.begin(generation)
                note = replace(note, refill=refill)
                self._statements += self._dialect.create(table_beside(migration.table, refill, self._dialect.naming))
        self._notes[migration.table.path[-1]] = note

    def _note(self, index: int, binding: Binding, table: Table) -> Note:
        """Return the note of a binding's table; without one, a note by the runtime's state.

        The rows belong to the binding's generation if it is the first one, if rows were stored before there were notes,
        or if there are no rows. In the last case, checkpoints of former rows do not count.
        """
        note = self._notes.get(table.path[-1])
        if note is not None:
            return note
        generation = binding.generation
        if generation != FIRST and self._tables.describe(binding) is None:
            return Note(Rows.begin(generation))
        is_same = generation == FIRST or (index in self._request.begun and self._has_checkpoint)
        return Note(Rows(generation if is_same else ""))

    def _complete(self, index: int, binding: Binding) -> None:
        """Replace the rows of a binding by those of its refill, if that is complete.

        Raises:
            EndpointError: the table of the refill is missing, or lacks a column.
        """
        table = self._tables.migration(binding).table
        note = self._notes.get(table.path[-1], Note(Rows("")))
        if not binding.generation or note.rows.generation == binding.generation:
            return
        if note.refill is None or note.refill.contents not in self._request.completed:
            self._refilling.add(index)
            return
        if not self._tables.has_refill(table, note, binding.generation):
            raise not_ready(self._dialect, f"the table '{'.'.join(table.path)}' is not being refilled any more")
        self._statements += replacement(table, table_beside(table, note.refill, self._dialect.naming), self._dialect)
        self._notes[table.path[-1]] = note.complete()

    def _require_completed(self) -> None:
        """Require that all completed refills have replaced rows, or do so now.

        Raises:
            EndpointError: one is not there; another one may have begun.
        """
        if not self._request.completed <= {note.rows.contents for note in self._notes.values()}:
            raise not_ready(self._dialect, "a refill that is to replace rows is not there any more")

    def _identity(self, index: int, binding: Binding) -> str:
        """Return the identity of the rows that sessions store a binding into."""
        note = self._notes.get(binding.resource_path[-1])
        if note is None or not binding.generation:
            return ""
        return note.refill.contents if note.refill is not None and index in self._refilling else note.rows.contents

    def _drop_others(self) -> None:
        """Drop the tables of refills that have ended, or that belong to no binding any more."""
        names = {binding.resource_path[-1] for binding in self._request.materialization.bindings if binding.generation}
        for name, note in self._before.items():
            if name not in names:
                self._notes[name] = replace(note, refill=None)
            if note.refill is not None and self._notes[name].refill != note.refill:
                table = Table((*self._tables.schema, name), ())
                self._statements.append(drop(table_beside(table, note.refill, self._dialect.naming), self._dialect))
