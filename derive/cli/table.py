"""Tables as text: columns that fit a terminal, and cells that are never folded.

A folded name or number can be neither read nor copied, so a table that is too wide leaves out whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from derive.cli.visible import visible_line

_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A shown column: its name, the text of each cell, and the alignment of both."""

    name: str
    cells: tuple[str, ...]
    is_numeric: bool
    width: int


def columns_of(names: Sequence[str], rows: Sequence[Mapping[str, Any]], length: Callable[[str], int]) -> list[Column]:
    """Return the columns of rows.

    Args:
        names: the properties of the rows that become columns, in order.
        rows: JSON values.
        length: returns how many places of a terminal a text takes.
    """
    columns = []
    for name in names:
        kinds = {type(row[name]) for row in rows} - {type(None)}
        cells = tuple(_cell(row[name]) for row in rows)
        width = max(map(length, (name, *cells)))
        columns.append(Column(name, cells, bool(kinds) and kinds <= {int, float}, width))
    return columns


def fit(columns: Sequence[Column], width: int | None, spare: Sequence[str]) -> tuple[list[Column], list[str]]:
    """Leave out columns until the others fit.

    Args:
        columns: all columns, in order.
        width: number of places in a terminal's line; None if any number fits.
        spare: the columns that may be left out, the first one first.

    Returns:
        The columns to show, and the names of the others, both in the order of `columns`. Lines may be longer than the
            terminal if the columns that are not in `spare` do not fit.
    """
    hidden: set[str] = set()
    for name in spare:
        shown = [column for column in columns if column.name not in hidden]
        if width is None or sum(column.width for column in shown) + _GAP * (len(shown) - 1) <= width:
            break
        hidden.add(name)
    return (
        [column for column in columns if column.name not in hidden],
        [column.name for column in columns if column.name in hidden],
    )


def lines_of(columns: Sequence[Column], length: Callable[[str], int]) -> list[str]:
    """Return the header and a line for each row."""
    texts = zip(*((column.name, *column.cells) for column in columns), strict=True)
    return [_line(columns, cells, length) for cells in texts]


def _line(columns: Sequence[Column], cells: Sequence[str], length: Callable[[str], int]) -> str:
    padded = []
    for column, cell in zip(columns, cells, strict=True):
        blank = " " * (column.width - length(cell))
        padded.append(blank + cell if column.is_numeric else cell + blank)
    return (" " * _GAP).join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return visible_line(", ".join(map(str, value)))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if is_number else visible_line(str(value))
