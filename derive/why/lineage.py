"""Lineage: the rows of stored relations from which some rows of a relation follow, by a trace over the algebra.

A trace goes from an operator to its inputs with conditions on rows, and ends at the stored relations:

- `Project` and `Filter`: conditions on the result become conditions on the input;
- `Join` and `OuterJoin`: the desired rows of the join are computed, and their parts are the desired rows of the inputs;
- `Reduce` and `Distinct`: all rows of the desired groups; `Window` and `TopK`: all rows of the desired partitions;
- `UnionAll` and `SetOperation`: equal rows of each input; `Recursion`: all rows;
- a subquery: all rows that it reads for the desired rows of its enclosing query.

Invariant: over the traced rows, the restricted relation has exactly the desired rows of the relation.

Source: Cui, Widom, Wiener, "Tracing the lineage of view data in a warehousing environment" (2000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from derive.algebra.expression import Call, Column, Expression, Literal, OuterColumn, Subquery, SubqueryKind
from derive.algebra.relation import (
    Constant,
    Distinct,
    Filter,
    Get,
    GlobalId,
    Join,
    OuterJoin,
    Project,
    Recursion,
    Reduce,
    Relation,
    SetOperation,
    Side,
    TopK,
    UnionAll,
    Unnest,
    Window,
)
from derive.algebra.rewrite import (
    columns_read,
    conjuncts,
    deepened,
    has_subquery,
    inputs_of,
    mentions_outer_column,
    rewritten,
    shifted,
    with_columns,
    with_gets,
    with_inputs,
)
from derive.algebra.types import Datum, Row, Type
from derive.functions.registry import can_fail, resolve_operator
from derive.sql.planner.building import columns_of

MOST_TUPLES = 2_000
"""Largest number of computed rows that become a condition; for more rows, all rows of the inputs are traced."""

_MOST_CHOICES = 100
"""Largest number of rows that become a disjunction."""

_MOST_LISTED = 1_000
"""Largest number of values that a condition lists for one of several columns; readers look up keys in a list."""

Conditions: TypeAlias = tuple[Expression, ...]
"""Boolean expressions over a row; the desired rows are those for which all of them are true."""

Evaluate: TypeAlias = Callable[[Relation], Iterator[Sequence[Row]]]
"""Function that computes the rows of a relation, in batches."""

_TRUE, _FALSE = Literal(1, Type.BOOLEAN), Literal(0, Type.BOOLEAN)

_PLAIN = {
    Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.REAL, Type.DOUBLE, Type.TEXT, Type.BOOLEAN, Type.DATE, Type.TIME,
    Type.TIMETZ, Type.TIMESTAMP, Type.TIMESTAMPTZ, Type.UUID,
}  # fmt: skip
"""Types for which SQLite's `IN` compares like SQL."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The rows of a stored relation at which a trace ends.

    Attributes:
        get: the stored relation.
        place: the relation within the restricted relation, with its own identifier.
        rows: the traced rows, as a relation over the stored relation.
        conditions: conditions on the rows; columns of enclosing rows are columns of `outer`.
        outer: rows of the enclosing query; None outside of subqueries.
        is_absence: whether the rows are missing partners of an outer join.
    """

    get: Get
    place: Get
    rows: Relation
    conditions: Conditions
    outer: tuple[Row, ...] | None
    is_absence: bool

    @property
    def is_empty(self) -> bool:
        """Return whether the conditions exclude all rows, because no row of another input needs one."""
        return _FALSE in self.conditions


@dataclass(frozen=True, slots=True)
class Lineage:
    """The trace of some rows of a relation.

    Attributes:
        leaves: the traced rows of each stored relation, in the order of the relation's parts.
        restricted: the relation over the traced rows; its rows are the desired rows.
    """

    leaves: tuple[Leaf, ...]
    restricted: Relation


def lineage_of(relation: Relation, row: Row, evaluate: Evaluate) -> Lineage:
    """Trace a row of a relation, in all its copies.

    Args:
        relation: the relation, over stored relations only.
        row: the row.
        evaluate: computes relations over stored relations.

    Raises:
        SqlError: an expression of the relation has no value.
    """
    tracer = _Tracer(evaluate)
    desired = is_one_of(columns_of(relation), [row])
    restricted = _restricted(tracer.trace(relation, desired), desired)
    return Lineage(tuple(tracer.leaves.values()), restricted)


def is_one_of(keys: Sequence[Expression], rows: Iterable[Row], *, is_identity: bool = False) -> Conditions:
    """Return conditions that the values of some expressions equal one of some rows; NULLs are equal.

    Args:
        keys: the expressions.
        rows: a datum for each expression.
        is_identity: whether the rows have the data of the expressions themselves. If not, different data may compare as
            equal, and the conditions may be true for more rows.
    """
    distinct = list(dict.fromkeys(rows))
    if not distinct:
        return (_FALSE,)
    if not is_identity and len(distinct) > 1 and any(key.type not in _PLAIN for key in keys):
        if len(distinct) > _MOST_CHOICES:
            return ()
        return (_any_of([_all_of(is_one_of(keys, [row])) for row in distinct]),)
    conditions, varied = list[Expression](), list[int]()
    for place, key in enumerate(keys):
        values = dict.fromkeys(row[place] for row in distinct)
        if len(values) > 1:
            varied.append(place)
        if len(values) == 1 or len(keys) == 1 or (len(values) <= _MOST_LISTED and key.type in _PLAIN):
            conditions.append(_is_in(key, values, is_identity=is_identity))
    if len(varied) > 1:
        conditions.append(_are_together([keys[place] for place in varied], _picked(distinct, varied)))
    return tuple(conditions)


def _picked(rows: Iterable[Row], places: Sequence[int]) -> list[Row]:
    return [tuple(row[place] for place in places) for row in rows]


def _is_in(key: Expression, values: Iterable[Datum], *, is_identity: bool) -> Expression:
    """Return the condition that an expression has one of some values, which may include NULL."""
    literals = tuple(Literal(datum, key.type) for datum in values if datum is not None)
    is_null = Call("is_null", (key,), Type.BOOLEAN)
    if not literals:
        return is_null
    if len(literals) == 1 and (key.type in _PLAIN or not is_identity):
        among = _equal(key, literals[0])
    else:
        among = Call("in", (key, *literals), Type.BOOLEAN)
    return _any_of([among, is_null]) if None in values else among


def _are_together(keys: Sequence[Expression], rows: Sequence[Row]) -> Expression:
    """Return the condition that several expressions equal one of some rows.

    NULL is replaced, because `IN` ignores it.
    """
    operands = list[Expression]()
    columns = list[list[Datum]]()
    for place, key in enumerate(keys):
        values = [row[place] for row in rows]
        if None in values:
            some = next(datum for datum in values if datum is not None)
            operands += [
                Call("is_null", (key,), Type.BOOLEAN),
                Call("coalesce", (key, Literal(some, key.type)), key.type),
            ]
            columns += [[int(datum is None) for datum in values], [some if one is None else one for one in values]]
        else:
            operands.append(key)
            columns.append(values)
    constant = Constant(tuple(zip(*columns, strict=True)), tuple(operand.type for operand in operands))
    return Subquery(SubqueryKind.IN, constant, tuple(operands), Type.BOOLEAN)


def _equal(left: Expression, right: Expression) -> Expression:
    return Call(resolve_operator("=", (left.type, right.type)).function, (left, right), Type.BOOLEAN)


def _all_of(conditions: Sequence[Expression]) -> Expression:
    return (
        conditions[0] if len(conditions) == 1 else Call("and", tuple(conditions), Type.BOOLEAN) if conditions else _TRUE
    )


def _any_of(conditions: Sequence[Expression]) -> Expression:
    return conditions[0] if len(conditions) == 1 else Call("or", tuple(conditions), Type.BOOLEAN)


def _restricted(relation: Relation, desired: Conditions) -> Relation:
    return Filter(relation, _all_of(desired)) if desired else relation


def _through(desired: Iterable[Expression], expressions: Sequence[Expression]) -> Conditions:
    """Return conditions on rows of a projection as conditions on rows of its input."""
    return tuple(with_columns(one, lambda column: expressions[column.index]) for one in desired)


def _own_expressions(relation: Relation) -> list[Expression]:
    """Return the expressions of an operator, without the expressions of its inputs."""
    own: list[Any] = []
    match relation:
        case Project(_, expressions):
            own = [*expressions]
        case Filter(_, predicate) | OuterJoin(predicate=predicate):
            own = [predicate]
        case Join(_, predicates):
            own = [*predicates]
        case Unnest(_, array):
            own = [array]
        case Reduce(_, keys, aggregates):
            own = [*keys]
            for aggregate in aggregates:
                own += [*aggregate.arguments, aggregate.condition, *(order.expression for order in aggregate.order)]
        case Window(_, functions):
            for function in functions:
                own += [*function.arguments, *function.partition, *(order.expression for order in function.order)]
        case TopK(_, keys, order):
            own = [*keys, *(one.expression for one in order)]
    return [expression for expression in own if expression is not None]


@dataclass(frozen=True, slots=True)
class _Outer:
    """Rows of the query that encloses the traced query; conditions refer to these rows by `OuterColumn`."""

    rows: tuple[Row, ...]
    types: tuple[Type, ...]
    is_absence: bool = False


class _Tracer:
    """Traces relations; inside of a subquery, no rows are computed before the leaves.

    Attributes:
        leaves: leaves by their content.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.leaves: dict[tuple[GlobalId, Conditions, _Outer | None], Leaf] = {}

    def trace(self, relation: Relation, desired: Conditions, outer: _Outer | None = None) -> Relation:
        """Return a relation over leaves that has the desired rows of a relation; its other rows may be wrong."""
        if isinstance(relation, Get):
            return self._leaf(relation, desired, outer)
        if isinstance(relation, Recursion):
            return self._whole(relation)
        if any(map(has_subquery, _own_expressions(relation))):
            if outer is None and isinstance(relation, Filter | Project):
                return self._enclosing(relation, desired)
            return self._whole(relation)
        return self._operator(relation, desired, outer)

    def _operator(self, relation: Relation, desired: Conditions, outer: _Outer | None) -> Relation:  # noqa: PLR0911 (one for each kind)
        match relation:
            case UnionAll() | Distinct():
                inputs = tuple(self._input(one, desired, outer) for one in inputs_of(relation))
                return with_inputs(relation, inputs)
            case SetOperation():
                needed = self._by_keys(relation, columns_of(relation), desired, outer)
                left, right = (self._input(one, needed, outer) for one in (relation.left, relation.right))
                return replace(relation, left=left, right=right)
            case Project():
                return self._project(relation, desired, outer)
            case Filter():
                both = tuple(dict.fromkeys((*desired, *conjuncts(relation.predicate))))
                return replace(relation, input=self._input(relation.input, both, outer))
            case Join():
                return self._join(relation, desired, outer)
            case OuterJoin():
                return self._outer_join(relation, desired, outer)
            case Reduce():
                return self._reduce(relation, desired, outer)
            case Window():
                first, *others = (function.partition for function in relation.functions)
                keys = [key for key in first if all(key in partition for partition in others)]
                return replace(relation, input=self._grouped(relation, keys, desired, outer))
            case TopK():
                return replace(relation, input=self._grouped(relation, relation.keys, desired, outer))
            case Unnest():
                needed = self._by_keys(relation, columns_of(relation.input), desired, outer, is_identity=True)
                return replace(relation, input=self._input(relation.input, needed, outer))
        return relation

    def _input(self, relation: Relation, desired: Conditions, outer: _Outer | None) -> Relation:
        return _restricted(self.trace(relation, desired, outer), desired)

    def _leaf(self, get: Get, desired: Conditions, outer: _Outer | None) -> Get:
        if outer is not None and not any(map(mentions_outer_column, desired)) and not outer.is_absence:
            outer = None
        place = (get.id, desired, outer)
        if place not in self.leaves:
            rows = _restricted(get, desired) if outer is None else _of_outer(get, desired, outer)
            self.leaves[place] = Leaf(
                get,
                replace(get, id=len(self.leaves) + 1),
                rows,
                desired,
                None if outer is None else outer.rows,
                outer is not None and outer.is_absence,
            )
        return self.leaves[place].place

    def _whole(self, relation: Relation) -> Relation:
        """Return a relation over all rows of the relations that it reads."""
        unrestricted: Relation = with_gets(relation, lambda get: self._leaf(get, (), None))
        return unrestricted

    def _rows(self, relation: Relation) -> tuple[Row, ...] | None:
        """Return the distinct rows of a relation; None if there are too many."""
        rows: dict[Row, None] = {}
        for batch in self._evaluate(relation):
            rows.update(dict.fromkeys(batch))
            if len(rows) > MOST_TUPLES:
                return None
        return tuple(rows)

    def _enclosing(self, relation: Filter | Project, desired: Conditions) -> Relation:
        """Trace an operator with subqueries: its desired input rows, and all rows that subqueries read for them."""
        if isinstance(relation, Filter):
            source = _restricted(relation, desired)
        else:
            source = _restricted(relation.input, _through(desired, relation.expressions))
        rows, types = self._rows(source), relation.input.types
        if rows is None:
            return self._whole(relation)
        needed = is_one_of(columns_of(relation.input), rows, is_identity=True)
        traced = self._input(relation.input, needed, None)

        def bound(part: Expression, depth: int) -> Expression | None:
            if not isinstance(part, Subquery):
                return None
            return replace(part, relation=self._subquery(part, _Outer(rows, types)))

        if isinstance(relation, Filter):
            return Filter(traced, rewritten(relation.predicate, bound))
        return Project(traced, tuple(rewritten(one, bound) for one in relation.expressions))

    def _subquery(self, subquery: Subquery, outer: _Outer) -> Relation:
        """Trace a subquery for rows of its enclosing query; for IN, the rows that equal the operands, or are NULL."""
        if any(map(has_subquery, subquery.operands)):
            return self._whole(subquery.relation)
        if not outer.rows:
            return _restricted(self.trace(subquery.relation, (_FALSE,), outer), (_FALSE,))
        needed = []
        for column, operand in zip(columns_of(subquery.relation), subquery.operands, strict=False):
            value = deepened(operand, 1)
            unknown = [Call("is_null", (one,), Type.BOOLEAN) for one in (column, value)]
            needed.append(_any_of([_equal(column, value), *unknown]))
        return self._input(subquery.relation, tuple(needed), outer)

    def _project(self, relation: Project, desired: Conditions, outer: _Outer | None) -> Relation:
        inner = _through(desired, relation.expressions)
        if any(map(can_fail, inner)):
            # Only for rows of this input is it known that their expressions have values.
            rows = self._rows(_restricted(relation.input, inner)) if outer is None else None
            safe = tuple(one for one in inner if not can_fail(one))
            inner = safe if rows is None else is_one_of(columns_of(relation.input), rows, is_identity=True)
        return replace(relation, input=self._input(relation.input, inner, outer))

    def _join(self, relation: Join, desired: Conditions, outer: _Outer | None) -> Relation:
        rows = self._rows(_restricted(relation, desired)) if outer is None else None
        both = [*desired, *(part for predicate in relation.predicates for part in conjuncts(predicate))]
        inputs, begin = [], 0
        for one in relation.inputs:
            end = begin + len(one.types)
            if rows is None:
                needed = _within(both, begin, end)
            else:
                needed = is_one_of(columns_of(one), (row[begin:end] for row in rows), is_identity=True)
            inputs.append(self._input(one, needed, outer))
            begin = end
        return replace(relation, inputs=tuple(inputs))

    def _outer_join(self, relation: OuterJoin, desired: Conditions, outer: _Outer | None) -> Relation:
        width, end = len(relation.left.types), len(relation.types)
        marked = None if outer is not None else self._marked(relation, desired)
        if marked is None:
            keeps_left, keeps_right = relation.side is not Side.RIGHT, relation.side is not Side.LEFT
            own = conjuncts(relation.predicate)
            # A row of one side without a partner depends on all rows of the other side that fulfil the predicate.
            of_left = () if keeps_right and keeps_left else _within(desired if keeps_left else own, 0, width)
            of_right = () if keeps_right and keeps_left else _within(desired if keeps_right else own, width, end)
        else:
            lefts, rights = marked
            matched = [right for several in lefts.values() for right in several if right is not None]
            of_left = is_one_of(columns_of(relation.left), lefts, is_identity=True)
            of_right = is_one_of(columns_of(relation.right), [*rights, *matched], is_identity=True)
        left = self._input(relation.left, of_left, outer)
        traced = replace(relation, left=left, right=self._input(relation.right, of_right, outer))
        if marked is not None:
            lefts, rights = marked
            self._absences(relation, [left for left, several in lefts.items() if None in several], rights)
        return traced

    def _marked(self, relation: OuterJoin, desired: Conditions) -> tuple[dict[Row, list[Row | None]], list[Row]] | None:
        """Return the partners of each desired left row (None for no partner), and the right rows without a partner.

        Return None if there are too many rows.
        """
        width = len(relation.left.types)

        def moved(expression: Expression) -> Expression:
            return with_columns(
                expression, lambda column: replace(column, index=column.index + (column.index >= width))
            )

        left, right = (Project(one, (*columns_of(one), _TRUE)) for one in (relation.left, relation.right))
        joined = OuterJoin(relation.side, left, right, moved(relation.predicate))
        rows = self._rows(_restricted(joined, tuple(map(moved, desired))))
        if rows is None:
            return None
        lefts: dict[Row, list[Row | None]] = {}
        rights = []
        for row in rows:
            one, other = row[:width], row[width + 1 : -1]
            if row[width] is None:
                rights.append(other)
            else:
                lefts.setdefault(one, []).append(None if row[-1] is None else other)
        return lefts, rights

    def _absences(self, relation: OuterJoin, lefts: Sequence[Row], rights: Sequence[Row]) -> None:
        """Add leaves for the partners that rows of an outer join do not have."""
        width = len(relation.left.types)

        def from_left(column: Column) -> Expression:
            is_own = column.index >= width
            return replace(column, index=column.index - width) if is_own else OuterColumn(1, column.index, column.type)

        def from_right(column: Column) -> Expression:
            return column if column.index < width else OuterColumn(1, column.index - width, column.type)

        for rows, types, other, column in (
            (lefts, relation.left.types, relation.right, from_left),
            (rights, relation.right.types, relation.left, from_right),
        ):
            if rows:
                desired = tuple(with_columns(part, column) for part in conjuncts(relation.predicate))
                safe = tuple(part for part in desired if not can_fail(part))
                self.trace(other, safe, _Outer(tuple(rows), types, is_absence=True))

    def _reduce(self, relation: Reduce, desired: Conditions, outer: _Outer | None) -> Relation:
        keys = columns_of(relation)[: len(relation.keys)]
        needed = _through(self._by_keys(relation, keys, desired, outer), relation.keys)
        if any(map(can_fail, needed)):
            rows = self._rows(_restricted(relation.input, needed)) if outer is None else None
            needed = () if rows is None else is_one_of(columns_of(relation.input), rows, is_identity=True)
        return replace(relation, input=self._input(relation.input, needed, outer))

    def _grouped(
        self, relation: Window | TopK, keys: Sequence[Expression], desired: Conditions, outer: _Outer | None
    ) -> Relation:
        if any(map(can_fail, keys)):
            keys = ()
        return self._input(relation.input, self._by_keys(relation, keys, desired, outer), outer)

    def _by_keys(
        self,
        relation: Relation,
        keys: Sequence[Expression],
        desired: Conditions,
        outer: _Outer | None,
        *,
        is_identity: bool = False,
    ) -> Conditions:
        """Return the strongest known conditions on keys that all desired rows of a relation fulfil.

        Args:
            relation: the relation.
            keys: expressions over a row of the relation.
            desired: conditions on its rows.
            outer: rows of the enclosing query.
            is_identity: see `is_one_of`.
        """
        read = {key.index for key in keys if isinstance(key, Column)}
        plain = tuple(one for one in desired if columns_read(one) <= read and not can_fail(one))
        is_fixed = len(read) == len(keys) and read <= _fixed_columns(plain)
        if len(plain) == len(desired) or is_fixed or not keys or outer is not None:
            return plain
        rows = self._rows(Project(_restricted(relation, desired), tuple(keys)))
        return plain if rows is None else is_one_of(keys, rows, is_identity=is_identity)


