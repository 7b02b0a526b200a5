"""Planning: from a relation to the plan that maintains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from derive.algebra.expression import Column, Expression, Literal
from derive.algebra.expression_parts import conjuncts, gets_of, has_subquery, is_unnest
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
    TopK,
    UnionAll,
    Unnest,
    Window,
)
from derive.algebra.types import Type
from derive.compute.plans.outer_joins import outer_join_terms
from derive.compute.plans.plan import (
    Counted,
    Fixed,
    Grouped,
    Keyed,
    Plan,
    Recomputed,
    Source,
    Term,
    all_of,
    leaf_of,
)
from derive.compute.plans.subqueries import restricted_by_subquery, with_scalars_joined
from derive.compute.plans.terms import grows_too_much, product, projected, restricted
from derive.errors import SqlError
from derive.functions.registry import can_fail

MOST_TERMS = 16
"""Maximum number of terms in a sum; a longer sum becomes a leaf."""
MOST_LEAVES = 6
"""Maximum number of leaves in a join; changes of several inputs need a statement for every subset of them."""


def plan_of(relation: Relation) -> Plan:
    """Return the plan that maintains a relation.

    Args:
        relation: a relation without parameters, whose expressions are deterministic.
    """
    return leaf_of(_terms(relation))


def _terms(relation: Relation) -> Sequence[Term]:  # noqa: PLR0911, PLR0912 - one for each kind
    """Return terms whose sum is a relation."""
    match relation:
        case Get():
            return [all_of(Source(relation.id, relation.types))]
        case Constant():
            return [all_of(Fixed(relation.rows, relation.types))]
        case Project():
            return _project(relation)
        case Filter():
            return _filter(relation)
        case Join():
            return _join(relation)
        case OuterJoin():
            return outer_join_terms(relation, plan_of)
        case Unnest():
            keys = [Column(index, kind) for index, kind in enumerate(relation.input.types)]
            return [all_of(_by_keys(relation, relation.input, keys, "elements of an array that never changes"))]
        case UnionAll():
            return _few([term for part in relation.inputs for term in _terms(part)])
        case Distinct():
            return _distinct(relation)
        case SetOperation():
            return _set_operation(relation)
        case Reduce():
            return [all_of(_reduce(relation))]
        case Window():
            return [all_of(_window(relation))]
        case TopK():
            return _top(relation)
        case Recursion() | Recurring():
            raise SqlError("0A000", "WITH RECURSIVE is not supported here")


def _few(terms: Sequence[Term], most: int = MOST_TERMS) -> Sequence[Term]:
    """Return the same terms, or one with their rows if there are many."""
    return terms if len(terms) <= most else [all_of(leaf_of(terms))]


def _small(terms: Sequence[Term], expressions: Sequence[Expression]) -> Sequence[Term]:
    """Return the same terms, or one with their rows if substituting them would enlarge expressions too much."""
    if any(grows_too_much(expressions, term) for term in terms):
        return [all_of(leaf_of(terms))]
    return terms


def _project(project: Project) -> Sequence[Term]:
    terms = _small(_terms(project.input), project.expressions)
    made = []
    for term in terms:
        joined = with_scalars_joined(term, project.expressions, plan_of)
        if joined is None:
            return _recomputed(project, project.input, "a subquery is asked for each row")
        made.append(projected(*joined))
    return [_narrow(made[0])] if len(made) == 1 else made


def _narrow(term: Term) -> Term:
    """Return the same term, whose rows of arrays come without the columns that are not read, such as the array."""
    leaf = term.leaves[0] if len(term.leaves) == 1 else None
    if not isinstance(leaf, Keyed) or not is_unnest(leaf.relation) or term.predicates or term.is_negative:
        return term
    if not term.outputs or any(map(can_fail, term.outputs)):
        return term
    return all_of(replace(leaf, relation=Project(leaf.relation, term.outputs)))


def _filter(filtering: Filter) -> Sequence[Term]:
    terms = _terms(filtering.input)
    width = len(filtering.types)
    for predicate in conjuncts(filtering.predicate):
        terms = _small(_few(terms), [predicate])
        made = []
        for term in terms:
            kept = restricted_by_subquery(term, predicate, plan_of)
            if kept is None:
                joined = with_scalars_joined(term, [predicate], plan_of)
                if joined is None:
                    return _recomputed(filtering, filtering.input, "a subquery is asked for each row")
                narrowed = restricted(*joined)
                kept = [replace(narrowed, outputs=narrowed.outputs[:width])]
            made += kept
        terms = made
    return terms


def _join(join: Join) -> Sequence[Term]:
    if any(has_subquery(predicate) for predicate in join.predicates):
        relation: Relation = Join(join.inputs)
        for predicate in join.predicates:
            relation = Filter(relation, predicate)
        return _terms(relation)
    joined: Sequence[Term] = [Term((), (), ())]
    for part in join.inputs:
        terms = _terms(part)
        if len(joined) * len(terms) > MOST_TERMS:
            joined, terms = _few(joined, 1), _few(terms, 1)
        if max(len(term.leaves) for term in joined) + max(len(term.leaves) for term in terms) > MOST_LEAVES:
            joined = [all_of(leaf_of(joined))]
        joined = [product(left, right) for left in joined for right in terms]
    joined = _small(joined, join.predicates)
    return [restricted(term, join.predicates) for term in joined]


def _distinct(distinct: Distinct) -> Sequence[Term]:
    if not distinct.types:
        one = Distinct(Project(distinct.input, (Literal(1, Type.BIGINT),)))
        return [projected(term, ()) for term in _terms(one)]
    return [all_of(Grouped(plan_of(distinct.input), len(distinct.types), ()))]


def _set_operation(operation: SetOperation) -> Sequence[Term]:
    sides = [
        replace(term, outputs=(*term.outputs, Literal(side, Type.BIGINT)))
        for side, relation in enumerate((operation.left, operation.right))
        for term in _terms(relation)
    ]
    return [all_of(Counted(leaf_of(sides), operation.operator, operation.is_all))]


def _reduce(reduction: Reduce) -> Plan:
    read: list[Expression] = list(reduction.keys)

    def column(expression: Expression) -> Column:
        if expression not in read[len(reduction.keys) :]:
            read.append(expression)
        return Column(read.index(expression, len(reduction.keys)), expression.type)

    aggregates = tuple(
        replace(
            aggregate,
            arguments=tuple(map(column, aggregate.arguments)),
            condition=None if aggregate.condition is None else column(aggregate.condition),
            order=tuple(replace(part, expression=column(part.expression)) for part in aggregate.order),
        )
        for aggregate in reduction.aggregates
    )
    source = plan_of(Project(reduction.input, tuple(read)))
    return Grouped(source, len(reduction.keys), aggregates)


def _window(window: Window) -> Plan:
    partitions = [list(function.partition) for function in window.functions]
    shared = reduce(lambda keys, others: [key for key in keys if key in others], partitions)
    return _by_keys(window, window.input, shared, "a window looks at all rows")


def _top(top: TopK) -> Sequence[Term]:
    if top.limit is None and not top.offset:
        return _terms(top.input)
    return [all_of(_by_keys(top, top.input, top.keys, "the first rows are chosen among all"))]


def _by_keys(relation: Window | TopK | Unnest, source: Relation, keys: Sequence[Expression], reason: str) -> Plan:
    """Return a plan that recomputes a relation for changed keys, or as a whole without keys."""
    is_apart = isinstance(relation, Unnest) and has_subquery(relation.array)
    if not keys or is_apart or any(has_subquery(key) or can_fail(key) for key in keys):
        return _recomputed(relation, source, reason)[0].leaves[0]
    return Keyed((plan_of(source),), (tuple(keys),), replace(relation, input=Get(-1, source.types)))


def _recomputed(relation: Project | Filter | Window | TopK | Unnest, source: Relation, reason: str) -> Sequence[Term]:
    """Return a plan that recomputes a relation as a whole, from its input and its subqueries' sources."""
    around = replace(relation, input=Get(-1, source.types))
    sources = [Source(get.id, get.types) for get in gets_of(around) if get.id >= 0]
    return [all_of(Recomputed((plan_of(source), *sources), around, reason))]
