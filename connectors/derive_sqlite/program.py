"""Programs: a transform's block of SQL, compiled to run for each document; and the configuration of lambdas in SQL.

For RETURNING, SQLite creates a temporary table and a statement journal on each run, which takes longer than the insert
of a row. If one row is inserted and only parameters are returned, a SELECT with `changes()` returns the same row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import apsw

from connectors.derive_sqlite.row import MakeDocument, RowLayout, compile_layout, compile_row, property_names
from derive.errors import Issue
from derive.lambda_sql.guard import FAILURES, Guard
from derive.lambda_sql.parameter import (
    PUBLISHED_AT,
    Binding,
    ColumnBinding,
    compile_columns,
    find_projection,
    mentioned_projections,
    named_fields,
    with_field_hint,
)
from derive.lambda_sql.statements import Statement, outer_tokens, parameters_of, read_block, shorten
from derive.position import Position, Script
from derive.protocol.authoring import CODE_OR_FILE, CatalogFiles, LocatedValue
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec

CONFIG_SCHEMA = {
    "title": "SQLite",
    "description": "Lambdas are SQL, run on a SQLite database of each shard.",
    "type": ["object", "null"],
    "properties": {
        "migrations": {
            "type": "array",
            "description": "SQL that builds the tables, run once each and in order. Add to the end; never edit one.",
            "items": {"type": "string", "description": f"SQL statements. {CODE_OR_FILE}", "title": "Migration"},
        }
    },
    "patternProperties": {"^x-": True},
    "additionalProperties": False,
}
"""The JSON Schema of a catalog's value below `using: {sqlite: …}`."""


@dataclass(frozen=True, slots=True)
class SqliteConfig:
    """The configuration of a derivation in SQL, apart from its lambdas.

    Attributes:
        migrations: SQL blocks that build the tables, in order.
    """

    migrations: tuple[Script, ...] = ()


def load_config(at: LocatedValue, files: CatalogFiles) -> SqliteConfig:
    """Return the configuration below `sqlite`, with the migrations that can be loaded."""
    fields = dict(at.items()) if at.value else {}
    written = fields["migrations"].elements() if "migrations" in fields else ()
    scripts = [files.script(migration, "the migration") for migration in written]
    return SqliteConfig(tuple(script for script in scripts if script))


def migrations_of(spec: DerivationSpec) -> tuple[Script, ...]:
    """Return the migrations of a derivation in SQL."""
    config: SqliteConfig = spec.connector_config
    return config.migrations


def place_of(script: Script, statement: Statement, column: str, number: int = 0) -> Position:
    """Return the position where a column is named, or the start of its statement.

    Args:
        script: the lambda.
        statement: one of its statements.
        column: the name that SQLite gives the column.
        number: index of the column among columns of this name, from 0.
    """
    begin, end = statement.begin, statement.offset + len(statement.text)
    name = re.escape(column)
    for pattern in (rf"\bAS\s+[\"`\[']?({name})(?!\w)", rf"(?<![\w$])({name})(?!\w)"):
        written = list(re.compile(pattern, re.IGNORECASE).finditer(script.text, begin, end))
        if written:
            return script.locate(written[min(number, len(written) - 1)].start(1), len(column))
    return script.locate(begin)


_RETURNS_PARAMETERS = re.compile(
    r"INSERT (?:OR \w+ )?INTO \S+ (?:\( \) )?VALUES \( \) (?:ON .*)?RETURNING (\$\S+(?: , \$\S+)*)(?: ;)?",
    re.IGNORECASE | re.DOTALL,
)
"""Pattern of an INSERT of one row that returns parameters: its tokens outside brackets, with `_` for quoted tokens."""

_QUOTES = "'\"`["


