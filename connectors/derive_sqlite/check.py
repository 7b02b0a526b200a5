"""Checks of a derivation's SQL before it runs: migrations, columns, shared tables, and rows of other shuffle keys.

Shared tables: any shard may process a document without a shuffle key, and each shard has its own tables. So the rows
that the document finds in a table that lambdas write depend on the number of shards (law L1). Tables that only
migrations fill are the same on all shards.

Columns: the name of a result column is the name of a published property, and SQLite accepts every name. A closed schema
refuses a misspelt name only at the first document; an open schema accepts the name.

Rows of other shuffle keys: a document finds on its shard the rows that earlier documents of its shuffle key wrote. It
finds rows of another key only if this key has the same shard, so results that depend on such rows change when a shard
is split (law L1). SQLite's authorizer reports the columns that a statement reads. The INSERTs and comparisons of
lambdas show which columns hold the shuffle key. A statement that reads none of these columns reads rows of all keys.

The check yields notes and no errors, because the other rows may not affect the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

import apsw

from connectors.derive_sqlite.console import Console
from connectors.derive_sqlite.program import SCHEMA, Program, Step, compile_program, migrations_of, place_of
from connectors.derive_sqlite.session import apply_migrations, run_migration
from derive.errors import Issue, LambdaError, suggest, suggest_misspelt
from derive.lambda_sql.determinism import Chance
from derive.lambda_sql.guard import Guard, Watch
from derive.lambda_sql.parameter import find_projection
from derive.lambda_sql.statements import Statement, Token, tokens_of
from derive.protocol.derive import STATE_TABLES
from derive.protocol.specs import DerivationSpec, ProjectionSpec
from derive.schema.redaction import Redactor
from derive.schema.shape import Shape, infer, locate

_SHUFFLE_HINT = "shuffle by the fields that are the key of the table: shuffle: {key: [/field]}"


def check_tables(programs: Sequence[Program]) -> list[Issue]:
    """Return an issue for each statement that uses a table of a shard, although any shard may process its documents.

    Args:
        programs: programs of all transforms of a derivation.
    """
    written: dict[str, str] = {}
    for program in programs:
        for step in program.steps:
            for table in step.statement.writes:
                written.setdefault(table, program.transform.name)
    anywhere = [program for program in programs if program.transform.shuffle.kind == "any"]
    return [issue for program in anywhere for issue in _issues(program, written)]


def _issues(program: Program, written: dict[str, str]) -> Iterator[Issue]:
    script = program.transform.script
    assert script is not None  # a transform without a script has no program
    for step in program.steps:
        problem = _problem(step.statement, written)
        if problem:
            message = (
                f"{program.what} {problem}, but with 'shuffle: any' any shard may process a document, and each shard"
                f" has a table of its own"
            )
            yield Issue("E528", message, script.locate(step.statement.begin), _SHUFFLE_HINT)


def _problem(statement: Statement, written: dict[str, str]) -> str | None:
    if statement.writes:
        table = min(statement.writes - {SCHEMA} or statement.writes)
        return f"writes the table '{table}'"
    shared = sorted(statement.reads & written.keys())
    if shared:
        return f"reads the table '{shared[0]}', which the lambda of transform '{written[shared[0]]}' writes"
    return None


_SHOWN = 12


def check_columns(spec: DerivationSpec, program: Program) -> Iterator[Issue]:
    """Yield an error for each column that no document may have, and a note for each that is probably misspelt.

    Args:
        spec: the derivation.
        program: the program of one of its transforms.
    """
    projections = spec.sources[program.transform.input.source].projections
    schema = spec.collection.write_schema
    declared = schema.get("properties", {}) if isinstance(schema, dict) else {}
    redactor = Redactor(spec.collection.redaction, b"") if spec.collection.redaction else None
    for step in program.steps:
        columns = step.statement.columns
        if len(columns) == 1 and columns[0].lower().startswith("json"):
            continue  # the column is the whole document
        published = {column: _property(column, step.statement, projections) for column in columns}
        # otherwise there is nothing to infer
        if any(declared.get(name, False) is False for name in published.values()):
            shown = {column: name for column, name in published.items() if redactor is None or not redactor.hides(name)}
            yield from _check_column(shown, program, step.statement, spec.name, infer(schema))


def _check_column(
    published: Mapping[str, str], program: Program, statement: Statement, collection: str, shape: Shape
) -> Iterator[Issue]:
    script = program.transform.script
    assert script is not None
    for column, name in published.items():
        exists = locate(shape, (name,))[1]
        if exists == "cannot":
            message = f"{program.what} publishes '{name}', which the schema of '{collection}' does not allow"
            yield Issue("E529", message, place_of(script, statement, column), _hint(name, shape))
        elif exists == "implicit" and name not in shape.properties:
            near = suggest_misspelt(name, set(shape.properties) - set(published.values()))
            if near:
                message = f"{program.what} publishes '{name}', which the schema of '{collection}' does not mention"
                yield Issue("N529", message, place_of(script, statement, column), f"did you mean '{near}'?")


def _property(column: str, statement: Statement, projections: Sequence[ProjectionSpec]) -> str:
    """Return the property of a result column: the field of its parameter, or a property with the name of the column."""
    projection = find_projection(column[1:], projections) if column[1:] in statement.parameters else None
    return projection.field if projection and column[0] == "$" else column


def _hint(name: str, shape: Shape) -> str:
    known = sorted(name for name, member in shape.properties.items() if member.types)
    guess = suggest(name, known)
    more = ", …" if len(known) > _SHOWN else ""
    return f"did you mean '{guess}'?" if guess else f"known: {', '.join(known[:_SHOWN])}{more}"


_HINT = "compare a column that holds the shuffle key with the shuffle key of the document"
_RESTRICTING = frozenset({"WHERE", "ON", "USING", "NATURAL", "HAVING"})
_WRITING = frozenset({"INSERT", "REPLACE"})


def check_other_keys(spec: DerivationSpec, programs: Sequence[Program], db: apsw.Connection) -> list[Issue]:
    """Return a note for each statement whose text shows that its result depends on rows of other keys.

    Args:
        spec: the derivation.
        programs: programs of its transforms.
        db: database with the derivation's tables.
    """
    written = {table for program in programs for step in program.steps for table in step.statement.writes} - {SCHEMA}
    tables = {name: _Table(name, db, programs) for name in written}
    for program in programs:
        keys = _keys_of(spec, program)
        for step in program.steps:
            _learn(step.statement, keys, tables)
    issues: list[Issue] = []
    for program in programs:
        if program.transform.shuffle.key:
            for step in program.steps:
                issues += _check_keys(program, step, tables)
    return issues


class _Table:
    """A table that lambdas write.

    Attributes:
        name: name of the table.
        columns: its columns in order, in lower case.
        row_ids: column names of its row ids.
        root: number of its first page; None for a virtual table.
        key_columns: columns that hold components of the shuffle key.
        is_known: whether the writers of all its rows are known.
    """

    def __init__(self, name: str, db: apsw.Connection, programs: Sequence[Program]) -> None:
        self.name = name
        self._db = db
        self._programs = programs
        described = db.execute("SELECT lower(name), pk, type FROM pragma_table_info(?)", (name,)).fetchall()
        self.columns = [str(column) for column, _, _ in described]
        primary = [str(column) for column, pk, kind in described if pk and str(kind).upper() == "INTEGER"]
        self.row_ids = {"rowid", *(primary if sum(bool(pk) for _, pk, _ in described) == 1 else ())}
        self.root = db.execute("SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).get
        self.key_columns: set[str] = set()
        self.is_known = bool(self.root)  # the tables behind a virtual table are not visible

    @cached_property
    def numbers_rows(self) -> bool:
        """Return whether SQLite chooses the row ids; few lambdas publish row ids, so few tables are asked."""
        statements = (step.statement for program in self._programs for step in program.steps)
        return any(statement.writes - {SCHEMA} and self._is_numbered_by(statement) for statement in statements)

    def _is_numbered_by(self, statement: Statement) -> bool:
        values = (None,) * len(statement.parameters)
        plan = _rows_of(self._db.execute(f"EXPLAIN {statement.text}", values, can_cache=False))
        cursors = {row[2]: row[3] for row in plan if row[1] == "OpenWrite"}
        roots = {cursors.get(row[2]) for row in plan if row[1] == "NewRowid"}
        is_given = self.row_ids & _inserted(tokens_of(statement.text), self.columns).keys()
        return (self.root or -1) in roots and not is_given


def _keys_of(spec: DerivationSpec, program: Program) -> set[str]:
    """Return the parameters (with `$`, in lower case) that are components of a transform's shuffle key."""
    transform = program.transform
    projections = spec.sources[transform.input.source].projections
    names = {name for step in program.steps for name in step.statement.parameters}
    named = {name: find_projection(name, projections) for name in names}
    return {
        f"${name}".lower()
        for name, projection in named.items()
        if projection is not None and projection.pointer in transform.shuffle.key
    }


