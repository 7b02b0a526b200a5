"""Relations as functions of relations: multisets of rows, whose columns have types and no names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from derive.algebra.expression import Expression
from derive.algebra.form import Form
from derive.algebra.recursion import Recurring, Recursion
from derive.algebra.types import Row, Type

GlobalId: TypeAlias = int
"""What identifies a collection, view or index; never used again for another one."""


@dataclass(frozen=True, slots=True)
class Get:
    """What is known under an identifier: a collection of Storage, or a view that is maintained.

    Attributes:
        id: its identifier.
        types: of its columns.
        forms: what was declared of them beyond that; empty for nothing.
    """

    id: GlobalId
    types: tuple[Type, ...]
    forms: tuple[Form | None, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """Rows that are written in the query.

    Attributes:
        rows: each as often as it is here.
        types: of the columns.
        forms: how values are shown, as far as that is known; empty for nothing.
    """

    rows: tuple[Row, ...]
    types: tuple[Type, ...]
    forms: tuple[Form | None, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Project:
    """A row for each row: the values of expressions.

    Attributes:
        input: whose rows the expressions are about.
        expressions: one for each column of the result.
    """

    input: Relation
    expressions: tuple[Expression, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return tuple(expression.type for expression in self.expressions)


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which a predicate is true, neither false nor NULL.

    Attributes:
        input: whose rows the predicate is about.
        predicate: boolean.
    """

    input: Relation
    predicate: Expression

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.input.types


@dataclass(frozen=True, slots=True)
class Join:
    """All combinations of rows for which all predicates are true.

    Attributes:
        inputs: at least one; the columns of the result are theirs, side by side.
        predicates: about the columns of the result; boolean.
    """

    inputs: tuple[Relation, ...]
    predicates: tuple[Expression, ...] = ()

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return tuple(kind for relation in self.inputs for kind in relation.types)


class Side(Enum):
    """Of an outer join, the rows that are kept though nothing matches them."""

    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class OuterJoin:
    """An inner join of two relations, and the rows of one or both sides that match none, with NULLs for the other side.

    Attributes:
        side: whose rows are kept.
        left: its columns come first.
        right: its columns come behind.
        predicate: about the columns of both; boolean.
    """

    side: Side
    left: Relation
    right: Relation
    predicate: Expression

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.left.types + self.right.types


@dataclass(frozen=True, slots=True)
class Unnest:
    """A row for each element of an array of each row: the row, the element, and its place, counted from 1 (a bigint).

    Attributes:
        input: the rows.
        array: about a row of the input; a row for which it is NULL or empty is left out.
    """

    input: Relation
    array: Expression

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        element = self.array.type.element
        assert element is not None
        return (*self.input.types, element, Type.BIGINT)


@dataclass(frozen=True, slots=True)
class UnionAll:
    """The rows of all inputs, each as often as all of them have it together.

    Attributes:
        inputs: at least one, of equal types.
    """

    inputs: tuple[Relation, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.inputs[0].types


@dataclass(frozen=True, slots=True)
class Distinct:
    """Every row once.

    Attributes:
        input: the rows.
    """

    input: Relation

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.input.types


class SetOperator(Enum):
    """How two multisets of rows are set against one another."""

    EXCEPT = "except"
    INTERSECT = "intersect"


@dataclass(frozen=True, slots=True)
class SetOperation:
    """`EXCEPT` or `INTERSECT`; NULLs are equal here.

    Attributes:
        operator: which of them.
        is_all: rows count as often as they are there: m less n, or the lesser of both; else every row is there once.
        left: the rows.
        right: those they are set against, of equal types.
    """

    operator: SetOperator
    is_all: bool
    left: Relation
    right: Relation

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.left.types


@dataclass(frozen=True, slots=True)
class Order:
    """By what rows are ordered.

    Attributes:
        expression: about the row.
        is_descending: from the greatest value on.
        nulls_first: whether NULL comes before all values.
    """

    expression: Expression
    is_descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One value for many rows.

    Attributes:
        function: names it, of those in `derive.functions`: `count`, `sum_bigint`, ….
        arguments: about a row of the input; none for `count(*)`.
        type: of the result.
        is_distinct: every combination of arguments counts once.
        condition: only rows for which it is true count; None for all.
        order: in which order values come in, where that matters; ties fall in the order of the values.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: Type
    is_distinct: bool = False
    condition: Expression | None = None
    order: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """A row for each group of rows: its keys and aggregates. Without keys there is one row, also for no rows.

    Attributes:
        input: the rows.
        keys: about a row of the input; NULLs are one group.
        aggregates: their columns come behind those of the keys.
    """

    input: Relation
    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return tuple(key.type for key in self.keys) + tuple(aggregate.type for aggregate in self.aggregates)


class FrameUnit(Enum):
    """What a window frame counts."""

    ROWS = "rows"
    RANGE = "range"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a window frame begins or ends.

    Attributes:
        offset: so many before (negative) or after (positive) the current row or its peers; None for unbounded.
        is_following: where unbounded, whether it is the end of the partition rather than its beginning.
    """

    offset: int | None
    is_following: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of its partition that a window function sees from a row."""

    unit: FrameUnit
    begin: Bound
    end: Bound


@dataclass(frozen=True, slots=True)
class WindowFunction:
    """A value for each row, from the rows around it.

    Attributes:
        function: `row_number`, `rank`, `dense_rank`, `ntile`, `lag`, `lead`, `first_value`, `last_value`, `nth_value`,
            `percent_rank`, `cume_dist`, or an aggregate.
        arguments: about a row of the input.
        type: of the result.
        partition: rows with equal values see one another.
        order: of the rows in a partition; where it leaves ties, rows fall in the order of all columns.
        frame: None for what SQL has if none is written.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: Type
    partition: tuple[Expression, ...] = ()
    order: tuple[Order, ...] = ()
    frame: Frame | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Each row with the values of window functions behind it.

    Attributes:
        input: the rows.
        functions: one for each column that is added.
    """

    input: Relation
    functions: tuple[WindowFunction, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.input.types + tuple(function.type for function in self.functions)


@dataclass(frozen=True, slots=True)
class TopK:
    """The first rows of each group; ties fall in the order of all columns.

    `LIMIT` has one group of all rows, and `DISTINCT ON` takes one row of each.

    Attributes:
        input: the rows.
        keys: of a group.
        order: of the rows in a group.
        limit: at most so many of each group; None for all.
        offset: after so many.
    """

    input: Relation
    keys: tuple[Expression, ...]
    order: tuple[Order, ...]
    limit: int | None
    offset: int = 0

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.input.types


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
"""A multiset of rows as a function of others. Every one has the `types` of its columns."""


@dataclass(frozen=True, slots=True)
class Finishing:
    """What is done to the rows of a result on their way to whoever asked.

    Attributes:
        order: of the rows, before columns are chosen; ties fall in the order of all columns.
        limit: at most so many; None for all.
        offset: after so many.
        columns: those of the relation that are shown, in this order.
    """

    order: tuple[Order, ...]
    limit: int | None
    offset: int
    columns: tuple[int, ...]