def _fixed_columns(conditions: Iterable[Expression]) -> set[int]:
    """Return the columns for which conditions leave one value."""
    columns = set()
    for condition in conditions:
        match condition:
            case Call("is_null", (Column(index),)):
                columns.add(index)
            case Call(name, (Column(index), Literal())) if name.startswith("equal_"):
                columns.add(index)
    return columns


def _within(conditions: Iterable[Expression], begin: int, end: int) -> Conditions:
    """Return the conditions on columns of one input of a join, as conditions on its rows."""
    own = range(begin, end)
    inside = (one for one in conditions if all(index in own for index in columns_read(one)) and not can_fail(one))
    return tuple(dict.fromkeys(shifted(one, -begin) for one in inside))


def _of_outer(get: Get, desired: Conditions, outer: _Outer) -> Relation:
    """Return the rows of a relation that fulfil conditions for at least one row of the enclosing query."""
    if len(outer.rows) == 1:
        return _restricted(get, bound_to(desired, outer.rows[0]))

    def exchanged(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Column) and depth == 0:
            return OuterColumn(1, part.index, part.type)
        if isinstance(part, OuterColumn) and part.depth == 1 and depth == 0:
            return Column(part.index, part.type)
        return None

    conditions = tuple(rewritten(one, exchanged) for one in desired)
    rows = _restricted(Constant(outer.rows, outer.types), conditions)
    return Filter(get, Subquery(SubqueryKind.EXISTS, rows, (), Type.BOOLEAN))


def bound_to(conditions: Conditions, row: Row) -> Conditions:
    """Return conditions of a subquery for one row of its enclosing query."""

    def literal(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, OuterColumn) and part.depth == depth + 1:
            return Literal(row[part.index], part.type)
        return None

    return tuple(rewritten(one, literal) for one in conditions)
