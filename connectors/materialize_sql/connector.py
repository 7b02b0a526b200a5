"""A connector for one SQL database: the kit's methods, implemented with a dialect; and its sessions.

The visible rows of a table are compared with the rows of its refill as the replacement of the rows compares them, so
the numbers are those of the rows that the replacement deletes and writes. Only the columns of the refill are compared,
because the replacement writes no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import gt, not_, or_
from typing import Any, TypeAlias

from connectors.kit.connector import Session
from connectors.kit.requests import (
    Application,
    Applied,
    Binding,
    ConnectorSpec,
    Difference,
    DriverCheckpoint,
    Opening,
    StoredRows,
    ValidatedBinding,
    Validation,
    Value,
)
from connectors.materialize_sql.binding import constrain, room_for
from connectors.materialize_sql.column import Column, Kind, Table, literal, quote
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.endpoint import (
    CHECKPOINTS,
    Change,
    Columns,
    Endpoint,
    Fence,
    Transfer,
    create_checkpoints,
    fence_all,
    has_checkpoint,
    raise_fence,
)
from connectors.materialize_sql.tables import (
    Note,
    Rows,
    Tables,
    drop,
    not_ready,
    read_notes,
    replacement,
    table_beside,
    table_path,
    write_notes,
)
from connectors.materialize_sql.values import Encoder, Unfit
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.errors import EndpointError
from derive.protocol.materialization import FIRST

_Query: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

_TEXTS = frozenset({Kind.TEXT, Kind.DATE, Kind.TIMESTAMP, Kind.DECIMAL})
"""Kinds whose values are strings in documents."""


def compare(index: int, table: Table, beside: Table, dialect: Dialect, query: _Query, most: int) -> Difference:
    """Return the difference between the rows of a table and of its refill.

    Args:
        index: index of the binding.
        table: table of the binding, with the columns of the refill.
        beside: table of the refill.
        dialect: dialect of the database.
        query: function that executes a statement with parameters.
        most: largest number of example rows.
    """
    stored, refilled = f"{dialect.table(table.path)} AS stored", f"{dialect.table(beside.path)} AS refilled"
    matches = " AND ".join(f"refilled.{quote(column.name)} = stored.{quote(column.name)}" for column in table.keys)
    is_ours = "true" if table.document is None else f"stored.{quote(table.document)} IS NOT NULL"
    is_same = " AND ".join(["true", *(dialect.is_same(column, "refilled", "stored") for column in table.values)])
    parts = {
        "stored": f"FROM {stored} WHERE {is_ours} AND NOT EXISTS (SELECT 1 FROM {refilled} WHERE {matches})",
        "refilled": f"FROM {refilled} WHERE NOT EXISTS (SELECT 1 FROM {stored} WHERE {matches})",
        "stored refilled": f"FROM {stored} JOIN {refilled} ON {matches} WHERE NOT ({is_same})",
    }
    counts, rows = [], list[str]()
    for aliases, part in parts.items():
        counts.append(int(query(f"SELECT count(*) {part}", [])[0][0]))
        chosen = ", ".join(_columns(table, alias, dialect) for alias in aliases.split())
        keys = ", ".join(f"{aliases.split()[0]}.{quote(column.name)}" for column in table.keys)
        for values in query(f"SELECT {chosen} {part} ORDER BY {keys} LIMIT {most - len(rows)}", []):
            before = values[: len(table.columns)] if "stored" in aliases else None
            after = values[-len(table.columns) :] if "refilled" in aliases else None
            rows.append(dump_exact(_example(table, before, after)).decode())
    deleted, inserted, updated = counts
    return Difference(index, deleted, inserted, updated, tuple(rows))


def _columns(table: Table, alias: str, dialect: Dialect) -> str:
    """Return the columns of a table as texts."""
    text = dialect.types[Kind.TEXT]
    return ", ".join(f"CAST({alias}.{quote(column.name)} AS {text})" for column in table.columns)


def _example(table: Table, before: Sequence[str | None] | None, after: Sequence[str | None] | None) -> dict[str, JSON]:
    """Return an example: the key, and the columns that differ of the visible row and of the refilled row."""
    known = before or after or ()
    keys = [_value(column, text) for column, text in zip(table.columns, known, strict=True) if column.is_key]
    rows: list[dict[str, JSON] | None] = []
    for own, other in ((before, after), (after, before)):
        others = other or [None] * len(table.columns)
        rows.append(
            None
            if own is None
            else {
                column.name: _value(column, text)
                for column, text, one in zip(table.columns, own, others, strict=True)
                if not column.is_key and (other is None or text != one)
            }
        )
    return {"key": keys, "before": rows[0], "after": rows[1]}


def _value(column: Column, text: str | None) -> JSON:
    """Return the JSON value that a column's text describes."""
    if text is None or column.kind in _TEXTS:
        return text
    try:
        return parse_exact(text.encode())
    except ValueError:
        return text