def split_returning(db: apsw.Connection, statement: Statement) -> list[Statement]:
    """Return the statements to run for a statement: the statement itself, or an INSERT and a SELECT.

    Args:
        db: database with the tables that the statement refers to.
        statement: a statement that prepares.
    """
    outer = outer_tokens(statement.text)
    match = _RETURNS_PARAMETERS.fullmatch(" ".join("_" if text[0] in _QUOTES else text for _, text in outer))
    if match is None or not _writes_one_table(db, statement):
        return [statement]
    place = max(place for place, text in outer if text.upper() == "RETURNING")
    returned = match[1].split(" , ")
    texts = f"{statement.text[:place]};", f"SELECT {','.join(returned)} WHERE changes();"
    named = [parameters_of(text) for text in texts]
    if not all(named) or {name[1:] for names in named for name in names} != set(statement.parameters):
        return [statement]
    return [
        replace(statement, text=text, parameters=tuple(name[1:] for name in names))
        for text, names in zip(texts, named, strict=True)
    ]


def _writes_one_table(db: apsw.Connection, statement: Statement) -> bool:
    """Return whether a statement writes one table, which is not a view.

    `changes()` does not count rows of a view's INSTEAD OF triggers.
    """
    kinds = [db.execute("SELECT type FROM sqlite_schema WHERE name = ?", (name,)).get for name in statement.writes]
    return kinds == ["table"]


SCHEMA = "sqlite_master"
"""The table with SQLite's schema; a statement that changes a definition also writes to this table."""


@dataclass(frozen=True, slots=True)
class Step:
    """One statement.

    Attributes:
        statement: the statement.
        sql: equivalent SQL that runs faster.
        parameters: names of the parameters of `sql` in binding order, without `$`.
        binding: binding of the statement's parameters.
        columns: the same binding, from columns of the fields that `fields_of` returns.
        make: function from a row to a document; None if the statement returns no rows.
        layout: layout of its rows as columns; None if they cannot be columns.
    """

    statement: Statement
    sql: str
    parameters: tuple[str, ...]
    binding: Binding
    columns: ColumnBinding
    make: MakeDocument | None
    layout: RowLayout | None


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled lambda of a transform.

    Attributes:
        transform: the transform.
        what: name in errors.
        steps: its statements, in order.
        sql: SQL of all steps as one text.
        binding: binding of the parameters of all steps, in order.
        columns: the same binding from columns of the fields that `fields_of` returns.
        make: function from a row to a document, for the only statement that returns rows; None without such a
            statement.
        layout: layout of these rows as columns; None if they cannot be columns.
        together: whether `sql` can run as a whole; if two statements return rows, their rows could not be
            distinguished.
        asks_row_ids: whether the lambda asks for the last inserted row id, which may be another document's.
    """

    transform: TransformSpec
    what: str
    steps: tuple[Step, ...]
    sql: str
    binding: Binding
    columns: ColumnBinding
    make: MakeDocument | None
    layout: RowLayout | None
    together: bool
    asks_row_ids: bool


def compile_program(
    guard: Guard,
    spec: DerivationSpec,
    transform: TransformSpec,
    rewrite: Callable[[TransformSpec, Statement], Statement] | None = None,
) -> Program | list[Issue]:
    """Compile the program of a transform; return the issues of its lambda if it is wrong.

    Args:
        guard: active guard; its database has the derivation's tables.
        spec: the derivation.
        transform: one of its transforms.
        rewrite: function from a sound statement to the statement that runs; None to run it as it is written.
    """
    what = f"the lambda of transform '{transform.name}'"
    script = transform.script
    if script is None:
        return [Issue("E526", f"transform '{transform.name}' of '{spec.name}' needs a lambda", transform.position)]
    projections = spec.sources[transform.input.source].projections
    named = fields_of(spec, transform)
    issues: list[Issue] = []
    steps: list[Step] = []
    for statement in read_block(guard, script, what):
        if isinstance(statement, Issue):
            issues.append(with_field_hint(statement, guard.tables(), projections))
            continue
        fields = named_fields(script, statement, transform, projections)
        issues += _counts_of_others(script, statement, steps, what)
        if isinstance(fields, list):
            issues += fields
            continue
        repeated = list(_repeated(script, statement, fields, what))
        issues += repeated
        if not repeated:
            rewritten = rewrite(transform, statement) if rewrite else statement
            steps.append(_compile_step(guard, spec, rewritten, fields, named))
    if issues:
        return issues
    parameters = [find_projection(name, projections) for step in steps for name in step.parameters]
    used = [projection for projection in parameters if projection is not None]
    returning = [step for step in steps if step.make is not None]
    return Program(
        transform=transform,
        what=what,
        steps=tuple(steps),
        sql="".join(step.sql for step in steps),
        binding=Binding(used),
        columns=compile_columns(used, named),
        make=returning[0].make if returning else None,
        layout=returning[0].layout if returning else None,
        together=len(returning) <= 1,
        asks_row_ids=any("last_insert_rowid" in step.statement.calls for step in steps),
    )


def _counts_of_others(script: Script, statement: Statement, before: Sequence[Step], what: str) -> Iterator[Issue]:
    """Yield an issue if a statement calls `changes()` before a statement of the same document has changed a row."""
    if "changes" in statement.calls and not any(_changes_rows(step.statement) for step in before):
        written = re.compile("changes", re.IGNORECASE).search(script.text, statement.begin)
        begin = written.start() if written else statement.begin
        message = (
            f"{what} may not call changes() before it has changed a row: it would count changes for another document"
        )
        yield Issue("E525", message, script.locate(begin, len("changes")), "call it after an INSERT, UPDATE or DELETE")


def _changes_rows(statement: Statement) -> bool:
    """Return whether a statement sets the result of `changes()`; a schema change does not set it."""
    return bool(statement.writes) and SCHEMA not in statement.writes


def fields_of(spec: DerivationSpec, transform: TransformSpec) -> list[str]:
    """Return the fields of the source that a lambda may read, each once, without the publication time."""
    text = transform.script.text if transform.script else ""
    named = mentioned_projections(text, spec.sources[transform.input.source].projections)
    return [projection.field for projection in named if projection.pointer != PUBLISHED_AT]


def _shortened(guard: Guard, statement: Statement) -> str:
    """Return a shortened statement, if SQLite compiles it to the same instructions; otherwise its text."""
    shorter = shorten(statement.text, statement.parameters)
    with suppress(*FAILURES):
        if _instructions(guard, shorter, statement) == _instructions(guard, statement.text, statement):
            return shorter
    return statement.text


def _instructions(guard: Guard, sql: str, statement: Statement) -> list[tuple[Any, ...]]:
    """Return SQLite's instructions for a statement."""
    values = (None,) * len(statement.parameters)
    return guard.db.execute(f"EXPLAIN {sql}", values, can_cache=False).fetchall()