def _learn(statement: Statement, keys: set[str], tables: dict[str, _Table]) -> None:
    """Record the columns of which a statement shows that they hold the shuffle key."""
    tokens = tokens_of(statement.text)
    target = _target_of(tokens)
    for name in statement.writes & tables.keys():
        if name.lower() != target:  # a trigger writes the table
            tables[name].is_known = False
    for name in (statement.reads | statement.writes) & tables.keys():
        compared = {column for column in tables[name].columns if _is_compared(tokens, column, keys)}
        tables[name].key_columns |= compared
    table = next((table for name, table in tables.items() if name.lower() == target), None)
    if table is None or not tokens or tokens[0].word not in _WRITING:
        return
    inserted = _inserted(tokens, table.columns)
    table.key_columns |= {column for column, value in inserted.items() if value in keys}
    telling = keys | {"$flow_document"}
    if not inserted or (not table.key_columns and any(token.name in telling for token in tokens)):
        table.is_known = False


def _target_of(tokens: Sequence[Token]) -> str | None:
    """Return the table that a statement writes, in lower case; None if the statement writes none."""
    for place, token in enumerate(tokens[:-1]):
        following = tokens[place + 1 :]
        if token.word in ("INTO", "FROM") or (token.word == "UPDATE" and following[0].word != "OR"):
            return _named(following)
        if token.word == "SELECT":
            return None
        if token.word == "OR" and tokens[place - 1].word == "UPDATE":
            return _named(following[1:])
    return None


