"""Relations as functions of relations: multisets of rows, whose columns have types and no names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from derive.algebra.expression import Expression, Literal
from derive.algebra.types import Row, Type, TypeModifier

GlobalId: TypeAlias = int
"""Identifier of a collection, view or index; never reused."""


@dataclass(frozen=True, slots=True)
class Get:
    """A collection of Storage, or a maintained view.

    Attributes:
        id: its identifier.
        types: types of its columns.
        modifiers: declared modifiers of its columns; empty for none.
    """

    id: GlobalId
    types: tuple[Type, ...]
    modifiers: tuple[TypeModifier | None, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """Literal rows of the query.

    Attributes:
        rows: the rows, with duplicates.
        types: types of the columns.
        modifiers: modifiers of the columns, if known; empty for none.
    """

    rows: tuple[Row, ...]
    types: tuple[Type, ...]
    modifiers: tuple[TypeModifier | None, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Project:
    """For each row of the input, the values of expressions.

    Attributes:
        input: the input.
        expressions: one expression for each column of the result, over the input's columns.
    """

    input: Relation
    expressions: tuple[Expression, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return tuple(expression.type for expression in self.expressions)


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which a predicate is true, neither false nor NULL.

    Attributes:
        input: the input.
        predicate: a boolean expression over the input's columns.
    """

    input: Relation
    predicate: Expression

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.input.types


@dataclass(frozen=True, slots=True)
class Join:
    """All combinations of rows for which all predicates are true.

    Attributes:
        inputs: one or more relations; the columns of the result are theirs, side by side.
        predicates: boolean expressions over the columns of the result.
    """

    inputs: tuple[Relation, ...]
    predicates: tuple[Expression, ...] = ()

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return tuple(kind for relation in self.inputs for kind in relation.types)


class Side(Enum):
    """The sides of an outer join whose unmatched rows are kept."""

    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class OuterJoin:
    """An inner join of two relations, and the unmatched rows of one or both sides, with NULLs for the other side.

    Attributes:
        side: the sides whose unmatched rows are kept.
        left: relation of the first columns.
        right: relation of the last columns.
        predicate: a boolean expression over the columns of both.
    """

    side: Side
    left: Relation
    right: Relation
    predicate: Expression

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.left.types + self.right.types


@dataclass(frozen=True, slots=True)
class Unnest:
    """For each element of an array of each row: the row, the element, and its position from 1 (a bigint).

    Attributes:
        input: the input.
        array: an expression over the input's columns; a row with a NULL or empty array is left out.
    """

    input: Relation
    array: Expression

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        element = self.array.type.element
        assert element is not None
        return (*self.input.types, element, Type.BIGINT)


