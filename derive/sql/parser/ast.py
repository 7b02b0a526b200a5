"""Syntax trees of expressions and queries. The `offset` of a node counts characters of the statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """The name of a relation, a type or a function.

    Attributes:
        schema: schema; None if the text has none.
        name: name, without quotes.
        offset: start of the name.
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
        name: PostgreSQL's canonical short form, such as `int4`, or the name in the text.
        modifiers: numbers in parentheses.
        offset: start of the name.
        is_array: whether brackets follow the name.
        fields: fields of an interval in lower case, such as `year to month`; empty for all.
    """

    name: str
    modifiers: tuple[int, ...]
    offset: int
    is_array: bool = False
    fields: str = ""


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """The text of a number, with its minus sign if there is one."""

    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class StringLiteral:
    """A string literal, whose type depends on the context."""

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
    """`DEFAULT` in a row of INSERT or UPDATE."""

    offset: int


@dataclass(frozen=True, slots=True)
class ParameterReference:
    """A parameter: `$1` has index 0."""

    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """A column's name; the names of its schema and relation precede it, if present.

    Attributes:
        parts: the names, without quotes.
        offset: start of the first name.
        is_quoted: whether the first name is in double quotes.
    """

    parts: tuple[str, ...]
    offset: int
    is_quoted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Star:
    """`*`, or a relation's name and `.*`."""

    qualifier: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class SortItem:
    """An item of ORDER BY, or a field of a row in ORDER BY.

    Attributes:
        expression: the sort key.
        is_descending: whether DESC is present.
        nulls_first: whether NULLs come first; None if the text does not specify it.
        offset: start of the item.
        is_field: whether the item is a field of a row, in which names and numbers do not mean result columns.
    """

    expression: SyntaxNode
    is_descending: bool
    nulls_first: bool | None
    offset: int
    is_field: bool = False


@dataclass(frozen=True, slots=True)
class FrameBound:
    """The start or end of a window's frame.

    Attributes:
        kind: `unbounded preceding`, `preceding`, `current row`, `following` or `unbounded following`.
        distance: distance for `preceding` and `following`.
        offset: start of the bound.
    """

    kind: str
    distance: SyntaxNode | None
    offset: int


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """A window's frame: `unit` is `rows`, `range` or `groups`; `exclusion` is None for EXCLUDE NO OTHERS."""

    unit: str
    begin: FrameBound
    end: FrameBound
    exclusion: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class WindowDefinition:
    """A window definition after OVER; `base` is the name of the window that it extends."""

    base: str | None
    partition: tuple[SyntaxNode, ...]
    order: tuple[SortItem, ...]
    frame: WindowFrame | None
    offset: int


