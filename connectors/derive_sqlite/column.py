"""Columns: check that the derived collection can have the properties that a lambda selects.

SQL names a published property only by its column, and SQLite accepts any name. A closed schema refuses a misspelt one
only when documents come; an open schema never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from connectors.derive_sqlite.column_place import place_of
from connectors.derive_sqlite.program import Program
from derive.errors import Issue
from derive.lambda_sql.block import Statement
from derive.lambda_sql.parameter import find_projection
from derive.protocol.specs import DerivationSpec, ProjectionSpec
from derive.schema.infer import infer
from derive.schema.redaction import Redactor
from derive.schema.shape import Shape, locate
from derive.suggest import distance, suggest

_SHOWN = 12
_NEAR = 5
"""Number of characters of a name per allowed difference."""


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
        if any(declared.get(name, False) is False for name in published.values()):  # else nothing to infer
            shown = {column: name for column, name in published.items() if redactor is None or not redactor.hides(name)}
            yield from _look_at(shown, program, step.statement, spec.name, infer(schema))


def _look_at(
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
            near = _near(name, set(shape.properties) - set(published.values()))
            if near:
                message = f"{program.what} publishes '{name}', which the schema of '{collection}' does not mention"
                yield Issue("N529", message, place_of(script, statement, column), f"did you mean '{near}'?")


def _property(column: str, statement: Statement, projections: Sequence[ProjectionSpec]) -> str:
    """Return the property of a column: the field of its parameter, or the column's own name."""
    projection = find_projection(column[1:], projections) if column[1:] in statement.parameters else None
    return projection.field if projection and column[0] == "$" else column


def _hint(name: str, shape: Shape) -> str:
    known = sorted(name for name, member in shape.properties.items() if member.types)
    guess = suggest(name, known)
    more = ", …" if len(known) > _SHOWN else ""
    return f"did you mean '{guess}'?" if guess else f"it has: {', '.join(known[:_SHOWN])}{more}"


def _near(name: str, known: set[str]) -> str | None:
    """Return a known name that is so close that a misspelling is likely; None without one."""
    guess = suggest(name, known)
    return guess if guess and distance(name, guess) <= max(1, len(name) // _NEAR) else None