def _repeated(script: Script, statement: Statement, fields: Mapping[str, ProjectionSpec], what: str) -> Iterator[Issue]:
    """Yield an issue for each property that two columns of a statement would set, as in `a.*, b.*`."""
    names = property_names(statement.columns, _selected(fields))
    seen: set[str] = set()
    for index, (column, name) in enumerate(zip(statement.columns, names, strict=True)):
        is_first = name not in seen
        seen.add(name)
        if not is_first:
            number = statement.columns[:index].count(column)
            hint = "name each column for a property of its own: SELECT a.x, b.x AS y"
            yield Issue("E530", f"{what} publishes '{name}' twice", place_of(script, statement, column, number), hint)


def _selected(fields: Mapping[str, ProjectionSpec]) -> dict[str, ProjectionSpec]:
    return {f"${name}": projection for name, projection in fields.items()}


def _compile_step(
    guard: Guard,
    spec: DerivationSpec,
    statement: Statement,
    fields: Mapping[str, ProjectionSpec],
    named: Sequence[str],
) -> Step:
    parts = split_returning(guard.db, statement)
    sql = "".join(_shortened(guard, part) for part in parts)
    parameters = tuple(name for part in parts for name in part.parameters)
    bound = [fields[name] for name in statement.parameters]
    binding, by_column = Binding(bound), compile_columns(bound, named)
    columns = statement.columns
    if not columns:
        return Step(statement, sql, parameters, binding, by_column, None, None)
    selected = _selected(fields)
    make = compile_row(columns, selected, is_shown=spec.collection.redaction is None)
    layout = compile_layout(columns, selected)
    return Step(statement, sql, parameters, binding, by_column, make, layout)
