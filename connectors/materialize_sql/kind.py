"""Kinds of columns: what the values of a field are, whatever a database calls it."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Kind(Enum):
    """What a column holds."""

    BOOLEAN = "boolean"
    BIGINT = "bigint"
    """Integers that a schema bounds to 64 bits."""
    INTEGER = "integer"
    """Integers of any size."""
    NUMBER = "number"
    """Integers of any size, and doubles."""
    DECIMAL = "decimal"
    """Numbers of any size and precision, written as text."""
    TEXT = "text"
    DATE = "date"
    """Dates of RFC 3339."""
    TIMESTAMP = "timestamp"
    """Moments of RFC 3339, whose offset from UTC does not matter."""
    JSON = "json"
    """Values of any type, as JSON text."""


_TEXTS = {"date": Kind.DATE, "date-time": Kind.TIMESTAMP}
"""By format of a string."""

_RULES = (
    (Kind.BOOLEAN, {"boolean"}, None),
    (Kind.NUMBER, {"integer", "number"}, None),
    (Kind.INTEGER, {"integer", "string"}, "integer"),
    (Kind.DECIMAL, {"integer", "number", "string"}, "number"),
    (Kind.TEXT, {"string"}, None),
)
"""Kinds, the types that they hold, and the format that strings must have for that; the first that fits counts."""


def kind_of(
    types: Collection[str],
    text_format: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Kind | None:
    """The kind of a field's column; None if its values can only be null, for which there is no need of a column.

    Args:
        types: JSON types of the field, of `array boolean fractional integer null number object string`.
        text_format: JSON Schema's `format` of strings.
        minimum: no number is less, if known.
        maximum: no number is greater, if known.
    """
    some = frozenset("number" if name == "fractional" else name for name in types if name != "null")
    if not some:
        return None
    if some == {"integer"}:
        bounded = minimum is not None and maximum is not None and minimum >= _LEAST and maximum <= _MOST
        return Kind.BIGINT if bounded else Kind.INTEGER
    if some == {"string"} and text_format in _TEXTS:
        return _TEXTS[text_format]
    fitting = (kind for kind, held, of in _RULES if some <= held and of in (None, text_format))
    return next(fitting, Kind.JSON)


def key_kind_of(
    types: Collection[str], *, must_exist: bool, minimum: float | None = None, maximum: float | None = None
) -> Kind:
    """The kind of a key's column: two keys are equal there if, and only if, they are equal.

    So a text remains as it is written, whatever its format; and where a component may be null, which no primary key
    holds, or of several types, it is JSON text.

    Args:
        types: JSON types of the component.
        must_exist: every document has it.
        minimum: no number is less, if known.
        maximum: no number is greater, if known.
    """
    if "null" in types or not must_exist:
        return Kind.JSON
    return kind_of(types, minimum=minimum, maximum=maximum) or Kind.JSON
