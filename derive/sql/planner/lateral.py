"""LATERAL by unnesting: a lateral query becomes a join, and not a loop over rows.

The query is evaluated once for all combinations of the outer columns that it refers to. These columns are passed
through it in front of its own, and are keys of all its groups, windows and limits. At the end the query is joined to
the left side by these columns. (T. Neumann, A. Kemper: Unnesting Arbitrary Queries, BTW 2015.)

If the query only filters and computes, the rows of the left side pass through it, and no join is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Call, Column, Expression, Literal, OuterColumn
from derive.algebra.relation import (
    Constant,
    Distinct,
    Filter,
    Get,
    Join,
    OuterJoin,
    Project,
    Recurring,
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
    outer_columns_of,
    rewritten,
    rewritten_aggregate,
    rewritten_order,
    rewritten_relation,
    rewritten_window,
    shifted,
    with_columns,
)
from derive.algebra.types import Type
from derive.functions.registry import resolve_operator
from derive.sql.parser.ast import JoinKind
from derive.sql.planner.building import columns_of, filtered, joined
from derive.sql.planner.joins import TRUE, joined_by
from derive.sql.planner.predicates import connected


def with_lateral(
    left: Relation, right: Relation, predicate: Expression = TRUE, kind: JoinKind = JoinKind.INNER
) -> Relation:
    """Return a join with a query that refers to the rows of the left side.

    Args:
        left: left side.
        right: the lateral query.
        predicate: predicate over the columns of both.
        kind: `INNER`, `CROSS` or `LEFT`.
    """
    indexes = sorted(outer_columns_of(right))
    if not indexes:
        return joined_by(kind, left, _raised(right), predicate)
    if kind is not JoinKind.LEFT and _keeps_rows(right):
        both = _Unnesting(left, range(len(left.types))).of(right)
        return both if predicate == TRUE else filtered(both, predicate)
    keys = tuple(Column(index, left.types[index]) for index in indexes)
    domain = Distinct(Project(left, keys))
    unnested = _Unnesting(domain, indexes).of(right)
    width, count = len(left.types), len(indexes)
    own = with_columns(predicate, lambda column: _past(column, width, count))
    same = [_same(key, Column(width + position, key.type)) for position, key in enumerate(keys)]
    conjuncts = same if own == TRUE else [*same, own]
    relation = joined_by(kind, left, unnested, connected("and", conjuncts))
    columns = columns_of(relation)
    return Project(relation, (*columns[:width], *columns[width + count :]))


def _keeps_rows(relation: Relation) -> bool:
    """Return whether a query maps single rows, so that rows of the left side can pass through it."""
    if not outer_columns_of(relation):
        return True
    match relation:
        case Project() | Filter() | Unnest():
            return _keeps_rows(relation.input)
        case UnionAll():
            return all(map(_keeps_rows, relation.inputs))
        case Join():
            return not any(map(outer_columns_of, relation.inputs))
    return False


def _past(column: Column, width: int, count: int) -> Expression:
    return replace(column, index=column.index + count) if column.index >= width else column


def _same(left: Expression, right: Expression) -> Expression:
    function = resolve_operator("is not distinct from", (left.type, right.type)).function
    return Call(function, (left, right), Type.BOOLEAN)


def _raised(relation: Relation) -> Relation:
    """Return a query that refers to no columns of the left side, moved outwards by one level."""

    def replacement(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, OuterColumn) and part.depth > depth + 1:
            return replace(part, depth=part.depth - 1)
        return None

    return rewritten_relation(relation, replacement)


class _Unnesting:
    """Rewriter of relations: puts the columns of the outer query that they refer to in front."""

    def __init__(self, domain: Relation, indexes: Sequence[int]) -> None:
        self._domain = domain
        self._positions = {index: position for position, index in enumerate(indexes)}
        self._count = len(indexes)

    @property
    def _keys(self) -> tuple[Column, ...]:
        return columns_of(self._domain)

    def _expression(self, expression: Expression) -> Expression:
        """Return an expression over rows with the further columns in front."""
        return rewritten(expression, self._replacement)

    def _replacement(self, part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Column) and depth == 0:
            return replace(part, index=part.index + self._count)
        if not isinstance(part, OuterColumn) or part.depth < depth:
            return None
        if part.depth == depth:
            return replace(part, index=part.index + self._count)
        if part.depth > depth + 1:
            return replace(part, depth=part.depth - 1)
        position = self._positions[part.index]
        return OuterColumn(depth, position, part.type) if depth else Column(position, part.type)

    def of(self, relation: Relation) -> Relation:  # noqa: PLR0911 (one for each kind)
        """Return a relation for all rows of the domain, whose columns come first."""
        if not outer_columns_of(relation):
            return joined(self._domain, _raised(relation))
        match relation:
            case Project():
                expressions = tuple(self._expression(expression) for expression in relation.expressions)
                return Project(self.of(relation.input), (*self._keys, *expressions))
            case Filter():
                return filtered(self.of(relation.input), self._expression(relation.predicate))
            case Join():
                return self._join(relation)
            case OuterJoin():
                return self._outer_join(relation)
            case Unnest():
                return Unnest(self.of(relation.input), self._expression(relation.array))
            case UnionAll():
                return UnionAll(tuple(self.of(child) for child in relation.inputs))
            case Distinct():
                return Distinct(self.of(relation.input))
            case SetOperation():
                return replace(relation, left=self.of(relation.left), right=self.of(relation.right))
            case Recursion() | Recurring():  # has no outer references
                return joined(self._domain, relation)
            case _:
                return self._grouped(relation)

    def _grouped(self, relation: Reduce | Window | TopK | Get | Constant) -> Relation:
        match relation:
            case Reduce():
                return self._reduce(relation)
            case Window():
                functions = [rewritten_window(function, self._replacement) for function in relation.functions]
                by_key = tuple(
                    replace(function, partition=(*self._keys, *function.partition)) for function in functions
                )
                return Window(self.of(relation.input), by_key)
            case TopK():
                keys = (*self._keys, *(self._expression(key) for key in relation.keys))
                order = rewritten_order(relation.order, self._replacement)
                return TopK(self.of(relation.input), keys, order, relation.limit, relation.offset)
            case Get() | Constant():
                return joined(self._domain, relation)

    def _reduce(self, relation: Reduce) -> Relation:
        aggregates = tuple(rewritten_aggregate(aggregate, self._replacement) for aggregate in relation.aggregates)
        keys = (*self._keys, *(self._expression(key) for key in relation.keys))
        reduced = Reduce(self.of(relation.input), keys, aggregates)
        if relation.keys:
            return reduced
        # Without keys, an empty input has a row, too: NULLs, and 0 for counts.
        same = [_same(key, Column(self._count + key.index, key.type)) for key in self._keys]
        outer = OuterJoin(Side.LEFT, self._domain, reduced, connected("and", same))
        results: list[Expression] = []
        for index, aggregate in enumerate(aggregates):
            column = Column(2 * self._count + index, aggregate.type)
            is_count = aggregate.function.startswith("count")
            zero = Literal(0, aggregate.type)
            results.append(Call("coalesce", (column, zero), aggregate.type) if is_count else column)
        return Project(outer, (*self._keys, *results))

    def _join(self, relation: Join) -> Relation:
        """Return a join in which the domain is joined to all inputs that refer to it, or else beside them."""
        if not any(outer_columns_of(child) for child in relation.inputs):
            inputs = (self._domain, *(_raised(child) for child in relation.inputs))
            return Join(inputs, tuple(self._expression(predicate) for predicate in relation.predicates))
        joint = self._domain
        predicates: list[Expression] = []
        kept = list(self._keys)
        for child in relation.inputs:
            width = len(joint.types)
            needs = bool(outer_columns_of(child))
            part = self.of(child) if needs else _raised(child)
            skipped = self._count if needs else 0
            if needs:
                predicates += [_same(key, Column(width + key.index, key.type)) for key in self._keys]
            kept += [Column(width + skipped + index, kind) for index, kind in enumerate(child.types)]
            joint = joined(joint, part)
        rows = Project(joined(joint, Constant(((),), ()), predicates), tuple(kept))
        own = [self._expression(predicate) for predicate in relation.predicates]
        return Filter(rows, connected("and", own)) if own else rows

    def _outer_join(self, relation: OuterJoin) -> Relation:
        left, right = self.of(relation.left), self.of(relation.right)
        width, own = len(left.types), len(relation.left.types)
        behind = [_same(key, Column(width + key.index, key.type)) for key in self._keys]
        predicate = self._expression(relation.predicate)
        predicate = with_columns(
            predicate,
            lambda column: shifted(column, self._count) if column.index >= self._count + own else column,
        )
        relation = OuterJoin(relation.side, left, right, connected("and", [*behind, predicate]))
        columns = columns_of(relation)
        others = columns[width : width + self._count]
        pairs = zip(columns[: self._count], others, strict=True)
        keys: tuple[Expression, ...] = tuple(Call("coalesce", pair, pair[0].type) for pair in pairs)
        if relation.side is Side.LEFT:
            keys = columns[: self._count]
        return Project(relation, (*keys, *columns[self._count : width], *columns[width + self._count :]))