_AT_ONCE = 1000
"""Number of documents that are returned together."""


class SqlSession:
    """The kit's `Session` for tables.

    Args:
        checkpoint: checkpoint to continue from.
        tables: tables of the bindings; the kind of each column is the kind of its stored values.
        transfer: transfer of rows.
        encoder: function that returns the encoder of a column, from packed values to values of `transfer`.
        contents: identity of the rows of each binding's table.
        narrower: checkpoints of the ranges of keys within the session's range.
    """

    def __init__(
        self,
        checkpoint: bytes,
        tables: Sequence[Table],
        transfer: Transfer,
        encoder: Callable[[Column], Encoder],
        contents: Sequence[str] = (),
        narrower: Sequence[bytes] = (),
    ) -> None:
        self._checkpoint = checkpoint
        self._narrower = narrower
        self._contents = contents
        self._tables = tables
        self._transfer = transfer
        self._encoders = [
            [encoder(column) for column in table.columns if column.name != table.document] for table in tables
        ]
        self._loading: list[tuple[int, Iterable[bytes]]] = []
        self._prepared = checkpoint

    @property
    def checkpoint(self) -> bytes:
        """Return the checkpoint of the last commit."""
        return self._checkpoint

    @property
    def contents(self) -> Sequence[str]:
        """Return the identity of the rows of each binding's table."""
        return self._contents

    @property
    def narrower(self) -> Sequence[bytes]:
        """Return the checkpoints of the ranges of keys within the session's range."""
        return self._narrower

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Start to load documents, beside the previous commit."""
        self._loading.append(
            (binding, self._transfer.load(binding, self._encode(binding, list(zip(*keys, strict=True)))))
        )

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Yield the documents of the keys given to `load`."""
        loading, self._loading = self._loading, []
        for binding, documents in loading:
            batch: list[bytes] = []
            for document in documents:
                batch.append(document)
                if len(batch) == _AT_ONCE:
                    yield binding, batch
                    batch = []
            if batch:
                yield binding, batch

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        """Set the checkpoint of the next commit; the runtime has nothing else to store."""
        self._prepared = flow_checkpoint
        return None

    def store(self, binding: int, rows: StoredRows) -> None:
        """Stage rows to store.

        Raises:
            EndpointError: a column cannot hold a value.
        """
        if self._tables[binding].delta_updates:
            self._stage(binding, rows, "insert")
            return
        deleted = rows.where(rows.deleted)
        if deleted is not None:
            self._transfer.stage(binding, self._encode(binding, deleted.key_columns), "delete")
        self._stage(binding, rows.where([*map(not_, map(or_, rows.exists, rows.deleted))]), "insert")
        self._stage(binding, rows.where([*map(gt, rows.exists, rows.deleted)]), "update")

    def commit(self) -> None:
        """Commit the staged rows and the checkpoint.

        Raises:
            FencedError: another session has opened some of these keys.
        """
        self._transfer.commit(self._prepared)
        self._checkpoint = self._prepared

    def close(self) -> None:
        """Close the connection."""
        self._transfer.close()

    def _stage(self, binding: int, rows: StoredRows | None, change: Change) -> None:
        if rows is None:
            return
        columns = [*self._encode(binding, [*rows.key_columns, *rows.value_columns])]
        if self._tables[binding].document is not None:
            columns.append(rows.documents)
        self._transfer.stage(binding, columns, change)

    def _encode(self, binding: int, columns: Sequence[Sequence[Value]]) -> Columns:
        encoded: list[Sequence[Any]] = []
        for index, values in enumerate(columns):
            try:
                encoded.append(self._encoders[binding][index](values))
            except Unfit as exc:
                raise self._error(binding, index, exc, columns) from exc
        return encoded

    def _error(self, binding: int, index: int, fault: Unfit, columns: Sequence[Sequence[Value]]) -> EndpointError:
        table = self._tables[binding]
        column = table.columns[index]
        key = [values[fault.row] for values in columns[: len(table.keys)]]
        what = f"table '{'.'.join(table.path)}', column '{column.name}' of type {column.type}, key {key}"
        if column.is_key or column.kind is Kind.JSON:
            hint = "values are stored as they are, or not at all"
        else:
            hint = f"exclude the field '{column.field}', or give it the option {{type: json}} and another table"
        return EndpointError(f"{what}: {fault.reason}", hint=hint)


