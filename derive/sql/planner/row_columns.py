"""Rows as columns of subqueries: a column that says whether the row exists, and then a column for each field.

The name of a field's column begins with a character that no other name of a column has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from derive.algebra.expression import Expression
from derive.errors import SqlError
from derive.sql.planner.scope import VisibleColumn

_FIELD = "\0"


def field_name(name: str) -> str:
    """Return the name of the column of a field."""
    return _FIELD + name


def is_field(name: str) -> bool:
    """Return whether a column is the field of a row before it."""
    return name.startswith(_FIELD)


def shown_names(names: Sequence[str]) -> tuple[str, ...]:
    r"""Return the names that a query can mention.

    >>> shown_names(("a", "r", "\0f1", "\0f2"))
    ('a', 'r')
    """
    return tuple(name for name in names if not is_field(name))


def has_rows(names: Sequence[str]) -> bool:
    """Return whether a column is a row."""
    return any(map(is_field, names))


def with_names(names: Sequence[str], shown: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns with other names in place of those that a query can mention."""
    others = iter(shown)
    return tuple(name if is_field(name) else next(others) for name in names)


def groups_of(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    r"""Yield the index of each column that a query can mention, and the number of its fields.

    >>> list(groups_of(("a", "r", "\0f1", "\0f2")))
    [(0, 0), (1, 2)]
    """
    indexes = [index for index, name in enumerate(names) if not is_field(name)]
    for index, end in zip(indexes, [*indexes[1:], len(names)], strict=False):
        yield index, end - index - 1


def visible_columns(names: Sequence[str], columns: Sequence[Expression]) -> tuple[VisibleColumn, ...]:
    """Return columns by their names, those of rows with their fields."""
    return tuple(
        VisibleColumn(
            names[index],
            columns[index],
            tuple(
                VisibleColumn(names[at].removeprefix(_FIELD), columns[at]) for at in range(index + 1, index + count + 1)
            ),
        )
        for index, count in groups_of(names)
    )


def require_same_rows(operator: str, left: Sequence[str], right: Sequence[str], offset: int) -> None:
    """Check that the columns of both sides of a set operation are rows of as many fields, or no rows.

    Raises:
        SqlError: a row is beside another value (42804), or beside a row with more fields (0A000).
    """
    for (_, own), (_, other) in zip(groups_of(left), groups_of(right), strict=True):
        if (own == 0) is not (other == 0):
            raise SqlError("42804", f"{operator} types record and another type cannot be matched", offset=offset)
        if own != other:
            message = f"{operator} of rows with different numbers of columns is not supported"
            raise SqlError("0A000", message, offset=offset, hint="Add NULL::type for missing fields.")
