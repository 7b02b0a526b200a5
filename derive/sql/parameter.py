"""Parameters: how SQL names the fields of a source document."""

from __future__ import annotations

import re
from collections.abc import Sequence

from derive.protocol.specs import ProjectionSpec

_CANONICAL = re.compile(r"[\w\s\-/]+")
_EXPLICIT = re.compile(r"p::\((.*)\)", re.DOTALL)
# What looks like a parameter may be inside of a text, and reach beyond it: so another one may begin inside of it.
_MENTIONED = re.compile(r"(?=[$@:#]((?:[\w$]|[^\x00-\x7f]|::)*(?:\([^\s)]*\))?))")


def parameter_of(field: str) -> str:
    """The parameter that names a field, with its `$`."""
    if _CANONICAL.fullmatch(field):
        return "$" + re.sub(r"[\s\-]", "_", field).replace("/", "$")
    return "$p::(" + re.sub(r"\s", "_", field) + ")"


def find_projection(name: str, projections: Sequence[ProjectionSpec]) -> ProjectionSpec | None:
    """The projection that a parameter (without its `$`) names.

    An exact name counts first; otherwise `_` may stand for white space or a hyphen (only for white space in the
    explicit form).
    """
    explicit = _EXPLICIT.fullmatch(name)
    field = explicit[1] if explicit else name.replace("$", "/")
    for projection in projections:
        if projection.field == field:
            return projection
    loose = r"\s" if explicit else r"[\s\-]"
    for projection in projections:
        if re.sub(loose, "_", projection.field) == field:
            return projection
    return None


def mentioned_projections(sql: str, projections: Sequence[ProjectionSpec]) -> list[ProjectionSpec]:
    """All projections that parameters of SQL name, without having it prepared; those in comments and texts as well."""
    names = dict.fromkeys(match[1] for match in _MENTIONED.finditer(sql))
    named = {name: find_projection(name, projections) for name in names}
    return list({projection.field: projection for projection in named.values() if projection is not None}.values())
