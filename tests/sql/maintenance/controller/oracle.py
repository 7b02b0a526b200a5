"""Relations that instances maintain in the model, and what they are by other means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from relations_sample import aggregate, call, number

from derive.algebra.expression import Column
from derive.algebra.relation import Filter, Get, Project, Reduce, Relation
from derive.algebra.types import Row, Type

TYPES = (Type.BIGINT, Type.BIGINT)
FIRST, SECOND = Get(1, TYPES), Get(2, TYPES)
LEFT, RIGHT = Column(0, Type.BIGINT), Column(1, Type.BIGINT)

Rows: TypeAlias = Counter[Row] | None
"""What there is at a time; None for an error in the place of rows."""
RowsAt: TypeAlias = Callable[[int], Rows]
"""Rows at each time."""
Function: TypeAlias = Callable[[Any], Any]
"""Rows of a relation, from those that it is made of."""


def counted(rows: Counter[Row]) -> Counter[Row]:
    """How many rows there are of each number at the left."""
    counts: Counter[Any] = Counter()
    for (left, _), count in rows.items():
        counts[left] += count
    return Counter({(left, count): 1 for left, count in counts.items() if count})


def divided(rows: Counter[Row]) -> Rows:
    """Numbers at the left divided by those at the right."""
    if any(count and row[1] == 0 for row, count in rows.items()):
        return None
    quotients: Counter[Row] = Counter()
    for (left, right), count in rows.items():
        quotients[left // right, right] += count  # type: ignore[operator]
    return quotients


def greater(least: int) -> Function:
    """Rows with more than that at the left."""
    return lambda rows: Counter({row: count for row, count in rows.items() if row[0] > least})


SAMPLES: tuple[tuple[Relation, Function], ...] = (
    (FIRST, lambda rows: rows),
    (Filter(FIRST, call(">", LEFT, number(2))), greater(2)),
    (Project(FIRST, (RIGHT, LEFT)), lambda rows: Counter({row[::-1]: count for row, count in rows.items()})),
    (Reduce(FIRST, (LEFT,), (aggregate("count"),)), counted),
    (Project(FIRST, (call("/", LEFT, RIGHT), RIGHT)), divided),
    (SECOND, lambda rows: rows),
    (Reduce(SECOND, (LEFT,), (aggregate("count"),)), counted),
)
"""Relations, and what they are by other means."""
