"""Parameters: the names of a source document's fields in SQL, and the fields that statements name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from derive.errors import Issue
from derive.lambda_sql.block import Statement
from derive.position import Script
from derive.protocol.specs import ProjectionSpec, TransformSpec
from derive.suggest import suggest

_CANONICAL = re.compile(r"[\w\s\-/]+")
_EXPLICIT = re.compile(r"p::\((.*)\)", re.DOTALL)
# A match may lie inside a string and extend beyond it, so another parameter may begin within the match.
_MENTIONED = re.compile(r"(?=[$@:#]((?:[\w$]|[^\x00-\x7f]|::)*(?:\([^\s)]*\))?))")


def parameter_of(field: str) -> str:
    """Return the parameter that names a field, with its `$`."""
    if _CANONICAL.fullmatch(field):
        return "$" + re.sub(r"[\s\-]", "_", field).replace("/", "$")
    return "$p::(" + re.sub(r"\s", "_", field) + ")"


def find_projection(name: str, projections: Sequence[ProjectionSpec]) -> ProjectionSpec | None:
    """Return the projection that a parameter (without its `$`) names; None if there is none.

    An exact name has priority; otherwise `_` may stand for white space or a hyphen (only for white space in the
    explicit form).
    """
    explicit = _EXPLICIT.fullmatch(name)
    field = explicit[1] if explicit else name.replace("$", "/")
    names = _names_of(projections)
    return names.exact.get(field) or (names.explicit if explicit else names.loose).get(field)


@dataclass(frozen=True, slots=True)
class _Names:
    """Projections by parameter name.

    Attributes:
        of: the projections.
        exact: projections by field.
        loose: projections by field with `_` for white space and hyphens; the first of several.
        explicit: projections by field with `_` for white space alone; the first of several.
    """

    of: Sequence[ProjectionSpec]
    exact: Mapping[str, ProjectionSpec]
    loose: Mapping[str, ProjectionSpec]
    explicit: Mapping[str, ProjectionSpec]


_last: list[_Names] = []
"""The last names, cached: a lambda has many parameters, and its source many projections."""


def _names_of(projections: Sequence[ProjectionSpec]) -> _Names:
    for names in _last:
        if names.of is projections:
            return names
    backwards = projections[::-1]
    names = _Names(
        projections,
        {projection.field: projection for projection in backwards},
        {re.sub(r"[\s\-]", "_", projection.field): projection for projection in backwards},
        {re.sub(r"\s", "_", projection.field): projection for projection in backwards},
    )
    if isinstance(projections, tuple):  # a tuple is immutable, so it can be cached
        _last[:] = [names]
    return names


def mentioned_projections(sql: str, projections: Sequence[ProjectionSpec]) -> list[ProjectionSpec]:
    """Return all projections that parameters of SQL name, without preparing it; those in comments and strings count."""
    names = dict.fromkeys(match[1] for match in _MENTIONED.finditer(sql))
    named = {name: find_projection(name, projections) for name in names}
    return list({projection.field: projection for projection in named.values() if projection is not None}.values())


_SHOWN_PARAMETERS = 12


def named_fields(
    script: Script, statement: Statement, transform: TransformSpec, projections: Sequence[ProjectionSpec]
) -> Mapping[str, ProjectionSpec] | list[Issue]:
    """Return the projection that each parameter names, or an issue for each parameter that names none."""
    named = {name: find_projection(name, projections) for name in statement.parameters}
    unknown = [name for name, projection in named.items() if projection is None]
    if unknown:
        return [_unknown(script, statement, name, transform, projections) for name in unknown]
    return {name: projection for name, projection in named.items() if projection is not None}


def _unknown(
    script: Script, statement: Statement, name: str, transform: TransformSpec, projections: Sequence[ProjectionSpec]
) -> Issue:
    known = sorted(parameter_of(projection.field) for projection in projections)
    guess = suggest(f"${name}", known)
    more = ", …" if len(known) > _SHOWN_PARAMETERS else ""
    written = re.compile(rf"[$:@?]{re.escape(name)}(?![\w$])").search(script.text, statement.begin)
    offset = written.start() if written else statement.begin
    return Issue(
        "E523",
        f"{script.text[offset] if written else '$'}{name} is no field of '{transform.input.source}',"
        f" which transform '{transform.name}' reads",
        script.locate(offset, len(name) + 1),
        f"did you mean {guess}?" if guess else f"there are {', '.join(known[:_SHOWN_PARAMETERS])}{more}",
    )
