"""Expressions and queries as they were written. Every node has an `offset` in characters of the statement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


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


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a relation, and of its first columns."""

    name: str
    columns: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class RelationReference:
    """A relation by its name."""

    name: QualifiedName
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class DerivedTable:
    """A query in FROM; a lateral one may refer to what stands on its left."""

    query: Query
    is_lateral: bool
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """A call in FROM of a function that returns rows."""

    call: FunctionCall
    has_ordinality: bool
    alias: Alias | None
    offset: int


class JoinKind(Enum):
    """How two relations are joined."""

    CROSS = "CROSS"
    INNER = "INNER"
    LEFT = "LEFT"
    RIGHT = "RIGHT"
    FULL = "FULL"


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """Two relations joined.

    Attributes:
        kind: how.
        left: the first.
        right: the second.
        condition: behind ON.
        using: names of columns, each with its offset; None if USING was not written.
        is_natural: whether the names are those that both have.
        alias: of the join in parentheses.
        offset: of the join's keyword.
    """

    kind: JoinKind
    left: FromItem
    right: FromItem
    condition: SyntaxNode | None
    using: tuple[tuple[str, int], ...] | None
    is_natural: bool
    alias: Alias | None
    offset: int


FromItem: TypeAlias = RelationReference | DerivedTable | FunctionTable | JoinedTable
"""What stands in FROM."""


@dataclass(frozen=True, slots=True)
class SelectItem:
    """A column of a result; its name if one was written."""

    expression: SyntaxNode
    name: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Groups:
    """What is behind GROUP BY.

    Attributes:
        nodes: what rows are grouped by.
        sets: those that they are grouped by one after the other; empty for all at once.
        is_distinct: whether equal sets count once.
    """

    nodes: tuple[SyntaxNode, ...]
    sets: tuple[tuple[SyntaxNode, ...], ...] = ()
    is_distinct: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """`SELECT … FROM … WHERE … GROUP BY … HAVING … WINDOW …`.

    Attributes:
        items: columns of the result.
        is_distinct: whether every row is wanted once.
        distinct_on: expressions of which every combination is wanted once; empty for none.
        tables: behind FROM.
        condition: behind WHERE.
        groups: behind GROUP BY; None if it was not written.
        having: behind HAVING.
        windows: named ones.
        offset: where it begins.
    """

    items: tuple[SelectItem, ...]
    is_distinct: bool
    distinct_on: tuple[SyntaxNode, ...]
    tables: tuple[FromItem, ...]
    condition: SyntaxNode | None
    groups: Groups | None
    having: SyntaxNode | None
    windows: tuple[tuple[str, WindowDefinition], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Values:
    """`VALUES (…), (…)`."""

    rows: tuple[tuple[SyntaxNode, ...], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class SetQuery:
    """`left UNION [ALL] right`, and so with EXCEPT and INTERSECT; `operator` in capitals."""

    operator: str
    is_all: bool
    left: QueryBody
    right: QueryBody
    offset: int


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A query that WITH names."""

    name: str
    columns: tuple[str, ...]
    query: Query
    offset: int


@dataclass(frozen=True, slots=True)
class With:
    """`WITH [RECURSIVE] …`."""

    common_tables: tuple[CommonTable, ...] = ()
    is_recursive: bool = False


NO_WITH = With()


@dataclass(frozen=True, slots=True)
class Query:
    """A query with what stands around it.

    Attributes:
        body: what gives rows.
        common_tables: behind WITH.
        is_recursive: whether behind WITH RECURSIVE.
        order: behind ORDER BY.
        limit: how many rows at most; None for all.
        limit_offset: after how many, behind OFFSET.
        offset: where it begins.
    """

    body: QueryBody
    common_tables: tuple[CommonTable, ...]
    is_recursive: bool
    order: tuple[SortItem, ...]
    limit: SyntaxNode | None
    limit_offset: SyntaxNode | None
    offset: int


QueryBody: TypeAlias = Select | Values | SetQuery | Query
"""What gives the rows of a query; a `Query` here stands in parentheses."""
