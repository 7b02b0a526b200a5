"""Expressions as they were written. Every node has an `offset` into the statement, in characters from 0 on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from derive.sql.parser.query_syntax import Query


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """The name of a relation, a type or a function.

    Attributes:
        schema: None if none was written.
        name: without quotes.
        offset: where it begins.
    """

    schema: str | None
    name: str
    offset: int

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class TypeName:
    """The name of a type, such as `varchar(10)`.

    Attributes:
        name: in PostgreSQL's canonical short form, such as `int4`, or as it was written.
        modifiers: numbers in parentheses.
        offset: where it begins.
        is_array: whether brackets are behind it.
    """

    name: str
    modifiers: tuple[int, ...]
    offset: int
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """A number, with a minus where it had one, as its text."""

    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class StringLiteral:
    """A string, whose type is not decided by how it is written."""

    value: str
    offset: int


@dataclass(frozen=True, slots=True)
class BooleanLiteral:
    """`TRUE` or `FALSE`."""

    value: bool
    offset: int


@dataclass(frozen=True, slots=True)
class NullLiteral:
    """`NULL`."""

    offset: int


@dataclass(frozen=True, slots=True)
class DefaultMarker:
    """`DEFAULT`, where a row is written."""

    offset: int


@dataclass(frozen=True, slots=True)
class ParameterReference:
    """`$1` is the parameter of index 0."""

    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """A column's name, behind those of its relation and schema if they are written."""

    parts: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Star:
    """`*`, or a relation's name and `.*`."""

    qualifier: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class SortItem:
    """What rows are ordered by; `nulls_first` is None if it was not written."""

    expression: SyntaxNode
    is_descending: bool
    nulls_first: bool | None
    offset: int


@dataclass(frozen=True, slots=True)
class FrameBound:
    """Where a window's frame begins or ends.

    Attributes:
        kind: `unbounded preceding`, `preceding`, `current row`, `following` or `unbounded following`.
        distance: for `preceding` and `following`.
        offset: where it begins.
    """

    kind: str
    distance: SyntaxNode | None
    offset: int


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """`unit` is `rows`, `range` or `groups`; `exclusion` is what is behind EXCLUDE, if it is not NO OTHERS."""

    unit: str
    begin: FrameBound
    end: FrameBound
    exclusion: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class WindowDefinition:
    """What is behind OVER; `base` names another one that it goes on from."""

    base: str | None
    partition: tuple[SyntaxNode, ...]
    order: tuple[SortItem, ...]
    frame: WindowFrame | None
    offset: int


@dataclass(frozen=True, slots=True)
class WindowReference:
    """A window that is defined behind WINDOW."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function, an aggregate or a window function.

    Attributes:
        name: of the function, in its schema if one was written.
        arguments: in their order.
        offset: where it begins.
        is_star: whether it was called with `*`.
        is_distinct: whether with DISTINCT.
        order: of the arguments of an aggregate.
        condition: behind FILTER.
        over: the window, or a reference to it.
        is_within_group: whether the order was written behind WITHIN GROUP.
        is_special: whether SQL has a form of its own for it, such as `COALESCE` or `EXTRACT(… FROM …)`.
    """

    name: QualifiedName
    arguments: tuple[SyntaxNode, ...]
    offset: int
    is_star: bool = False
    is_distinct: bool = False
    order: tuple[SortItem, ...] = ()
    condition: SyntaxNode | None = None
    over: WindowDefinition | WindowReference | None = None
    is_within_group: bool = False
    is_special: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with one or two operands; `offset` is the operator's."""

    symbol: str
    operands: tuple[SyntaxNode, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Logical:
    """`AND` or `OR` of at least two operands, or `NOT` of one: `connective` in lower case, and its offset."""

    connective: str
    operands: tuple[SyntaxNode, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Test:
    """`IS [NOT] NULL`, `TRUE`, `FALSE` or `UNKNOWN`; `what` in lower case."""

    __test__ = False

    operand: SyntaxNode
    what: str
    is_negated: bool
    offset: int


@dataclass(frozen=True, slots=True)
class DistinctTest:
    """`IS [NOT] DISTINCT FROM`."""

    left: SyntaxNode
    right: SyntaxNode
    is_negated: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Between:
    """`[NOT] BETWEEN [SYMMETRIC] low AND high`."""

    operand: SyntaxNode
    low: SyntaxNode
    high: SyntaxNode
    is_negated: bool
    is_symmetric: bool
    offset: int


@dataclass(frozen=True, slots=True)
class InList:
    """`[NOT] IN (…)` with values."""

    operand: SyntaxNode
    items: tuple[SyntaxNode, ...]
    is_negated: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Quantified:
    """`operator ANY (…)`, `operator ALL (…)`, and `[NOT] IN (query)`.

    Attributes:
        operand: on the left.
        symbol: of the operator.
        is_all: ALL rather than ANY.
        source: a query, or an expression that is an array.
        is_in: whether it was written with IN.
        is_negated: whether with NOT IN.
        offset: of the operator.
    """

    operand: SyntaxNode
    symbol: str
    is_all: bool
    source: Query | SyntaxNode
    is_in: bool
    is_negated: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Exists:
    """`EXISTS (query)`."""

    query: Query
    offset: int


@dataclass(frozen=True, slots=True)
class ScalarQuery:
    """A query in parentheses, as a value."""

    query: Query
    offset: int


@dataclass(frozen=True, slots=True)
class CaseExpression:
    """`CASE [operand] WHEN … THEN … [ELSE …] END`."""

    operand: SyntaxNode | None
    branches: tuple[tuple[SyntaxNode, SyntaxNode], ...]
    otherwise: SyntaxNode | None
    offset: int


@dataclass(frozen=True, slots=True)
class TypeCast:
    """`CAST(x AS type)`, `x::type` or `type 'x'`."""

    operand: SyntaxNode
    target: TypeName
    offset: int


@dataclass(frozen=True, slots=True)
class RowValue:
    """Several values in parentheses, or behind ROW."""

    items: tuple[SyntaxNode, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """`ARRAY[…]`."""

    items: tuple[SyntaxNode, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class ArrayQuery:
    """`ARRAY(query)`."""

    query: Query
    offset: int


@dataclass(frozen=True, slots=True)
class Subscript:
    """`x[i]`, or `x[i:j]`.

    Attributes:
        operand: what is looked into.
        index: of the element, or where the slice begins; None for its beginning.
        offset: of the bracket.
        is_slice: whether a slice is meant.
        end: where the slice ends; None for the end.
    """

    operand: SyntaxNode
    index: SyntaxNode | None
    offset: int
    is_slice: bool = False
    end: SyntaxNode | None = None


@dataclass(frozen=True, slots=True)
class Collation:
    """`x COLLATE name`."""

    operand: SyntaxNode
    name: QualifiedName
    offset: int


SyntaxNode: TypeAlias = (
    NumberLiteral
    | StringLiteral
    | BooleanLiteral
    | NullLiteral
    | DefaultMarker
    | ParameterReference
    | ColumnReference
    | Star
    | FunctionCall
    | Operation
    | Logical
    | Test
    | DistinctTest
    | Between
    | InList
    | Quantified
    | Exists
    | ScalarQuery
    | CaseExpression
    | TypeCast
    | RowValue
    | ArrayValue
    | ArrayQuery
    | Subscript
    | Collation
)
"""What stands where a value is asked for."""
