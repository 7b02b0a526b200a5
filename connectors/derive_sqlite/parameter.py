"""Parameters: how SQL names the fields of a source document."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from derive.document.clock import format_rfc3339
from derive.document.pointer import JSON, MISSING, compile_pointer, parse_pointer
from derive.protocol.specs import Document, ProjectionSpec

_CANONICAL = re.compile(r"[\w\s\-/]+")
_EXPLICIT = re.compile(r"p::\((.*)\)", re.DOTALL)
_I64 = 1 << 63

PUBLISHED_AT = "/_meta/uuid"
"""Pointer of `flow_published_at`, which is made from the document's clock."""


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
    for each in projections:
        if each.field == field:
            return each
    loose = r"\s" if explicit else r"[\s\-]"
    for each in projections:
        if re.sub(loose, "_", each.field) == field:
            return each
    return None


def compile_getter(projection: ProjectionSpec) -> Callable[[Document, int], Any]:
    """A function from a document and its clock to the value SQLite is given for a field."""
    if projection.pointer == PUBLISHED_AT:
        return lambda _, published: format_rfc3339(published)
    get = compile_pointer(projection.pointer)
    default = projection.default[0] if projection.default else None
    convert = _conversion(projection)

    def value(document: Document, published: int) -> Any:
        found = get(document)
        if found is MISSING:
            found = default
        return found if found is None else convert(found)

    return value


def plain_property(projection: ProjectionSpec) -> str | None:
    """The name of a top-level property that every document has and SQLite takes as it is; None otherwise."""
    tokens = parse_pointer(projection.pointer)
    if len(tokens) != 1 or projection.exists != "must" or projection.pointer == PUBLISHED_AT:
        return None
    if projection.types & {"object", "array"} or (projection.types & {"string"} and _is_converted(projection)):
        return None
    return tokens[0]


def _is_converted(projection: ProjectionSpec) -> bool:
    return projection.format in ("integer", "number") or projection.content_encoding == "base64"


def _conversion(projection: ProjectionSpec) -> Callable[[JSON], Any]:
    if _is_converted(projection):
        return lambda value: _from_text(value, projection) if type(value) is str else _plain(value)
    return _plain


def _plain(value: JSON) -> Any:
    return orjson.dumps(value).decode() if type(value) is dict or type(value) is list else value


def _from_text(value: str, projection: ProjectionSpec) -> Any:
    if projection.content_encoding == "base64":
        import base64

        return base64.b64decode(value)
    try:
        number: int | float = int(value) if projection.format == "integer" else float(value)
    except ValueError:
        return value
    return value if isinstance(number, int) and not -_I64 <= number < _I64 else number