@dataclass(frozen=True, slots=True)
class WindowReference:
    """A reference to a window of the WINDOW clause."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function, an aggregate or a window function.

    Attributes:
        name: name of the function.
        arguments: arguments, in order.
        offset: start of the call.
        is_star: whether the argument is `*`.
        is_distinct: whether DISTINCT precedes the arguments.
        order: ORDER BY of an aggregate's arguments.
        condition: FILTER condition.
        over: window, or reference to one.
        is_within_group: whether the order is in WITHIN GROUP.
        is_special: whether the call has a syntax of its own, such as `COALESCE` or `EXTRACT(… FROM …)`.
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
class FieldSelection:
    """`(value).name`: a field of a composite value; `offset` is the start of the operand."""

    operand: SyntaxNode
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with one or two operands; `offset` is the operator's offset."""

    symbol: str
    operands: tuple[SyntaxNode, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Logical:
    """`AND` or `OR` of at least two operands, or `NOT` of one; `connective` is in lower case."""

    connective: str
    operands: tuple[SyntaxNode, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Test:
    """`IS [NOT] NULL`, `TRUE`, `FALSE` or `UNKNOWN`; `what` is in lower case."""

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
    """`[NOT] IN (…)` with a list of values."""

    operand: SyntaxNode
    items: tuple[SyntaxNode, ...]
    is_negated: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Quantified:
    """`operator ANY (…)`, `operator ALL (…)`, and `[NOT] IN (query)`.

    Attributes:
        operand: left operand.
        symbol: symbol of the operator.
        is_all: whether the quantifier is ALL, and not ANY.
        source: a query, or an array expression.
        is_in: whether the text has IN.
        is_negated: whether the text has NOT IN.
        offset: offset of the operator.
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
    """`EXISTS (query)`, an expression."""

    query: Query
    offset: int


@dataclass(frozen=True, slots=True)
class ScalarQuery:
    """A scalar subquery; of a subquery of several columns, one column.

    Attributes:
        query: the query.
        offset: start of the subquery.
        column: index of the column.
        width: number of columns that the query must have.
    """

    query: Query
    offset: int
    column: int = 0
    width: int = 1


@dataclass(frozen=True, slots=True)
class CaseExpression:
    """`CASE [operand] WHEN … THEN … [ELSE …] END`.

    `is_field` states that the planner made it for a field of a row that such an expression chooses.
    """

    operand: SyntaxNode | None
    branches: tuple[tuple[SyntaxNode, SyntaxNode], ...]
    otherwise: SyntaxNode | None
    offset: int
    is_field: bool = False


@dataclass(frozen=True, slots=True)
class TypeCast:
    """`CAST(x AS type)`, `x::type` or `type 'x'`."""

    operand: SyntaxNode
    target: TypeName
    offset: int


@dataclass(frozen=True, slots=True)
class RowValue:
    """A row: values in parentheses, or after ROW."""

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
class SubscriptPart:
    """`[i]`, or `[i:j]`.

    Attributes:
        index: index of the element, or start of the slice; None for the first element.
        is_slice: whether the part is a slice.
        end: end of the slice; None for the last element.
    """

    index: SyntaxNode | None
    is_slice: bool = False
    end: SyntaxNode | None = None


@dataclass(frozen=True, slots=True)
class Subscript:
    """`x[i]`, `x[i][j]`, or `x[i:j]`.

    Attributes:
        operand: the array or document.
        parts: the brackets, one for each dimension.
        offset: offset of the first bracket.
    """

    operand: SyntaxNode
    parts: tuple[SubscriptPart, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Collation:
    """`x COLLATE name`."""

    operand: SyntaxNode
    name: QualifiedName
    offset: int


@dataclass(frozen=True, slots=True)
class Construct:
    """A construct with a syntax of its own.

    Attributes:
        name: name of a result column of the construct.
        value: the expression that it means.
        offset: start of the construct.
    """

    name: str
    value: SyntaxNode
    offset: int


@dataclass(frozen=True, slots=True)
class JsonBehavior:
    """The part before `ON EMPTY` or `ON ERROR`.

    Attributes:
        kind: `error`, `null`, `true`, `false`, `unknown`, `empty array`, `empty object` or `default`.
        value: the value of DEFAULT.
        offset: start of the clause.
    """

    kind: str
    value: SyntaxNode | None
    offset: int


@dataclass(frozen=True, slots=True)
class JsonQuery:
    """`JSON_EXISTS`, `JSON_VALUE` or `JSON_QUERY`.

    Attributes:
        name: name of the function, in lower case.
        document: the document.
        path: the SQL/JSON path.
        passing: names and values of the variables of the path.
        offset: start of the call.
        returning: type of the result; None for the type of the function.
        wrapper: `conditional` or `unconditional`; empty for no array around the items.
        omits_quotes: whether a text loses its quotes.
        on_empty: behavior without items; None for NULL.
        on_error: behavior at an error; None for the behavior of the function.
    """

    name: str
    document: SyntaxNode
    path: SyntaxNode
    passing: tuple[tuple[str, SyntaxNode], ...]
    offset: int
    returning: TypeName | None = None
    wrapper: str = ""
    omits_quotes: bool = False
    on_empty: JsonBehavior | None = None
    on_error: JsonBehavior | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """An expression that the planner has put in place of a part of the text: a field of a row."""

    expression: Any
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
    | FieldSelection
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
    | Construct
    | JsonQuery
    | Resolved
)
"""An expression."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A column or an expression of an index; `text` is the text of the expression, without parentheses around it."""

    expression: SyntaxNode
    text: str
    offset: int

    @property
    def column(self) -> str | None:
        """Return the name of the column; None for an expression."""
        return self.expression.parts[-1] if isinstance(self.expression, ColumnReference) else None


@dataclass(frozen=True, slots=True)
class Alias:
    """An alias of a relation, and of its first columns."""

    name: str
    columns: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class RelationReference:
    """A reference to a relation by name."""

    name: QualifiedName
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class DerivedTable:
    """A query in FROM; a lateral query may refer to relations on its left."""

    query: Query
    is_lateral: bool
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """A call of a set-returning function in FROM."""

    call: FunctionCall
    has_ordinality: bool
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class RowsFrom:
    """`ROWS FROM (…)`: the rows of several functions side by side."""

    calls: tuple[FunctionCall, ...]
    has_ordinality: bool
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class SampledTable:
    """`TABLESAMPLE method (percentage) [REPEATABLE (seed)]` of a relation."""

    table: RelationReference
    method: str
    arguments: tuple[SyntaxNode, ...]
    seed: SyntaxNode | None
    offset: int


class JoinKind(Enum):
    """The kind of a join."""

    CROSS = "CROSS"
    INNER = "INNER"
    LEFT = "LEFT"
    RIGHT = "RIGHT"
    FULL = "FULL"


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """A join of two relations.

    Attributes:
        kind: kind of the join.
        left: left relation.
        right: right relation.
        condition: ON condition.
        using: column names of USING, each with its offset; None without USING.
        is_natural: whether the join is NATURAL.
        alias: alias of a join in parentheses.
        offset: offset of the join's keyword.
    """

    kind: JoinKind
    left: FromItem
    right: FromItem
    condition: SyntaxNode | None
    using: tuple[tuple[str, int], ...] | None
    is_natural: bool
    alias: Alias | None
    offset: int


FromItem: TypeAlias = RelationReference | DerivedTable | FunctionTable | RowsFrom | SampledTable | JoinedTable
"""An item of FROM."""


@dataclass(frozen=True, slots=True)
class SelectItem:
    """A result column; `name` is None without an alias."""

    expression: SyntaxNode
    name: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Groups:
    """A GROUP BY clause.

    Attributes:
        nodes: grouping expressions.
        sets: grouping sets; empty if there is one grouping by all expressions.
        is_distinct: whether equal sets count once.
    """

    nodes: tuple[SyntaxNode, ...]
    sets: tuple[tuple[SyntaxNode, ...], ...] = ()
    is_distinct: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """`SELECT … FROM … WHERE … GROUP BY … HAVING … WINDOW …`.

    Attributes:
        items: result columns.
        is_distinct: whether DISTINCT is present.
        distinct_on: expressions of DISTINCT ON; empty without it.
        tables: items of FROM.
        condition: WHERE condition.
        groups: GROUP BY clause; None without it.
        having: HAVING condition.
        windows: windows of the WINDOW clause.
        offset: start of the query.
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
    """`left UNION [ALL] right`, also with EXCEPT and INTERSECT; `operator` is in capitals."""

    operator: str
    is_all: bool
    left: QueryBody
    right: QueryBody
    offset: int


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A common table expression."""

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
    """A query with its WITH, ORDER BY and LIMIT.

    Attributes:
        body: the query that yields rows.
        common_tables: common table expressions of WITH.
        is_recursive: whether WITH is RECURSIVE.
        order: items of ORDER BY.
        limit: greatest number of rows; None for all.
        limit_offset: number of rows to skip, from OFFSET.
        offset: start of the query.
        with_ties: whether rows equal to the last one in the order are added.
    """

    body: QueryBody
    common_tables: tuple[CommonTable, ...]
    is_recursive: bool
    order: tuple[SortItem, ...]
    limit: SyntaxNode | None
    limit_offset: SyntaxNode | None
    offset: int
    with_ties: bool = False


QueryBody: TypeAlias = Select | Values | SetQuery | Query
"""The part of a query that yields rows; a `Query` here is in parentheses."""