def _named(tokens: Sequence[Token]) -> str | None:
    """Return the name with which tokens begin, without the name of the database."""
    has_database = len(tokens) > 2 and tokens[1].word == "."
    return tokens[2 if has_database else 0].name if tokens else None


def _is_compared(tokens: Sequence[Token], column: str, keys: set[str]) -> bool:
    """Return whether a statement compares a column with a component of the shuffle key."""
    for place in range(1, len(tokens) - 1):
        if tokens[place].word not in ("=", "IS", "IN"):
            continue
        before, after = tokens[place - 1].name, tokens[place + 1].name
        if {before, after} & keys and column in (before, after):
            return True
        if after == "=" and place + 2 < len(tokens) and column == before and tokens[place + 2].name in keys:
            return True  # `==`, as in C
    return False


def _inserted(tokens: Sequence[Token], columns: Sequence[str]) -> dict[str, str]:
    """Return the token that an INSERT assigns to each column; empty if the columns are unknown."""
    words = [token.word for token in tokens]
    begin = next((place for place, word in enumerate(words) if word in ("VALUES", "SELECT")), None)
    if begin is None:
        return {}
    named = _split(tokens, words.index("(") + 1) if "(" in words[:begin] else []
    names = [part[0].name for part in named if part] or list(columns)
    values = _split(tokens, begin + (2 if words[begin] == "VALUES" else 1))
    return {name: part[0].name if len(part) == 1 else "" for name, part in zip(names, values, strict=False)}


