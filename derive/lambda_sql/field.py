"""Fields: the projections of a source that the parameters of a statement name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from derive.errors import Issue
from derive.lambda_sql.block import Statement
from derive.lambda_sql.parameter import find_projection, parameter_of
from derive.position import Script
from derive.protocol.specs import ProjectionSpec, TransformSpec
from derive.suggest import suggest

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
