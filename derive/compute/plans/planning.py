"""Planning: converts a relation to the plan that maintains it, without the columns that no part reads.

If other dataflows have the same sources, small columns that are not read stay, so that plans share arrangements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import TypeAlias

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Subquery, SubqueryKind
from derive.algebra.relation import (
    Aggregate,
    Constant,
    Distinct,
    Filter,
    Get,
    GlobalId,
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
    columns_read,
    conjuncts,
    gets_of,
    has_subquery,
    is_unnest,
    mentions_outer_column,
    replaced,
    rewritten_parts,
    walk,
)
from derive.algebra.types import Type
from derive.compute.plans.plan import (
    Counted,
    Fixed,
    Grouped,
    Keyed,
    Linear,
    Plan,
    Recomputed,
    Source,
    Temporal,
    Term,
    all_of,
    equal,
    equated,
    grows_too_much,
    inputs_of,
    leaf_of,
    nulls,
    product,
    projected,
    restricted,
    shifted,
    sides,
)
from derive.compute.plans.validity import Validity, reads_time, split
from derive.errors import SqlError
from derive.functions.registry import can_fail

_DISPENSABLE = {Type.JSONB, Type.BYTEA, Type.TIMESTAMPTZ}


def pruned(plan: Plan, sources: Collection[GlobalId], *, is_shared: bool = True) -> Plan:
    """Return a plan with the same rows that reads fewer columns of some sources.

    Args:
        plan: a plan whose sources have all columns.
        sources: sources whose columns may be pruned.
        is_shared: whether columns stay that another plan may read.
    """
    read: dict[GlobalId, set[int]] = {}
    _note(plan, read)
    kept: dict[GlobalId, tuple[int, ...]] = {}
    _choose(plan, read, sources, kept, _DISPENSABLE if is_shared else set(Type))
    return _narrowed(plan, kept) if kept else plan


def _note(plan: Plan, read: dict[GlobalId, set[int]]) -> None:
    """Record which columns of sources are read."""
    if isinstance(plan, Source):
        read.setdefault(plan.id, set()).update(range(len(plan.types)))
        return
    if not isinstance(plan, Linear):
        for source in inputs_of(plan):
            _note(source, read)
        return
    for term in plan.terms:
        columns = {index for part in (*term.predicates, *term.outputs) for index in columns_read(part)}
        for leaf, start in zip(term.leaves, _starts(term), strict=True):
            if isinstance(leaf, Source):
                own = {index - start for index in columns if start <= index < start + len(leaf.types)}
                read.setdefault(leaf.id, set()).update(own)
            else:
                _note(leaf, read)


def _choose(
    plan: Plan,
    read: Mapping[GlobalId, set[int]],
    sources: Collection[GlobalId],
    kept: dict[GlobalId, tuple[int, ...]],
    dispensable: Container[Type],
) -> None:
    """Choose the remaining columns of pruned sources: those that are read, or have no dispensable type."""
    if isinstance(plan, Source) and plan.id in sources:
        columns = [index for index, kind in enumerate(plan.types) if kind not in dispensable or index in read[plan.id]]
        if len(columns) < len(plan.types):
            kept[plan.id] = tuple(columns)
    for source in inputs_of(plan):
        _choose(source, read, sources, kept, dispensable)


def _narrowed(plan: Plan, kept: Mapping[GlobalId, tuple[int, ...]]) -> Plan:
    match plan:
        case Source(id=identifier, types=types) if identifier in kept:
            return Source(identifier, tuple(types[index] for index in kept[identifier]), kept[identifier])
        case Linear(terms=terms):
            return Linear(tuple(_narrowed_term(term, kept) for term in terms))
        case Grouped(input=source) | Counted(input=source) | Temporal(input=source):
            return replace(plan, input=_narrowed(source, kept))
        case Keyed(inputs=inputs) | Recomputed(inputs=inputs):
            return replace(plan, inputs=tuple(_narrowed(source, kept) for source in inputs))
        case _:
            return plan


def _narrowed_term(term: Term, kept: Mapping[GlobalId, tuple[int, ...]]) -> Term:
    columns: dict[int, int] = {}
    for leaf, start in zip(term.leaves, _starts(term), strict=True):
        own = kept.get(leaf.id) if isinstance(leaf, Source) else None
        for index in range(len(leaf.types)) if own is None else own:
            columns[start + index] = len(columns)

    return Term(
        tuple(_narrowed(leaf, kept) for leaf in term.leaves),
        tuple(_moved(part, columns) for part in term.predicates),
        tuple(_moved(part, columns) for part in term.outputs),
        term.is_negative,
    )


def _starts(term: Term) -> list[int]:
    return [0, *accumulate(len(leaf.types) for leaf in term.leaves)][: len(term.leaves)]


def outer_join_terms(join: OuterJoin, planned: Callable[[Relation], Plan]) -> Sequence[Term]:
    """Return terms whose sum is an outer join.

    Args:
        join: the outer join.
        planned: plans its inputs.
    """
    width = len(join.left.types)
    predicates = conjuncts(join.predicate)
    pairs = [pair for predicate in predicates if (pair := _equated_sides(predicate, width))]
    others = [predicate for predicate in predicates if not _equated_sides(predicate, width)]
    left, right = planned(join.left), planned(join.right)
    around = replace(join, left=Get(-1, join.left.types), right=Get(-2, join.right.types))
    if any(map(has_subquery, predicates)):
        sources = [Source(get.id, get.types) for get in gets_of(join.predicate)]
        return [all_of(Recomputed((left, right, *sources), around, "a subquery is evaluated for each pair of rows"))]
    is_mixed = any(all(sides(predicate, width)) for predicate in others)
    if pairs and not is_mixed and not any(map(can_fail, predicates)):
        return _sum(join, left, right, pairs, others)
    if pairs:
        keys = tuple(tuple(pair[side] for pair in pairs) for side in (0, 1))
        return [all_of(Keyed((left, right), keys, around))]
    return [all_of(Recomputed((left, right), around, "an outer join without an equation compares all pairs of rows"))]


def _equated_sides(predicate: Expression, width: int) -> tuple[Expression, Expression] | None:
    """Return the sides of an infallible equation, each over its own row (left, right); None if there is none."""
    pair = equated(predicate)
    if pair is None or can_fail(predicate) or has_subquery(predicate):
        return None
    for left, right in (pair, pair[::-1]):
        if sides(left, width) == (True, False) and sides(right, width) == (False, True):
            return left, shifted(right, -width)
    return None


def _sum(
    join: OuterJoin,
    left: Plan,
    right: Plan,
    pairs: Sequence[tuple[Expression, Expression]],
    others: Sequence[Expression],
) -> Sequence[Term]:
    """Return the terms of an outer join; each of its predicates is an equation, or reads one side only."""
    width = len(left.types)
    terms = [restricted(product(all_of(left), all_of(right)), conjuncts(join.predicate))]
    of_left = [predicate for predicate in others if not sides(predicate, width)[1]]
    of_right = [shifted(predicate, -width) for predicate in others if sides(predicate, width)[1]]
    if join.side is not Side.RIGHT:
        matches = _matches(right, [pair[1] for pair in pairs], of_right)
        terms += [
            replace(term, outputs=(*term.outputs, *nulls(right.types)))
            for term in _alone(left, [pair[0] for pair in pairs], of_left, matches)
        ]
    if join.side is not Side.LEFT:
        matches = _matches(left, [pair[0] for pair in pairs], of_left)
        terms += [
            replace(term, outputs=(*nulls(left.types), *term.outputs))
            for term in _alone(right, [pair[1] for pair in pairs], of_right, matches)
        ]
    return terms


def _matches(plan: Plan, keys: Sequence[Expression], predicates: Sequence[Expression]) -> Plan:
    """Return the distinct keys of the rows for which predicates are true."""
    return Grouped(Linear((projected(restricted(all_of(plan), predicates), keys),)), len(keys), ())


def _alone(plan: Plan, keys: Sequence[Expression], predicates: Sequence[Expression], matches: Plan) -> list[Term]:
    """Return the rows for which a predicate is not true, or whose key is missing on the other side."""
    width = len(plan.types)
    joined = product(all_of(plan), all_of(matches))
    equations = [equal(key, Column(width + index, key.type)) for index, key in enumerate(keys)]
    matched = restricted(joined, [*predicates, *equations])
    return [all_of(plan), replace(matched, outputs=matched.outputs[:width], is_negative=True)]


Planned: TypeAlias = Callable[[Relation], Plan]
"""A function that plans a relation."""


def with_scalars_joined(
    term: Term, expressions: Sequence[Expression], planned: Planned
) -> tuple[Term, list[Expression]] | None:
    """Replace subqueries in expressions by columns of joined terms.

    Args:
        term: the term that the expressions read.
        expressions: expressions with or without subqueries.
        planned: plans the subqueries.

    Returns:
        The joined term, which begins with the columns of `term`, and the expressions over it; None if a subquery
            depends on the row, or may not have exactly one row.
    """
    subqueries = {part: None for expression in expressions for part in walk(expression) if isinstance(part, Subquery)}
    columns: dict[Expression, Column] = {}
    for subquery in subqueries:
        is_alike = subquery.kind is SubqueryKind.SCALAR and _has_one_row(subquery.relation)
        if not is_alike or mentions_outer_column(subquery.relation):
            return None
        columns[subquery] = Column(len(term.outputs), subquery.type)
        term = product(term, all_of(planned(subquery.relation)))
    return term, [rewritten_parts(expression, columns.get) for expression in expressions]


def _has_one_row(relation: Relation) -> bool:
    """Return whether a relation always has one row."""
    match relation:
        case Reduce(keys=()):
            return True
        case Project(input=source):
            return _has_one_row(source)
        case _:
            return False


def restricted_by_subquery(term: Term, predicate: Expression, planned: Planned) -> list[Term] | None:
    """Return terms of the rows for which a subquery has a row, or has none.

    Args:
        term: the term.
        predicate: a predicate over its columns.
        planned: plans the subqueries.

    Returns:
        Terms with these rows; None if the predicate has another form, or correlates with the row by other means than
        equations.
    """
    is_negated = isinstance(predicate, Call) and predicate.function == "not"
    subquery = predicate.arguments[0] if isinstance(predicate, Call) and is_negated else predicate
    if not isinstance(subquery, Subquery) or subquery.kind is SubqueryKind.SCALAR:
        return None
    if subquery.kind is SubqueryKind.IN and (is_negated or any(map(has_subquery, subquery.operands))):
        return None
    lookup = _lookup(subquery)
    if lookup is None:
        return None
    width = len(term.outputs)
    joined = product(term, all_of(planned(Distinct(lookup.relation))))
    equations = [equal(operand, Column(width + index, operand.type)) for index, operand in enumerate(lookup.operands)]
    joined = restricted(joined, equations)
    joined = replace(joined, outputs=joined.outputs[:width])
    if is_negated:
        return [term, replace(joined, is_negative=not joined.is_negative)]
    return [joined]


@dataclass(frozen=True, slots=True)
class _Lookup:
    """A subquery as a lookup: it has a row if the operands are in a relation.

    Attributes:
        relation: relation that does not depend on the row.
        operands: expressions over the row; one for each column of the relation that has an operand.
    """

    relation: Relation
    operands: tuple[Expression, ...]


def _lookup(subquery: Subquery) -> _Lookup | None:
    relation = subquery.relation
    required: tuple[Expression, ...] = ()
    if subquery.kind is SubqueryKind.IN:
        if isinstance(relation, Distinct):
            relation = relation.input
        required = tuple(Column(index, kind) for index, kind in enumerate(relation.types))
        if isinstance(relation, Project):
            required, relation = relation.expressions, relation.input
    else:
        while isinstance(relation, Project | Distinct):
            relation = relation.input
    source, predicates = _peeled(relation)
    if mentions_outer_column(source) or mentions_outer_column(required):
        return None
    kept = [predicate for predicate in predicates if not mentions_outer_column(predicate)]
    pairs = [_correlation(predicate) for predicate in predicates if mentions_outer_column(predicate)]
    if any(pair is None for pair in pairs):
        return None
    inner = [*required, *(pair[0] for pair in pairs if pair)]
    outer = [*subquery.operands, *(pair[1] for pair in pairs if pair)]
    for predicate in kept:
        source = Filter(source, predicate)
    return _Lookup(Project(source, tuple(inner)), tuple(outer))


def keyed_by_subquery(source: Plan, predicate: Expression, planned: Planned) -> Keyed | None:
    """Return the plan of the rows for which a predicate with a subquery is true, recomputed for changed keys.

    The keys are the equations between the rows of the subquery and the row that the predicate reads.

    Args:
        source: plan of the rows.
        predicate: the predicate.
        planned: plans the rows of the subquery.

    Returns:
        The plan; None if there is not exactly one subquery, or no such equation.
    """
    subqueries = {part for part in walk(predicate) if isinstance(part, Subquery)}
    if len(subqueries) != 1:
        return None
    (subquery,) = subqueries
    correlated = _correlated(subquery.relation)
    if correlated is None:
        return None
    core, keys, relation = correlated
    inner, outer = tuple(pair[0] for pair in keys), tuple(pair[1] for pair in keys)
    own = replace(subquery, relation=relation)
    keyed = Filter(Get(-1, source.types), rewritten_parts(predicate, lambda part: own if part == subquery else None))
    is_closed = {get.id for get in gets_of(keyed)} == {-1, -2} and not mentions_outer_column(keyed)
    if not is_closed or any(map(can_fail, (*inner, *outer))):
        return None
    return Keyed((source, planned(core)), (outer, inner), keyed)


def _correlated(
    relation: Relation,
) -> tuple[Relation, Sequence[tuple[Expression, Expression]], Relation] | None:
    """Return the rows of a subquery that equations with the outer row select.

    Returns:
        The rows without these equations; the equations, as pairs of an inner and an outer expression; and the
            subquery over the rows, which are `Get(-2)`. None if there is no equation.
    """
    if isinstance(relation, Filter | Join):
        source, predicates = _peeled(relation)
        inside = [predicate for predicate in predicates if not mentions_outer_column(predicate)]
        outside = [predicate for predicate in predicates if mentions_outer_column(predicate)]
        pairs = [pair for predicate in outside if (pair := _correlation(predicate))]
        if pairs and not mentions_outer_column(source):
            for predicate in inside:
                source = Filter(source, predicate)
            over: Relation = Get(-2, source.types)
            for predicate in outside:
                over = Filter(over, predicate)
            return source, pairs, over
    if isinstance(relation, Project | Distinct | Reduce | TopK | Window | Filter):
        correlated = _correlated(relation.input)
        if correlated is not None:
            return *correlated[:2], replace(relation, input=correlated[2])
    return None


def _peeled(relation: Relation) -> tuple[Relation, list[Expression]]:
    """Return a relation without the predicates at its top, and these predicates."""
    if isinstance(relation, Filter):
        source, predicates = _peeled(relation.input)
        return source, predicates + conjuncts(relation.predicate)
    if isinstance(relation, Join):
        return Join(relation.inputs), [part for predicate in relation.predicates for part in conjuncts(predicate)]
    return relation, []


def _correlation(predicate: Expression) -> tuple[Expression, Expression] | None:
    """Return the sides of an equation between the inner and the outer row, each over its own row; None otherwise.

    The side of the inner row is a key of that row, and so no constant.
    """
    pair = equated(predicate)
    if pair is None or has_subquery(predicate):
        return None
    for inner, outer in (pair, pair[::-1]):
        references = [part for part in walk(outer) if isinstance(part, OuterColumn)]
        is_outer = not columns_read(outer) and all(reference.depth == 1 for reference in references)
        if is_outer and columns_read(inner) and not mentions_outer_column(inner):
            return inner, rewritten_parts(outer, _as_column)
    return None


def _as_column(expression: Expression) -> Expression | None:
    return Column(expression.index, expression.type) if isinstance(expression, OuterColumn) else None


MOST_TERMS = 16
"""Maximum number of terms in a sum; a sum of more terms becomes a leaf."""
MOST_LEAVES = 8
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
            return [all_of(_by_keys(relation, relation.input, keys, "elements of a constant array"))]
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
    """Return the same terms; if they are many, one term with their rows."""
    return terms if len(terms) <= most else [all_of(leaf_of(terms))]


def _small(terms: Sequence[Term], expressions: Sequence[Expression]) -> Sequence[Term]:
    """Return the same terms; if their substitution would enlarge expressions too much, one term with their rows."""
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
    """Return the same term without the columns of `unnest` that no part reads, such as the array."""
    leaf = term.leaves[0] if len(term.leaves) == 1 else None
    if not isinstance(leaf, Keyed) or not is_unnest(leaf.relation) or term.predicates or term.is_negative:
        return term
    if not term.outputs or any(map(can_fail, term.outputs)):
        return term
    return all_of(replace(leaf, relation=Project(leaf.relation, term.outputs)))


def _temporal(source: Relation, predicates: Sequence[tuple[Expression, Validity]]) -> Sequence[Term]:
    """Return terms of the rows for which temporal filters are true.

    A filter of one input of a join is applied to this input, so that rows without times are not joined.
    """
    rest = predicates
    if isinstance(source, Join):
        source, rest = _with_filtered_inputs(source, predicates)
    if not rest:
        return _terms(source)
    validity = reduce(Validity.both, (validity for _, validity in rest))
    terms = _small(_few(_terms(source)), validity.bounds)
    columns = tuple(Column(index, kind) for index, kind in enumerate(source.types))
    dated = [projected(term, (*columns, *validity.bounds)) for term in terms]
    return [all_of(Temporal(leaf_of(dated), len(validity.begins), len(validity.ends)))]


def _with_filtered_inputs(
    join: Join, predicates: Sequence[tuple[Expression, Validity]]
) -> tuple[Join, Sequence[tuple[Expression, Validity]]]:
    """Return a join with temporal filters in its inputs, and the filters that read several inputs or may fail."""
    inputs, rest = list(join.inputs), []
    starts = [0, *accumulate(len(relation.types) for relation in inputs)]
    for predicate, validity in predicates:
        read = columns_read(predicate)
        fits = [n for n, start in enumerate(starts[:-1]) if all(start <= index < starts[n + 1] for index in read)]
        if not read or not fits or any(map(can_fail, validity.bounds)):
            rest.append((predicate, validity))
        else:
            inputs[fits[0]] = Filter(inputs[fits[0]], shifted(predicate, -starts[fits[0]]))
    return replace(join, inputs=tuple(inputs)), rest


def _filter(filtering: Filter) -> Sequence[Term]:
    if reads_time(filtering.predicate):
        temporal, others = split([filtering.predicate])
        if temporal and others:
            return _filter(
                Filter(Filter(filtering.input, _conjunction([one for one, _ in temporal])), _conjunction(others))
            )
        if temporal:
            return _temporal(filtering.input, temporal)
    terms = _terms(filtering.input)
    # Predicates that cannot fail and have no subquery come first, so that fewer rows are looked up in subqueries.
    for predicate in sorted(
        conjuncts(filtering.predicate), key=lambda predicate: has_subquery(predicate) or can_fail(predicate)
    ):
        terms = _small(_few(terms), [predicate])
        restricted_terms = _restricted(terms, predicate)
        if restricted_terms is None:
            keyed = keyed_by_subquery(leaf_of(terms), predicate, plan_of)
            if keyed is None:
                return _recomputed(filtering, filtering.input, "a subquery is asked for each row")
            restricted_terms = [all_of(keyed)]
        terms = restricted_terms
    return terms


def _restricted(terms: Sequence[Term], predicate: Expression) -> Sequence[Term] | None:
    """Return terms of the rows for which a predicate is true; None if its subqueries are not joins."""
    made: list[Term] = []
    for term in terms:
        kept = restricted_by_subquery(term, predicate, plan_of)
        if kept is None:
            joined = with_scalars_joined(term, [predicate], plan_of)
            if joined is None:
                return None
            narrowed = restricted(*joined)
            kept = [replace(narrowed, outputs=narrowed.outputs[: len(term.outputs)])]
        made += kept
    return made


def _conjunction(predicates: Sequence[Expression]) -> Expression:
    return predicates[0] if len(predicates) == 1 else Call("and", tuple(predicates), Type.BOOLEAN)


def _join(join: Join) -> Sequence[Term]:
    temporal, others = split(join.predicates) if reads_time(join.predicates) else ([], [])
    if temporal:
        return _temporal(Join(join.inputs, tuple(others)), temporal)
    if any(has_subquery(predicate) for predicate in join.predicates):
        relation: Relation = Join(join.inputs)
        for predicate in join.predicates:
            relation = Filter(relation, predicate)
        return _terms(relation)
    parts = [_few(_terms(part)) for part in join.inputs]
    predicates = [part for predicate in join.predicates for part in conjuncts(predicate)]
    return _joined(*_bundled(parts, predicates))


def _joined(
    parts: Sequence[Sequence[Term]], predicates: Sequence[Expression], columns: Sequence[int]
) -> Sequence[Term]:
    """Return terms of the join of parts.

    Args:
        parts: terms of each part.
        predicates: predicates over the columns of all parts, side by side.
        columns: for each column of the result, its index in the columns of all parts.
    """
    joined: Sequence[Term] = [Term((), (), ())]
    for terms in parts:
        is_many = len(joined) * len(terms) > MOST_TERMS
        lefts, rights = (_few(joined, 1), _few(terms, 1)) if is_many else (joined, terms)
        joined = [product(left, right) for left in lefts for right in rights]
    joined = _small(joined, predicates)
    restricted_terms = [restricted(term, predicates) for term in joined]
    return [replace(term, outputs=tuple(term.outputs[index] for index in columns)) for term in restricted_terms]


def _bundled(
    parts: Sequence[Sequence[Term]], predicates: Sequence[Expression]
) -> tuple[Sequence[Sequence[Term]], Sequence[Expression], Sequence[int]]:
    """Join some parts of a large join to single leaves, so that the rest has few leaves.

    The parts of a leaf are connected by equations, if possible.

    Returns:
        The arguments of `_joined`.
    """
    kept, rest = list(parts), list(predicates)
    columns = list(range(sum(len(terms[0].outputs) for terms in parts)))
    while len(kept) > 1 and sum(map(_leaves, kept)) > MOST_LEAVES:
        starts = [0, *accumulate(len(terms[0].outputs) for terms in kept)]
        owner = [number for number, terms in enumerate(kept) for _ in terms[0].outputs]
        chosen = _bundle([_leaves(terms) for terms in kept], _neighbours(rest, owner))
        order = [*chosen, *(number for number in range(len(kept)) if number not in chosen)]
        places = [column for number in order for column in range(starts[number], starts[number + 1])]
        moved = {column: place for place, column in enumerate(places)}
        rest = [_moved(part, moved) for part in rest]
        width = sum(len(kept[number][0].outputs) for number in chosen)
        inside = [part for part in rest if not can_fail(part) and not sides(part, width)[1]]
        bundle = _joined([kept[number] for number in chosen], inside, range(width))
        kept = [[all_of(leaf_of(bundle))], *(kept[number] for number in order[len(chosen) :])]
        rest = [part for part in rest if part not in inside]
        columns = [moved[column] for column in columns]
    return kept, rest, columns


def _moved(expression: Expression, places: Mapping[int, int]) -> Expression:
    """Return an expression over the same columns at other places."""
    return replaced(expression, lambda column: Column(places[column.index], column.type))


def _leaves(terms: Sequence[Term]) -> int:
    """Return the maximum number of leaves of terms."""
    return max(len(term.leaves) for term in terms)


def _neighbours(predicates: Sequence[Expression], owner: Sequence[int]) -> dict[int, set[int]]:
    """Return, for each part of a join, the parts that equations connect with it.

    Args:
        predicates: predicates of the join.
        owner: the part of each column.
    """
    near: dict[int, set[int]] = {number: set() for number in owner}
    for predicate in predicates:
        pair = None if can_fail(predicate) else equated(predicate)
        if pair is not None:
            read = {owner[index] for side in pair for index in columns_read(side)}
            for number in read:
                near[number] |= read - {number}
    return near


def _bundle(leaves: Sequence[int], near: Mapping[int, set[int]]) -> list[int]:
    """Return the parts of a large join that become one leaf: connected parts at the edge, which are often small.

    Args:
        leaves: number of leaves of each part.
        near: connected parts of each part.
    """
    enough = min(sum(leaves) - MOST_LEAVES + 1, MOST_LEAVES)
    chosen = [min(range(len(leaves)), key=lambda number: (len(near.get(number, ())) or len(leaves), number))]
    while (size := sum(leaves[number] for number in chosen)) < enough or len(chosen) == 1:
        fits = [
            number for number in range(len(leaves)) if number not in chosen and size + leaves[number] <= MOST_LEAVES
        ]
        if not fits:
            return chosen if len(chosen) > 1 else [max(range(len(leaves)), key=lambda number: leaves[number])]
        connected = [number for number in fits if near.get(number, set()) & set(chosen)]
        chosen.append(min(connected or fits, key=lambda number: (len(near.get(number, set()) - set(chosen)), number)))
    return chosen


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
        for aggregate in map(_with_guards, reduction.aggregates)
    )
    source = plan_of(Project(reduction.input, tuple(read)))
    return Grouped(source, len(reduction.keys), aggregates)


def _with_guards(aggregate: Aggregate) -> Aggregate:
    """Return an aggregate that evaluates what can fail only for the rows that fulfil its condition."""
    condition = aggregate.condition
    if condition is None:
        return aggregate

    def guarded(expression: Expression) -> Expression:
        missing = Literal(None, expression.type)
        return Case(((condition, expression),), missing, expression.type) if can_fail(expression) else expression

    order = tuple(replace(part, expression=guarded(part.expression)) for part in aggregate.order)
    return replace(aggregate, arguments=tuple(map(guarded, aggregate.arguments)), order=order)


def _window(window: Window) -> Plan:
    partitions = [list(function.partition) for function in window.functions]
    shared = reduce(lambda keys, others: [key for key in keys if key in others], partitions)
    return _by_keys(window, window.input, shared, "a window function reads all rows")


def _top(top: TopK) -> Sequence[Term]:
    if top.limit is None and not top.offset:
        return _terms(top.input)
    return [all_of(_by_keys(top, top.input, top.keys, "the first rows are selected from all rows"))]


def _by_keys(relation: Window | TopK | Unnest, source: Relation, keys: Sequence[Expression], reason: str) -> Plan:
    """Return a plan that recomputes a relation for changed keys; as a whole, if there are no keys."""
    is_apart = isinstance(relation, Unnest) and has_subquery(relation.array)
    if not keys or is_apart or any(has_subquery(key) or can_fail(key) for key in keys):
        return _recomputed(relation, source, reason)[0].leaves[0]
    return Keyed((plan_of(source),), (tuple(keys),), replace(relation, input=Get(-1, source.types)))


def _recomputed(relation: Project | Filter | Window | TopK | Unnest, source: Relation, reason: str) -> Sequence[Term]:
    """Return a plan that recomputes a relation as a whole, from its input and its subqueries' sources."""
    around = replace(relation, input=Get(-1, source.types))
    sources = [Source(get.id, get.types) for get in gets_of(around) if get.id >= 0]
    return [all_of(Recomputed((plan_of(source), *sources), around, reason))]