def _split(tokens: Sequence[Token], begin: int) -> list[list[Token]]:
    """Return the parts between commas, up to a closing bracket or a word that ends a list."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[begin:]:
        depth += (token.word == "(") - (token.word == ")")
        if depth < 0 or (not depth and token.word in ("FROM", "WHERE", "ON", "RETURNING", ";")):
            break
        if token.word == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _check_keys(program: Program, step: Step, tables: dict[str, _Table]) -> Iterator[Issue]:
    statement, script = step.statement, program.transform.script
    assert script is not None
    seen = _seen(statement, tables)
    numbered = _numbered(statement, tables)
    message = None
    if seen and all(table.is_known for table in seen):
        name = seen[0].name
        if not any((table.name, column) in _lowered(statement) for table in seen for column in table.key_columns):
            message = f"{program.what} reads all rows of '{name}' on its shard, including rows of other keys"
        elif not _RESTRICTING & {token.word for token in tokens_of(statement.text)}:
            message = f"{program.what} reads all keys of '{name}' on its shard"
    if message is not None:
        yield Issue(
            "N528", f"{message}: its result depends on the number of shards", script.locate(statement.begin), _HINT
        )
    elif numbered is not None:
        message = f"{program.what} publishes row ids of '{numbered}', which depend on rows of other keys"
        yield Issue("N528", message, script.locate(statement.begin), "compute ids from the document's fields")


def _lowered(statement: Statement) -> set[tuple[str, str]]:
    return {(table, column.lower()) for table, column in statement.read_columns}


def _seen(statement: Statement, tables: dict[str, _Table]) -> list[_Table]:
    """Return the tables from which a statement reads rows; the new row of an INSERT does not count."""
    tokens = tokens_of(statement.text)
    own = _target_of(tokens) if tokens and tokens[0].word in _WRITING else None
    sources = {
        token.name for place, token in enumerate(tokens) if place and tokens[place - 1].word in ("FROM", "JOIN", ",")
    }
    is_writing = bool(tokens) and tokens[0].word in ("UPDATE", "DELETE")
    used = statement.reads | (statement.writes if is_writing else frozenset())
    names = sorted(name for name in used & tables.keys() if name.lower() != own or name.lower() in sources)
    return [tables[name] for name in names]


def _numbered(statement: Statement, tables: dict[str, _Table]) -> str | None:
    """Return a table whose row ids SQLite chooses and a statement returns; None if there is none."""
    for origin in statement.origins:
        if origin is not None and origin[0] in tables:
            table = tables[origin[0]]
            if origin[1].lower() in table.row_ids and table.numbers_rows:
                return table.name
    if "last_insert_rowid" in statement.calls and statement.columns:
        for token in tokens_of(statement.text):
            if token.name == "last_insert_rowid":
                return next((name for name, table in tables.items() if table.numbers_rows), None)
            if token.word in ("FROM", "WHERE"):
                break
    return None


def _rows_of(cursor: apsw.Cursor) -> list[tuple[Any, ...]]:
    """Return the rows of a program of SQLite, without instructions that load a text that is not UTF-8."""
    rows: list[tuple[Any, ...]] = []
    while True:
        try:
            row = next(cursor, None)
        except UnicodeDecodeError:
            continue
        if row is None:
            return rows
        rows.append(row)


def check_sql(spec: DerivationSpec) -> list[Issue]:
    """Return all issues of the migrations and lambdas of a derivation.

    If a migration fails, tables may be missing. Then only issues are returned that no table can mend.
    """
    with closing(empty_state()) as database:
        guard = Guard(database, has_clock=True)
        Chance().register(database)
        Console(lambda _, __: None, ()).register(database)
        watch = Watch(database, spec.limits.sqlite_seconds, megabytes=spec.limits.sqlite_megabytes)
        broken = list(_broken_migrations(guard, watch, spec))
        with guard:
            programs = [compile_program(guard, spec, transform) for transform in spec.transforms]
        compiled = [program for program in programs if isinstance(program, Program)]
        notes = [] if broken else check_other_keys(spec, compiled, database)
    issues = [
        issue
        for program in programs
        for issue in (program if isinstance(program, list) else check_columns(spec, program))
    ]
    if broken:
        return broken + [issue for issue in issues if _needs_no_table(issue.message)]
    return issues + check_tables(compiled) + notes


_REFUSED = re.compile(r"is refused by SQLite: |\bfails: ")
_OF_SYNTAX = re.compile(r"is refused by SQLite: (near .*: syntax error|incomplete input|unrecognized token)")


def _broken_migrations(guard: Guard, watch: Watch, spec: DerivationSpec) -> Iterator[Issue]:
    """Run the migrations of a derivation, and yield the error of each that fails, but not of its consequences."""
    apply_migrations(guard, watch, (), spec.name, spec.collection.position)  # for the table of the runtime
    is_whole = True
    for index, script in enumerate(migrations_of(spec)):
        try:
            run_migration(guard, watch, script, f"migration {index} of '{spec.name}'")
        except LambdaError as error:
            if is_whole or _needs_no_table(error.message):
                yield Issue("E521", error.message, error.position or spec.collection.position, error.hint)
            is_whole = False


def _needs_no_table(message: str) -> bool:
    """Return whether no table can mend an issue: an error of syntax, or a rule of this project."""
    return _REFUSED.search(message) is None or _OF_SYNTAX.search(message) is not None


def empty_state() -> apsw.Connection:
    """Return a database in memory like the database of a new shard: in a transaction, with the runtime's tables."""
    database = apsw.Connection(":memory:")
    database.execute("BEGIN")
    for table in STATE_TABLES:
        database.execute(f"CREATE TABLE {table} (reserved)")
    return database
