"""Needed and existing tables and columns: names, and kinds of values.

A field may have any name, but databases limit the length of names and reserve words. A name that the database would
refuse or shorten gets a suffix, which depends only on the whole name, so that a field's column always has the same
name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum

_ENDING = 10


def quote(name: str) -> str:
    """Return a name as a quoted identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Naming:
    """The rules of a database's names.

    Attributes:
        most_bytes: maximum bytes of a name in UTF-8; the database cuts off or refuses longer names.
        taken: reserved names of columns.
        fold: function whose results are equal for names that the database does not distinguish.
    """

    most_bytes: int = 1000
    taken: frozenset[str] = frozenset()
    fold: Callable[[str], str] = str

    def column(self, field: str) -> str:
        """Return the name of a field's column."""
        if self.refusal(field) is None and self.fold(field) not in self.taken:
            return field
        digest = hashlib.sha256(field.encode("utf-8", "surrogatepass")).hexdigest()[:_ENDING]
        clean = field.replace("\0", "").encode("utf-8", "ignore")[: self.most_bytes - _ENDING - 1]
        return f"{clean.decode('utf-8', 'ignore')}_{digest}"

    def refusal(self, name: str) -> str | None:
        """Return the reason why the database refuses a name; None if it accepts the name."""
        if not name:
            return "it is empty"
        if "\0" in name:
            return "it has a NUL character"
        if len(name.encode("utf-8", "surrogatepass")) > self.most_bytes:
            return f"it is longer than {self.most_bytes} bytes"
        return None


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Kind(Enum):
    """The kind of a column's values."""

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
    """Timestamps of RFC 3339; a database need not preserve the offset from UTC."""
    JSON = "json"
    """Values of any type, as JSON text."""


_TEXTS = {"date": Kind.DATE, "date-time": Kind.TIMESTAMP}
"""Kind of a string by its format."""

_RULES = (
    (Kind.BOOLEAN, {"boolean"}, None),
    (Kind.NUMBER, {"integer", "number"}, None),
    (Kind.INTEGER, {"integer", "string"}, "integer"),
    (Kind.DECIMAL, {"integer", "number", "string"}, "number"),
    (Kind.TEXT, {"string"}, None),
)
"""Kinds, their JSON types, and the format required of strings; the first match applies."""


def kind_of(
    types: Collection[str],
    text_format: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Kind | None:
    """Return the kind of a field's column; None if its values can only be null, and a column is not needed.

    Args:
        types: JSON types of the field, of `array boolean fractional integer null number object string`.
        text_format: JSON Schema's `format` of strings.
        minimum: lower bound of numbers, if known.
        maximum: upper bound of numbers, if known.
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
    """Return the kind of a key's column, in which two values are equal if and only if the keys are equal.

    So a text is stored unchanged, whatever its format. A component that may be null, which primary keys refuse, or that
    may have several types, is stored as JSON text.

    Args:
        types: JSON types of the component.
        must_exist: whether every document has the component.
        minimum: lower bound of numbers, if known.
        maximum: upper bound of numbers, if known.
    """
    if "null" in types or not must_exist:
        return Kind.JSON
    return kind_of(types, minimum=minimum, maximum=maximum) or Kind.JSON


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a binding needs.

    Attributes:
        field: field of the column's values.
        name: name in the table.
        kind: kind of the values; in an existing table, the kind of the stored values.
        type: name of the type in the database.
        is_key: whether the column is a component of the key.
        not_null: whether every row has a value.
        comment: comment for users.
    """

    field: str
    name: str
    kind: Kind
    type: str
    is_key: bool = False
    not_null: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a binding.

    Attributes:
        path: name of the table, after the name of its schema if there are schemas.
        columns: columns of the key, of the values, and of the document, if there is one.
        delta_updates: whether rows are only appended, and a key may have several rows.
        document: name of the column of whole documents.
        comment: comment for users.
    """

    path: tuple[str, ...]
    columns: tuple[Column, ...]
    delta_updates: bool = False
    document: str | None = None
    comment: str = ""

    @property
    def keys(self) -> tuple[Column, ...]:
        """Return the columns of the key."""
        return tuple(column for column in self.columns if column.is_key)

    @property
    def values(self) -> tuple[Column, ...]:
        """Return the columns outside the key, including the column of the document."""
        return tuple(column for column in self.columns if not column.is_key)


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """An existing column.

    Attributes:
        name: name in the table.
        type: type as the database writes it.
        not_null: whether the column refuses NULL.
        comment: its comment; empty if there is none.
        has_default: whether an inserted row without a value gets a default.
    """

    name: str
    type: str
    not_null: bool = False
    comment: str = ""
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """An existing table.

    Attributes:
        columns: columns by name.
        key: names of the primary key's columns; empty if there is none.
        belongings: statements that create objects that are dropped with the table, such as its indexes.
    """

    columns: Mapping[str, ExistingColumn]
    key: frozenset[str] = frozenset()
    belongings: tuple[str, ...] = ()
