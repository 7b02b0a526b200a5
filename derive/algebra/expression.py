"""Scalar expressions over the columns of a row.

Overloads and implicit casts are resolved: a `Call` names one implementation, and its arguments have exactly the types
of that implementation.
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
    """A column of the current row.

    Attributes:
        index: index of the column, from 0.
        type: type of the column.
    """

    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class OuterColumn:
    """A column of an enclosing query's row, inside a subquery.

    Attributes:
        depth: number of levels outward, from 1.
        index: index of the column, from 0.
        type: type of the column.
    """

    depth: int
    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant.

    Attributes:
        value: its datum; None is NULL.
        type: its type.
        scale: number of digits after the decimal point as written; None if unknown.
    """

    value: Datum
    type: Type
    scale: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$1` and so on, which is replaced by a literal before evaluation.

    Attributes:
        index: index of the parameter, from 0.
        type: its type.
    """

    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """A function, an operator or a cast.

    Attributes:
        function: name of an implementation in `derive.functions`.
        arguments: arguments of exactly the implementation's types.
        type: type of the result.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN … THEN … ELSE … END`: the result of the first true condition; later parts are not evaluated.

    Attributes:
        branches: pairs of a condition (boolean) and a result.
        otherwise: the result if no condition is true.
        type: type of all results.
    """

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression
    type: Type


class SubqueryKind(Enum):
    """The kinds of subqueries inside an expression."""

    SCALAR = "scalar"
    """The value of its single column; NULL without a row; an error with several rows."""
    EXISTS = "exists"
    """`EXISTS`: true if the query has a row."""
    IN = "in"
    """`IN`: true if a row of the query equals the operands, in three-valued logic."""


@dataclass(frozen=True, slots=True)
class Subquery:
    """A query inside an expression.

    Attributes:
        kind: kind of the subquery.
        relation: the query; it refers to enclosing rows by `OuterColumn`.
        operands: operands of `IN`, one for each column of the relation; otherwise empty.
        type: type of the result.
    """

    kind: SubqueryKind
    relation: Relation
    operands: tuple[Expression, ...]
    type: Type


Expression: TypeAlias = Column | OuterColumn | Literal | Parameter | Call | Case | Subquery
"""An expression with a value for each row, and a `type`."""
