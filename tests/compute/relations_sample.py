"""Relations that tests of compute are written with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Aggregate, Finishing, Get, GlobalId, Relation
from derive.algebra.types import Row, Type
from derive.functions.registry import resolve_aggregate, resolve_operator

ORDERS = Get(1, (Type.BIGINT, Type.TEXT, Type.BIGINT, Type.DOUBLE))
"""Number, customer, amount, weight."""
CUSTOMERS = Get(2, (Type.TEXT, Type.TEXT))
"""Name, city."""

ORDER_ROWS: list[Row] = [
    (1, "ann", 10, 0.1),
    (2, "ben", 20, 0.2),
    (3, "ann", 30, 0.3),
    (4, None, 40, None),
    (5, "cid", 50, 1e16),
    (5, "cid", 50, 1e16),
]
CUSTOMER_ROWS: list[Row] = [("ann", "Rome"), ("ben", "Oslo"), ("dan", "Rome"), (None, "Bern")]


def column(relation: Relation, index: int) -> Column:
    """A column of a relation."""
    return Column(index, relation.types[index])


def number(value: int) -> Literal:
    """A bigint."""
    return Literal(value, Type.BIGINT)


def text(value: str) -> Literal:
    """A text."""
    return Literal(value, Type.TEXT)


def call(symbol: str, *arguments: Expression) -> Call:
    """An operation, by what SQL calls it."""
    resolution = resolve_operator(symbol, [argument.type for argument in arguments])
    return Call(resolution.function, arguments, resolution.result_type)


def aggregate(symbol: str, *arguments: Expression, is_distinct: bool = False) -> Aggregate:
    """An aggregate, by what SQL calls it."""
    resolution = resolve_aggregate(symbol, [argument.type for argument in arguments])
    return Aggregate(resolution.function, arguments, resolution.result_type, is_distinct)


def shown(relation: Relation) -> Finishing:
    """All columns of all rows, in any order."""
    return Finishing((), None, 0, tuple(range(len(relation.types))))


def blanked(rows: Sequence[Row], required: Collection[int]) -> list[Row]:
    """Rows with NULL in columns that are not wanted."""
    return [tuple(datum if index in required else None for index, datum in enumerate(row)) for row in rows]


def contents(identifier: GlobalId, required: Collection[int]) -> Iterator[list[Row]]:
    """The rows of `ORDERS` and `CUSTOMERS`, in two batches each, with NULL in columns that are not wanted."""
    every: Sequence[Row] = ORDER_ROWS if identifier == ORDERS.id else CUSTOMER_ROWS
    rows = blanked(every, required)
    yield list(rows[:2])
    yield list(rows[2:])
