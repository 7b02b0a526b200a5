"""Plans of maintained views: operators that compute changes of their output from changes of their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Aggregate, GlobalId, Relation, SetOperator
from derive.algebra.rewrite import columns_read, conjuncts, is_atomic, is_unnest, replaced, walk
from derive.algebra.types import Row, Type
from derive.functions.scalar.logic import equality, has_equal_data


@dataclass(frozen=True, slots=True)
class Source:
    """An input of the plan.

    Attributes:
        id: its identifier.
        types: types of the columns read.
        columns: indexes of the columns read; None for all.
    """

    id: GlobalId
    types: tuple[Type, ...]
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Constant rows.

    Attributes:
        rows: the rows.
        types: types of their columns.
    """

    rows: tuple[Row, ...]
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """An inner join, filtered and projected.

    Attributes:
        leaves: joined plans.
        predicates: expressions over the columns of all leaves, side by side; none is a conjunction.
        outputs: expressions over the same columns, one for each column of the result.
        is_negative: whether the rows are subtracted from the rows of other terms.
    """

    leaves: tuple[Plan, ...]
    predicates: tuple[Expression, ...]
    outputs: tuple[Expression, ...]
    is_negative: bool = False


@dataclass(frozen=True, slots=True)
class Linear:
    """The sum of all terms.

    Attributes:
        terms: one or more terms of equal types.
    """

    terms: tuple[Term, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return tuple(output.type for output in self.terms[0].outputs)


@dataclass(frozen=True, slots=True)
class Grouped:
    """A row for each group: its keys and aggregates.

    Attributes:
        input: a plan whose first columns are the keys.
        keys: number of keys.
        aggregates: aggregates whose arguments, conditions and orders are columns of the input.
    """

    input: Plan
    keys: int
    aggregates: tuple[Aggregate, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.input.types[: self.keys] + tuple(aggregate.type for aggregate in self.aggregates)


@dataclass(frozen=True, slots=True)
class Counted:
    """`EXCEPT` or `INTERSECT`: the count of a row follows from its counts on both sides.

    Attributes:
        input: rows of both sides, with a last column that is 0 for the left, and 1 for the right.
        operator: the operator.
        is_all: whether rows have counts above one.
    """

    input: Plan
    operator: SetOperator
    is_all: bool

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.input.types[:-1]


@dataclass(frozen=True, slots=True)
class Keyed:
    """A relation whose rows of a key depend only on the inputs' rows with this key.

    Attributes:
        inputs: input plans.
        keys: for each input, key expressions over its columns; equal in number and types.
        relation: the relation; `Get`s with negative identifiers stand for the inputs (-1 for the first input), and
            other `Get`s stand for the sources among the inputs.
    """

    inputs: tuple[Plan, ...]
    keys: tuple[tuple[Expression, ...], ...]
    relation: Relation

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.relation.types


@dataclass(frozen=True, slots=True)
class Temporal:
    """The rows of the input within their times; rows come and go when the time increases.

    Attributes:
        input: a plan whose last columns are the times of a row: first its begins, then its ends. A row with a NULL
            among them has no times.
        begins: number of begins: from all of them on, the row is there.
        ends: number of ends: before all of them, the row is there.
    """

    input: Plan
    begins: int
    ends: int

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.input.types[: -(self.begins + self.ends)]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A relation that can only be computed as a whole.

    Attributes:
        inputs: input plans.
        relation: as for `Keyed`.
        reason: the reason, for people.
    """

    inputs: tuple[Plan, ...]
    relation: Relation
    reason: str

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.relation.types


Plan: TypeAlias = Source | Fixed | Linear | Grouped | Counted | Keyed | Temporal | Recomputed
"""A way to maintain a relation, with the `types` of its columns."""


def leaf_of(terms: Sequence[Term]) -> Plan:
    """Return a single plan with the rows of all terms."""
    first = terms[0]
    if len(terms) == 1 and len(first.leaves) == 1 and first == all_of(first.leaves[0]):
        return first.leaves[0]
    return Linear(tuple(terms))


def all_of(plan: Plan) -> Term:
    """Return a term with all rows of a plan."""
    return Term((plan,), (), tuple(Column(index, kind) for index, kind in enumerate(plan.types)))


def inputs_of(plan: Plan) -> tuple[Plan, ...]:
    """Return the plans that a plan reads, each once."""
    match plan:
        case Linear(terms=terms):
            return tuple(dict.fromkeys(leaf for term in terms for leaf in term.leaves))
        case Grouped(input=source) | Counted(input=source) | Temporal(input=source):
            return (source,)
        case Keyed(inputs=inputs) | Recomputed(inputs=inputs):
            return tuple(dict.fromkeys(inputs))
        case _:
            return ()


def explained(plan: Plan, names: Mapping[GlobalId, str]) -> str:
    """Return a plan as lines, each operator before its inputs, which are indented.

    Args:
        plan: the plan.
        names: names of sources.
    """
    return "\n".join(_lines(plan, names, 0))


def _lines(plan: Plan, names: Mapping[GlobalId, str], depth: int) -> Iterator[str]:
    yield "  " * depth + _line(plan, names)
    for source in inputs_of(plan):
        yield from _lines(source, names, depth + 1)


def _line(plan: Plan, names: Mapping[GlobalId, str]) -> str:  # noqa: PLR0911 - one for each kind
    match plan:
        case Source(id=identifier):
            return f"read {names.get(identifier, f'u{identifier}')}"
        case Fixed(rows=rows):
            return f"constant of {len(rows)} {'row' if len(rows) == 1 else 'rows'}"
        case Linear(terms=terms):
            joined = max(len(term.leaves) for term in terms)
            kinds = ["join" if joined > 1 else "map and filter", f"{len(terms)} added up" if len(terms) > 1 else ""]
            return f"tier 1: {', '.join(filter(None, kinds))}"
        case Grouped(aggregates=()):
            return "tier 2: distinct rows"
        case Grouped(aggregates=aggregates):
            return f"tier 2: groups with {', '.join(aggregate.function for aggregate in aggregates)}"
        case Counted(operator=operator):
            return f"tier 2: {operator.value}"
        case Temporal(begins=begins, ends=ends):
            kinds = ["appear" if begins else "", "disappear" if ends else ""]
            return f"tier 1: temporal filter: rows {' and '.join(filter(None, kinds))} on time"
        case Keyed():
            return f"tier 3: recomputed for changed keys: {_kind(plan)}"
        case Recomputed(reason=reason):
            return f"tier 4: recomputed as a whole ({reason}): {_kind(plan)}"


def _kind(plan: Keyed | Recomputed) -> str:
    words = {"OuterJoin": "outer join", "TopK": "first rows", "Window": "window", "Filter": "filter"}
    name = "Unnest" if is_unnest(plan.relation) else type(plan.relation).__name__
    return words.get(name, name.lower())


MOST_PARTS = 200
"""Maximum number of parts of an expression that is substituted for a column; a larger expression stays a column."""


def shifted(expression: Expression, by: int) -> Expression:
    """Return an expression whose columns are shifted to the right."""
    return replaced(expression, lambda column: Column(column.index + by, column.type))


def about_leaves(expression: Expression, term: Term) -> Expression:
    """Translate an expression over the columns of a term to an expression over the columns of the term's leaves."""
    return replaced(expression, lambda column: term.outputs[column.index])


def grows_too_much(expressions: Sequence[Expression], term: Term) -> bool:
    """Return whether translating expressions to a term's leaves would repeat too many computations."""
    sizes = [0 if is_atomic(output) else sum(1 for _ in walk(output)) for output in term.outputs]
    grown = sum(
        sizes[part.index] for expression in expressions for part in walk(expression) if isinstance(part, Column)
    )
    return grown > MOST_PARTS


def projected(term: Term, expressions: Sequence[Expression]) -> Term:
    """Return a term whose rows are the values of expressions over its columns."""
    return replace(term, outputs=tuple(about_leaves(expression, term) for expression in expressions))


def restricted(term: Term, predicates: Sequence[Expression]) -> Term:
    """Return a term with the rows for which predicates over its columns are true."""
    single = [part for predicate in predicates for part in conjuncts(about_leaves(predicate, term))]
    return replace(term, predicates=(*term.predicates, *single))


def product(left: Term, right: Term) -> Term:
    """Return all combinations of rows of two terms."""
    by = sum(len(leaf.types) for leaf in left.leaves)
    return Term(
        left.leaves + right.leaves,
        left.predicates + tuple(shifted(predicate, by) for predicate in right.predicates),
        left.outputs + tuple(shifted(output, by) for output in right.outputs),
        left.is_negative != right.is_negative,
    )


def equal(left: Expression, right: Expression) -> Call:
    """Return the equation of two expressions of one type."""
    return Call(equality(left.type), (left, right), Type.BOOLEAN)


def equated(predicate: Expression) -> tuple[Expression, Expression] | None:
    """Return the two sides of an equation that implies equal data; None for anything else."""
    if isinstance(predicate, Call) and len(predicate.arguments) == 2:
        left, right = predicate.arguments
        if left.type is right.type and has_equal_data(left.type) and predicate.function == equality(left.type):
            return left, right
    return None


def sides(predicate: Expression, width: int) -> tuple[bool, bool]:
    """Return two booleans: whether an expression reads columns before `width`, and whether it reads other columns."""
    read = columns_read(predicate)
    return any(index < width for index in read), any(index >= width for index in read)


def nulls(types: Sequence[Type]) -> tuple[Expression, ...]:
    """Return a NULL of each type."""
    return tuple(Literal(None, kind) for kind in types)
