"""Programs: a transform's block of SQL, compiled for documents to be run through it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from connectors.derive_sqlite.binding import Binding, compile_binding
from connectors.derive_sqlite.block import Statement, read_block
from connectors.derive_sqlite.guard import Guard
from connectors.derive_sqlite.parameter import find_projection, parameter_of
from connectors.derive_sqlite.row import MakeDocument, compile_row
from derive.errors import Issue
from derive.position import Script
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec
from derive.suggest import suggest

_SHOWN_PARAMETERS = 12


@dataclass(frozen=True, slots=True)
class Step:
    """One statement, its binding, and what makes documents of its rows (None if it returns none)."""

    statement: Statement
    binding: Binding
    make: MakeDocument | None


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
        together: whether `sql` can be run as a whole: rows of two statements could not be told apart.
    """

    transform: TransformSpec
    what: str
    steps: tuple[Step, ...]
    sql: str
    binding: Binding
    make: MakeDocument | None
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
        step = compile_statement(script, statement, transform, projections)
        if isinstance(step, Step):
            steps.append(step)
        else:
            issues += step
    if issues:
        return issues
    used = [find_projection(name, projections) for each in steps for name in each.statement.parameters]
    makes = [each.make for each in steps if each.make is not None]
    return Program(
        transform=transform,
        what=what,
        steps=tuple(steps),
        sql="".join(each.statement.text for each in steps),
        binding=compile_binding([each for each in used if each is not None]),
        make=makes[0] if makes else None,
        together=len(makes) <= 1,
    )


def compile_statement(
    script: Script, statement: Statement, transform: TransformSpec, projections: Sequence[ProjectionSpec]
) -> Step | list[Issue]:
    """A statement with its parameters bound to fields of the source; or an issue for each that is no field."""
    named = {name: find_projection(name, projections) for name in statement.parameters}
    unknown = [name for name, each in named.items() if each is None]
    if unknown:
        return [_unknown(script, statement, name, transform, projections) for name in unknown]
    found = {name: each for name, each in named.items() if each is not None}
    binding = compile_binding([found[name] for name in statement.parameters])
    return Step(statement, binding, _compile_make(statement, found))


def _compile_make(statement: Statement, found: Mapping[str, ProjectionSpec]) -> MakeDocument | None:
    if not statement.columns:
        return None
    return compile_row(statement.columns, {f"${name}": each for name, each in found.items()})


def _unknown(
    script: Script, statement: Statement, name: str, transform: TransformSpec, projections: Sequence[ProjectionSpec]
) -> Issue:
    known = sorted(parameter_of(each.field) for each in projections)
    guess = suggest(f"${name}", known)
    more = ", …" if len(known) > _SHOWN_PARAMETERS else ""
    written = re.compile(rf"[$:@?]{re.escape(name)}(?![\w$])").search(script.text, statement.begin)
    place = written.start() if written else statement.begin
    return Issue(
        "E523",
        f"{script.text[place] if written else '$'}{name} is no field of '{transform.input.source}',"
        f" which transform '{transform.name}' reads",
        script.locate(place, len(name) + 1),
        f"did you mean {guess}?" if guess else f"there are {', '.join(known[:_SHOWN_PARAMETERS])}{more}",
    )
