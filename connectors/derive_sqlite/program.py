"""Programs: a transform's block of SQL, compiled for documents to be run through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from connectors.derive_sqlite.returning import split_returning
from connectors.derive_sqlite.row import MakeDocument, RowLayout, compile_layout, compile_row
from derive.errors import Issue
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec
from derive.sql.binding import PUBLISHED_AT, Binding, ColumnBinding, compile_binding, compile_columns
from derive.sql.block import Statement, read_block
from derive.sql.failure import FAILURES
from derive.sql.field import named_fields
from derive.sql.guard import Guard
from derive.sql.parameter import find_projection, mentioned_projections
from derive.sql.token import shorten


@dataclass(frozen=True, slots=True)
class Step:
    """One statement.

    Attributes:
        statement: its text.
        sql: what does the same in less time.
        parameters: names of the parameters of `sql` in binding order, without `$`.
        binding: of the statement's parameters.
        columns: the same, from columns of the fields that `fields_of` names.
        make: makes documents of its rows; None if it returns none.
        layout: makes columns of its rows, if that can be.
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
    """A transform's lambda, compiled.

    Attributes:
        transform: the transform.
        what: names it in errors.
        steps: its statements, in order.
        sql: all of them as one text.
        binding: of all of them, one after the other.
        columns: the same, from columns of the fields that `fields_of` names.
        make: makes documents of the rows of the one statement that returns any; None if there is none.
        layout: makes columns of them, if that can be.
        together: whether `sql` can be run as a whole: rows of two statements could not be told apart.
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


def compile_program(guard: Guard, spec: DerivationSpec, transform: TransformSpec) -> Program | list[Issue]:
    """The program of a transform, or everything that is wrong with its lambda.

    Args:
        guard: on; its database has the derivation's tables.
        spec: the derivation.
        transform: one of its transforms.
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
            issues.append(statement)
            continue
        fields = named_fields(script, statement, transform, projections)
        if isinstance(fields, list):
            issues += fields
        else:
            steps.append(_compile_step(guard, statement, fields, named))
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
        binding=compile_binding(used),
        columns=compile_columns(used, named),
        make=returning[0].make if returning else None,
        layout=returning[0].layout if returning else None,
        together=len(returning) <= 1,
    )


def fields_of(spec: DerivationSpec, transform: TransformSpec) -> list[str]:
    """The fields of its source that a transform's lambda may name, each once; its clock aside, which is no field."""
    text = transform.script.text if transform.script else ""
    named = mentioned_projections(text, spec.sources[transform.input.source].projections)
    return [projection.field for projection in named if projection.pointer != PUBLISHED_AT]


def _shortened(guard: Guard, statement: Statement) -> str:
    """A statement in fewer characters, if what SQLite makes of it is the same."""
    shorter = shorten(statement.text, statement.parameters)
    with suppress(*FAILURES):
        if _instructions(guard, shorter, statement) == _instructions(guard, statement.text, statement):
            return shorter
    return statement.text


def _instructions(guard: Guard, sql: str, statement: Statement) -> list[tuple[Any, ...]]:
    """What SQLite is going to do for a statement."""
    values = (None,) * len(statement.parameters)
    return guard.db.execute(f"EXPLAIN {sql}", values, can_cache=False).fetchall()


def _compile_step(
    guard: Guard, statement: Statement, fields: Mapping[str, ProjectionSpec], named: Sequence[str]
) -> Step:
    parts = split_returning(guard.db, statement)
    sql = "".join(_shortened(guard, part) for part in parts)
    parameters = tuple(name for part in parts for name in part.parameters)
    bound = [fields[name] for name in statement.parameters]
    binding, by_column = compile_binding(bound), compile_columns(bound, named)
    columns = statement.columns
    if not columns:
        return Step(statement, sql, parameters, binding, by_column, None, None)
    selected = {f"${name}": projection for name, projection in fields.items()}
    make, layout = compile_row(columns, selected), compile_layout(columns, selected)
    return Step(statement, sql, parameters, binding, by_column, make, layout)
