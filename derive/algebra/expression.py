"""Scalar expressions over the columns of a row.

Overloads and implicit casts are resolved: a `Call` names one implementation, whose arguments have exactly the types
that it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from derive.algebra.types import Datum, Type

if TYPE_CHECKING:
    from derive.algebra.relation import Relation


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the row at hand.

    Attributes:
        index: counted from 0.
        type: its type.
    """

    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class OuterColumn:
    """A column of a row of an enclosing query, inside of a subquery.

    Attributes:
        depth: how many queries further out, from 1 on.
        index: of the column, counted from 0.
        type: its type.
    """

    depth: int
    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant.

    Attributes:
        value: None is NULL.
        type: its type.
        scale: how many digits behind the point are shown of a number, as it was written; None if that is not known.
    """

    value: Datum
    type: Type
    scale: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$1` and so on, which becomes a literal before anything is worked out.

    Attributes:
        index: counted from 0.
        type: its type.
    """

    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """A function, an operator or a cast.

    Attributes:
        function: names the implementation, of those in `derive.functions`.
        arguments: of exactly the types that it takes.
        type: of its result.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN … THEN … ELSE … END`: the result of the first condition that is true; what is behind is not evaluated.

    Attributes:
        branches: pairs of a condition (boolean) and a result.
        otherwise: the result if none is true.
        type: of all results.
    """

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression
    type: Type


class SubqueryKind(Enum):
    """What a subquery inside of an expression is asked for."""

    SCALAR = "scalar"
    """The one value of its one column; NULL if it has no row; an error if it has several."""
    EXISTS = "exists"
    """Whether it has a row."""
    IN = "in"
    """Whether one of its rows equals the operands, by the logic of three values."""


@dataclass(frozen=True, slots=True)
class Subquery:
    """A query inside of an expression.

    Attributes:
        kind: what is asked of it.
        relation: the query; it refers to the rows around it by `OuterColumn`.
        operands: those of `IN`, one for each column of the relation; else empty.
        type: of the result.
    """

    kind: SubqueryKind
    relation: Relation
    operands: tuple[Expression, ...]
    type: Type


Expression: TypeAlias = Column | OuterColumn | Literal | Parameter | Call | Case | Subquery
"""What has a value for each row. Every one has a `type`."""