@dataclass(frozen=True, slots=True)
class UnionAll:
    """The sum of all inputs as multisets.

    Attributes:
        inputs: one or more relations of equal types.
    """

    inputs: tuple[Relation, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.inputs[0].types


@dataclass(frozen=True, slots=True)
class Distinct:
    """The input's distinct rows, each once."""

    input: Relation

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.input.types


class SetOperator(Enum):
    """Set operators of two multisets of rows."""

    EXCEPT = "except"
    INTERSECT = "intersect"


@dataclass(frozen=True, slots=True)
class SetOperation:
    """`EXCEPT` or `INTERSECT`; NULLs are equal.

    Attributes:
        operator: the operator.
        is_all: whether the numbers m and n of equal rows count: m - n, or the minimum of both; otherwise every row
            occurs once.
        left: the left relation.
        right: the right relation, of equal types.
    """

    operator: SetOperator
    is_all: bool
    left: Relation
    right: Relation

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.left.types


@dataclass(frozen=True, slots=True)
class Order:
    """One sort key of rows.

    Attributes:
        expression: an expression over the row.
        is_descending: whether the greatest value comes first.
        nulls_first: whether NULL comes before all values.
    """

    expression: Expression
    is_descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate function over rows.

    Attributes:
        function: name of an implementation in `derive.functions`: `count`, `sum_bigint`, ….
        arguments: expressions over a row of the input; none for `count(*)`.
        type: type of the result.
        is_distinct: whether equal arguments count once.
        condition: a filter on rows; None for all.
        order: order of the arguments, if it matters; ties are ordered by the arguments.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: Type
    is_distinct: bool = False
    condition: Expression | None = None
    order: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """A row for each group of rows: its keys and aggregates. Without keys there is one row, also for an empty input.

    Attributes:
        input: the input.
        keys: expressions over a row of the input; NULLs are equal.
        aggregates: aggregates, whose columns follow the keys.
    """

    input: Relation
    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return tuple(key.type for key in self.keys) + tuple(aggregate.type for aggregate in self.aggregates)


class FrameUnit(Enum):
    """Units of a window frame."""

    ROWS = "rows"
    RANGE = "range"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of a window frame.

    Attributes:
        offset: number of units before (negative) or after (positive) the current row or its peers; None if unbounded.
        is_following: whether an unbounded bound is the partition's end instead of its start.
        distance: a distance of the sort key that is not counted in units of its data; `offset` is then -1 or 1 for
            before or after. Planned queries have none.
    """

    offset: int | None
    is_following: bool = False
    distance: Literal | None = None


class Exclusion(Enum):
    """Rows that are left out of a window frame: the current row, the row with its peers, or its other peers."""

    CURRENT_ROW = "current row"
    GROUP = "group"
    TIES = "ties"


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of a partition that a window function reads for a row.

    Attributes:
        unit: the unit of the bounds.
        begin: the start.
        end: the end.
        exclusion: rows that are left out; None for no rows.
    """

    unit: FrameUnit
    begin: Bound
    end: Bound
    exclusion: Exclusion | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether the bounds are those of the partition."""
        return self.begin.offset is None and self.end.offset is None

    @property
    def is_until_peers(self) -> bool:
        """Return whether the bounds are the partition's start and the current row with its peers."""
        is_from_start = self.begin.offset is None and not self.begin.is_following
        return self.unit is not FrameUnit.ROWS and is_from_start and self.end.offset == 0


@dataclass(frozen=True, slots=True)
class WindowFunction:
    """A value for each row, computed from rows of its partition.

    Attributes:
        function: `row_number`, `rank`, `dense_rank`, `ntile`, `lag`, `lead`, `first_value`, `last_value`, `nth_value`,
            `percent_rank`, `cume_dist`, or an aggregate.
        arguments: expressions over a row of the input.
        type: type of the result.
        partition: expressions whose equal values form a partition.
        order: order of the rows in a partition; ties are ordered by all columns.
        frame: the window frame; None for SQL's default.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: Type
    partition: tuple[Expression, ...] = ()
    order: tuple[Order, ...] = ()
    frame: Frame | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Each row, followed by the values of window functions.

    Attributes:
        input: the input.
        functions: one function for each added column.
    """

    input: Relation
    functions: tuple[WindowFunction, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.input.types + tuple(function.type for function in self.functions)


@dataclass(frozen=True, slots=True)
class TopK:
    """The first rows of each group; ties are ordered by all columns.

    `LIMIT` has one group of all rows, and `DISTINCT ON` takes one row of each group.

    Attributes:
        input: the input.
        keys: keys of a group.
        order: order of the rows in a group.
        limit: maximum number of rows of each group; None for all.
        offset: number of skipped rows of each group.
    """

    input: Relation
    keys: tuple[Expression, ...]
    order: tuple[Order, ...]
    limit: int | None
    offset: int = 0

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.input.types


@dataclass(frozen=True, slots=True)
class Recurring:
    """The rows of a recursion's latest step, as input of its next step.

    Attributes:
        id: identifier of the enclosing `Recursion`.
        types: types of the columns.
    """

    id: int
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Recursion:
    """The rows of `base`, and the rows that `step` computes, from `base` first, and then from its own rows.

    The recursion refers neither to enclosing rows nor to enclosing recursions.

    Attributes:
        id: identifier, distinct from enclosing recursions.
        base: the first rows.
        step: a relation of the latest rows, which it contains as one `Recurring`.
        is_distinct: whether a repeated row is ignored; NULLs are equal.
    """

    id: int
    base: Relation
    step: Relation
    is_distinct: bool

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.base.types


Relation: TypeAlias = (
    Get
    | Constant
    | Project
    | Filter
    | Join
    | OuterJoin
    | Unnest
    | UnionAll
    | Distinct
    | SetOperation
    | Reduce
    | Window
    | TopK
    | Recursion
    | Recurring
)
"""A multiset of rows as a function of other relations, with the `types` of its columns."""


@dataclass(frozen=True, slots=True)
class Finishing:
    """The final processing of a result for the client.

    Attributes:
        order: order of the rows, before columns are selected; ties are ordered by all columns.
        limit: maximum number of rows; None for all.
        offset: number of skipped rows.
        columns: indexes of the returned columns, in this order.
    """

    order: tuple[Order, ...]
    limit: int | None
    offset: int
    columns: tuple[int, ...]