class Preparation:
    """The statements and notes of one `Apply` call; the constructor computes them.

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
        differences = tuple(self._compare(index) for index in sorted(self._refilling) if self._request.compare)
        return Applied(text, frozenset(self._refilling), tuple(self._contents), differences)

    def _compare(self, index: int) -> Difference:
        """Return the difference between the visible rows of a binding and its refill.

        Raises:
            EndpointError: the refill has not begun, or no longer fits the table.
        """
        binding = self._request.materialization.bindings[index]
        migration = self._tables.migration(binding)
        table, note = migration.table, self._notes[binding.resource_path[-1]]
        has_refill = self._before.get(table.path[-1]) == note
        if note.refill is None or not has_refill or not migration.is_ready:
            raise not_ready(self._dialect, f"the refill of the table '{'.'.join(table.path)}' has not begun")
        beside = table_beside(table, note.refill, self._dialect.naming)
        return compare(index, table, beside, self._dialect, self._query, self._request.compare)

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
        others = [one for one in self._request.materialization.bindings if one.resource_path == binding.resource_path]
        if is_refilled or len(others) == 1:  # the columns of a refill are a change of the table's present columns
            self._statements += migration.statements
        if not generation:
            return
        if not is_refilled:
            note = note if len(others) > 1 else replace(note, refill=None)
        else:
            self._require_visible(index, others)
            self._refilling.add(index)
            if not self._tables.has_refill(migration.table, note, generation):
                refill = Rows.begin(generation)
                note = replace(note, refill=refill)
                self._statements += self._dialect.create(table_beside(migration.table, refill, self._dialect.naming))
        self._notes[migration.table.path[-1]] = note

    def _require_visible(self, index: int, others: Sequence[Binding]) -> None:
        """Require that a table has one refill at most.

        Raises:
            EndpointError: two bindings of one table have other rows than the visible rows.
        """
        bindings = self._request.materialization.bindings
        if any(bindings[other] in others for other in self._refilling if other != index):
            raise EndpointError(
                f"{self._dialect.title}: the table '{others[0].resource_path[-1]}' starts over while it is refilled",
                hint="give up the shadow of its binding: flowctl shadow drop",
            )

    def _note(self, index: int, binding: Binding, table: Table) -> Note:
        """Return the note of a binding's table; without a note, compute one from the runtime's state.

        The rows belong to the binding's generation in three cases: it is the first generation; the rows are older than
        notes; or there are no rows. In the last case, checkpoints of former rows do not count.
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
        """If the refill of a binding is complete, replace the binding's rows by the refill's rows.

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
            raise not_ready(self._dialect, f"the table '{'.'.join(table.path)}' is no longer being refilled")
        self._statements += replacement(table, table_beside(table, note.refill, self._dialect.naming), self._dialect)
        self._notes[table.path[-1]] = note.complete()

    def _require_completed(self) -> None:
        """Require that all completed refills have replaced rows, or replace the rows now.

        Raises:
            EndpointError: a refill is missing; another refill may have begun.
        """
        if not self._request.completed <= {note.rows.contents for note in self._notes.values()}:
            raise not_ready(self._dialect, "a refill that has to replace rows no longer exists")

    def _identity(self, index: int, binding: Binding) -> str:
        """Return the identity of the rows that sessions of a binding change."""
        note = self._notes.get(binding.resource_path[-1])
        if note is None or not binding.generation:
            return ""
        return note.refill.contents if note.refill is not None and index in self._refilling else note.rows.contents

    def _drop_others(self) -> None:
        """Drop the tables of refills that have ended, or whose binding was removed."""
        names = {binding.resource_path[-1] for binding in self._request.materialization.bindings if binding.generation}
        for name, note in self._before.items():
            if name not in names:
                self._notes[name] = replace(note, refill=None)
            if note.refill is not None and self._notes[name].refill != note.refill:
                table = Table((*self._tables.schema, name), ())
                self._statements.append(drop(table_beside(table, note.refill, self._dialect.naming), self._dialect))


def file_schema(title: str) -> dict[str, Any]:
    """Return the JSON Schema of the configuration of an endpoint that is a file.

    Args:
        title: name of the database, for users.
    """
    path = {
        "title": "Path",
        "description": "The database's file; it is created if missing.",
        "type": "string",
        "minLength": 1,
    }
    return {
        "title": title,
        "type": "object",
        "required": ["path"],
        "properties": {"path": path},
        "additionalProperties": False,
    }


RESOURCE_SCHEMA = {
    "title": "Table",
    "type": "object",
    "required": ["table"],
    "properties": {
        "table": {"title": "Table", "description": "Name of the table.", "type": "string", "minLength": 1},
        "delta_updates": {
            "title": "Delta updates",
            "description": "Append a row for each change, rather than keep one row for each key.",
            "type": "boolean",
            "default": False,
        },
    },
    "additionalProperties": False,
}
"""JSON Schema of a binding's configuration."""


