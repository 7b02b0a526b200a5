"""Parameters: how SQL names the fields of a source document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    names = _names_of(projections)
    return names.exact.get(field) or (names.explicit if explicit else names.loose).get(field)


@dataclass(frozen=True, slots=True)
class _Names:
    """Projections by what names them.

    Attributes:
        of: the projections.
        exact: by their fields.
        loose: by their fields with `_` for white space and hyphens; the first of several.
        explicit: the same, for white space alone.
    """

    of: Sequence[ProjectionSpec]
    exact: Mapping[str, ProjectionSpec]
    loose: Mapping[str, ProjectionSpec]
    explicit: Mapping[str, ProjectionSpec]


_last: list[_Names] = []
"""The names that were asked for last: a lambda has many parameters, and its source many projections."""


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
    if isinstance(projections, tuple):  # which stays as it is
        _last[:] = [names]
    return names


def mentioned_projections(sql: str, projections: Sequence[ProjectionSpec]) -> list[ProjectionSpec]:
    """All projections that parameters of SQL name, without having it prepared; those in comments and texts as well."""
    names = dict.fromkeys(match[1] for match in _MENTIONED.finditer(sql))
    named = {name: find_projection(name, projections) for name in names}
    return list({projection.field: projection for projection in named.values() if projection is not None}.values())
