"""Programs: a transform's block of SQL, compiled for documents to be run through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.derive_sqlite.row import MakeDocument, RowLayout, compile_layout, compile_row
from derive.errors import Issue
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec
from derive.sql.binding import Binding, compile_binding
from derive.sql.block import Statement, read_block
from derive.sql.field import named_fields
from derive.sql.guard import Guard
from derive.sql.parameter import find_projection


@dataclass(frozen=True, slots=True)
class Step:
    """One statement.

    Attributes:
        statement: its text.
        binding: of its parameters.
        make: makes documents of its rows; None if it returns none.
        layout: makes columns of its rows, if that can be.
    """

    statement: Statement
    binding: Binding
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
        make: makes documents of the rows of the one statement that returns any; None if there is none.
        layout: makes columns of them, if that can be.
        together: whether `sql` can be run as a whole: rows of two statements could not be told apart.
    """

    transform: TransformSpec
    what: str
    steps: tuple[Step, ...]
    sql: str
    binding: Binding
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
            binding = compile_binding([fields[name] for name in statement.parameters])
            steps.append(_compile_step(statement, binding, fields))
    if issues:
        return issues
    used = [find_projection(name, projections) for step in steps for name in step.statement.parameters]
    returning = [step for step in steps if step.make is not None]
    return Program(
        transform=transform,
        what=what,
        steps=tuple(steps),
        sql="".join(step.statement.text for step in steps),
        binding=compile_binding([projection for projection in used if projection is not None]),
        make=returning[0].make if returning else None,
        layout=returning[0].layout if returning else None,
        together=len(returning) <= 1,
    )


def _compile_step(statement: Statement, binding: Binding, fields: Mapping[str, ProjectionSpec]) -> Step:
    columns = statement.columns
    if not columns:
        return Step(statement, binding, None, None)
    parameters = {f"${name}": projection for name, projection in fields.items()}
    return Step(statement, binding, compile_row(columns, parameters), compile_layout(columns, parameters))