@dataclass(frozen=True, slots=True)
class SqlConnector:
    """The kit's `MaterializeConnector` for an SQL database.

    Attributes:
        name: name of the connector, such as `materialize-sqlite`.
        dialect: dialect of the database.
        endpoint_schema: JSON Schema of an endpoint's configuration.
        connect: function that connects by a configuration; `for_writing` creates a missing database of a file.
        encoder: function that returns the encoder of a column, from packed values to values of a transfer.
        schema_of: function that returns the schema of a configuration, as the beginning of its tables' paths.
        schema_statements: function that returns the statements that create a missing schema.
        locked: function that returns a statement that locks a name; None if transactions exclude each other.
        make_way: function called before a session opens, to end sessions that block it.
        is_local: whether the database is a file on the machine of the connector.
    """

    name: str
    dialect: Dialect
    endpoint_schema: Mapping[str, Any]
    connect: Callable[..., Endpoint]
    encoder: Callable[[Column], Encoder]
    schema_of: Callable[[Any], tuple[str, ...]] = lambda config: ()
    schema_statements: Callable[[Any, Endpoint], list[str]] = lambda config, endpoint: []
    locked: Callable[[str], str] | None = None
    make_way: Callable[[Endpoint, Fence], None] = lambda endpoint, fence: None
    is_local: bool = False

    def spec(self) -> ConnectorSpec:
        """Return the configuration schemas."""
        url = "docs/materialize.md"
        return ConnectorSpec(self.endpoint_schema, RESOURCE_SCHEMA, url, refills=True, is_local=self.is_local)

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        """Return the constraints of fields by the existing tables."""
        schema = self.schema_of(request.config)
        paths = [table_path(schema, binding.resource["table"], self.dialect) for binding in request.bindings]
        self._refuse_shared(paths)
        validated = []
        with closing(self.connect(request.config, for_writing=False)) as endpoint:
            for path, binding in zip(paths, request.bindings, strict=True):
                delta = bool(binding.resource.get("delta_updates"))
                existing = endpoint.describe(path)
                constraints = constrain(binding, path, existing, self.dialect, delta_updates=delta)
                room = room_for(binding, existing, self.dialect)
                validated.append(ValidatedBinding(path, constraints, delta, room))
        return validated

    def apply(self, request: Application) -> Applied:
        """Create and change tables, or replace rows by the rows of refills, in one transaction."""
        materialization = request.materialization
        with closing(self.connect(materialization.config, for_writing=not request.dry_run)) as endpoint:
            tables = Tables(self.dialect, endpoint, self.schema_of(materialization.config))
            if request.dry_run:
                return self._preparation(tables, request).outcome
            if request.completed:
                self.make_way(endpoint, Fence(tables.checkpoints, materialization.name, 0, 0xFFFF_FFFF))
            with endpoint.transaction():
                if self.locked is not None:  # other sessions may also create the table of checkpoints now
                    endpoint.query(self.locked(literal(CHECKPOINTS)))
                    endpoint.query(self.locked(literal(materialization.name)))
                preparation = self._preparation(tables, request)
                preparation.execute()
            return preparation.outcome

    def open(self, opening: Opening) -> Session:
        """Open a session, and fence other sessions of any of its keys."""
        materialization = opening.materialization
        endpoint = self.connect(materialization.config, for_writing=True)
        try:
            tables = Tables(self.dialect, endpoint, self.schema_of(materialization.config))
            path = tables.checkpoints
            if endpoint.describe(path) is None:
                raise not_ready(self.dialect, f"the table '{CHECKPOINTS}' is missing")
            fence = Fence(path, materialization.name, opening.key_begin, opening.key_end)
            self.make_way(endpoint, fence)
            with endpoint.transaction():
                if self.locked is not None:
                    endpoint.query(self.locked(literal(materialization.name)))
                notes = read_notes(endpoint.query, self.dialect, path, materialization.name)
                stored = [tables.stored(binding, notes) for binding in materialization.bindings]
                fence, checkpoint = raise_fence(endpoint.query, self.dialect, fence)
            places, contents = [table for table, _ in stored], [identity for _, identity in stored]
            transfer = endpoint.transfer(places, fence)
            return SqlSession(checkpoint, places, transfer, self.encoder, contents, fence.narrower)
        except BaseException:
            endpoint.close()
            raise

    def _preparation(self, tables: Tables, request: Application) -> Preparation:
        statements = self.schema_statements(request.materialization.config, tables.endpoint)
        return Preparation(tables, request, statements)

    def _refuse_shared(self, paths: Sequence[tuple[str, ...]]) -> None:
        names = [self.dialect.naming.fold(path[-1]) for path in paths]
        for name, path in zip(names, paths, strict=True):
            if names.count(name) > 1:
                raise EndpointError(f"two bindings name the table '{path[-1]}'", hint="bind each table once")
