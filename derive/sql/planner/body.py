"""A planned query before it is known what it is part of."""

from __future__ import annotations

from dataclasses import dataclass

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Filter, Order, Relation, TopK, Window, WindowFunction
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_operator
from derive.sql.planner.building import columns_of, projected


@dataclass(frozen=True, slots=True)
class Body:
    """Rows, and what is wanted of them.

    Attributes:
        relation: the rows; those that are asked for are its first columns, others serve the order.
        names: of the columns that are asked for.
        order: of the rows, about all columns.
        limit: how many rows at most, a bigint; None for all.
        offset: after how many, a bigint; None for none.
        offsets: where the columns stand that are asked for, if that is known.
    """

    relation: Relation
    names: tuple[str, ...]
    order: tuple[Order, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    offsets: tuple[int, ...] = ()

    def settled(self) -> Relation:
        """The rows as a relation, whose order is lost, but for what a limit makes of it."""
        relation = self.relation
        if self.limit is not None or self.offset is not None:
            relation = limited(relation, self.order, self.limit, self.offset)
        return projected(relation, columns_of(relation)[: len(self.names)])


def limited(
    relation: Relation, order: tuple[Order, ...], limit: Expression | None, offset: Expression | None
) -> Relation:
    """The first rows in an order: by their numbers if a limit is not known before parameters are."""
    check_counts(limit, offset)
    if is_known(limit) and is_known(offset):
        return TopK(relation, (), order, count_of(limit), count_of(offset) or 0)
    number: Expression = Column(len(relation.types), Type.BIGINT)
    numbered = Window(relation, (WindowFunction("row_number", (), Type.BIGINT, (), order),))
    zero = Literal(0, Type.BIGINT)
    after = zero if offset is None else _called("coalesce", (offset, zero))
    predicate = _compared(">", number, after)
    if limit is not None:
        bound = _called("coalesce", (limit, Literal((1 << 62) - 1, Type.BIGINT)))
        behind = _compared("<=", _minus(number, after), bound)
        predicate = Call("and", (predicate, behind), Type.BOOLEAN)
    filtered = Filter(numbered, predicate)
    return projected(filtered, columns_of(relation))


def check_counts(limit: Expression | None, offset: Expression | None) -> None:
    """Limits that are known may not be negative.

    Raises:
        SqlError: 2201W or 2201X, one is.
    """
    for count, sqlstate, clause in ((limit, "2201W", "LIMIT"), (offset, "2201X", "OFFSET")):
        if is_known(count) and (count_of(count) or 0) < 0:
            raise SqlError(sqlstate, f"{clause} must not be negative")


def is_known(count: Expression | None) -> bool:
    """Whether a limit is known without parameters."""
    return count is None or isinstance(count, Literal)


def is_sound(count: Expression | None) -> bool:
    """Whether a limit is known without parameters, and is one."""
    return is_known(count) and (count_of(count) or 0) >= 0


def count_of(count: Expression | None) -> int | None:
    """A limit that is known; None for none."""
    return int(count.value) if isinstance(count, Literal) and count.value is not None else None


def _compared(symbol: str, left: Expression, right: Expression) -> Expression:
    function = resolve_operator(symbol, (Type.BIGINT, Type.BIGINT)).function
    return Call(function, (left, right), Type.BOOLEAN)


def _minus(left: Expression, right: Expression) -> Expression:
    return Call(resolve_operator("-", (Type.BIGINT, Type.BIGINT)).function, (left, right), Type.BIGINT)


def _called(function: str, arguments: tuple[Expression, ...]) -> Expression:
    return Call(function, arguments, Type.BIGINT)
