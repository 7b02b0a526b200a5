"""Plans of views that are maintained: operators that make changes of their output from changes of their inputs.

There are four tiers.

1. `Linear`: filters, projections, unions and inner joins. Changes of one input are joined with the other inputs;
   nothing in between is stored.
2. `Grouped`: groups have a state that rows are added to and taken from.
3. `Keyed`: what belongs to the keys that changed is worked out anew.
4. `Recomputed`: everything is worked out anew, and compared with what was there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Aggregate, GlobalId, Relation, SetOperator
from derive.algebra.types import Row, Type


@dataclass(frozen=True, slots=True)
class Source:
    """What comes from outside of the plan.

    Attributes:
        id: under which it is known.
        types: of the columns that are read.
        columns: which those are; None for all.
    """

    id: GlobalId
    types: tuple[Type, ...]
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Rows that never change.

    Attributes:
        rows: those.
        types: of their columns.
    """

    rows: tuple[Row, ...]
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """An inner join, filtered and projected.

    Attributes:
        leaves: what is joined.
        predicates: about the columns of all leaves, side by side; none is a conjunction.
        outputs: about the same; one for each column of the result.
        is_negative: whether rows are taken away from those of other terms.
    """

    leaves: tuple[Plan, ...]
    predicates: tuple[Expression, ...]
    outputs: tuple[Expression, ...]
    is_negative: bool = False


@dataclass(frozen=True, slots=True)
class Linear:
    """The rows of all terms together.

    Attributes:
        terms: at least one, of equal types.
    """

    terms: tuple[Term, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return tuple(output.type for output in self.terms[0].outputs)


@dataclass(frozen=True, slots=True)
class Grouped:
    """A row for each group: its keys and aggregates.

    Attributes:
        input: its first columns are the keys.
        keys: how many.
        aggregates: whose arguments, conditions and orders are columns of the input.
    """

    input: Plan
    keys: int
    aggregates: tuple[Aggregate, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.input.types[: self.keys] + tuple(aggregate.type for aggregate in self.aggregates)


@dataclass(frozen=True, slots=True)
class Counted:
    """`EXCEPT` or `INTERSECT`: how often a row is there follows from how often it is on either side.

    Attributes:
        input: rows of both sides, with a last column that is 0 for the left, and 1 for the right.
        operator: which of them.
        is_all: whether rows are there more than once.
    """

    input: Plan
    operator: SetOperator
    is_all: bool

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.input.types[:-1]


@dataclass(frozen=True, slots=True)
class Keyed:
    """A relation whose rows of a key follow from the rows of this key of its inputs.

    Attributes:
        inputs: what it is about.
        keys: for each input, expressions about its columns that are the key; as many in all, of equal types.
        relation: `Get`s of negative identifiers stand for the inputs: -1 for the first, and so on; other ones stand for
            `Source`s among them.
    """

    inputs: tuple[Plan, ...]
    keys: tuple[tuple[Expression, ...], ...]
    relation: Relation

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.relation.types


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A relation of which nothing can be told but all of it.

    Attributes:
        inputs: what it is about.
        relation: as for `Keyed`.
        reason: why, for people.
    """

    inputs: tuple[Plan, ...]
    relation: Relation
    reason: str

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.relation.types


Plan: TypeAlias = Source | Fixed | Linear | Grouped | Counted | Keyed | Recomputed
"""How a relation is kept up to date. Every one has the `types` of its columns."""


def leaf_of(terms: Sequence[Term]) -> Plan:
    """One plan with the rows of all terms."""
    first = terms[0]
    if len(terms) == 1 and len(first.leaves) == 1 and first == all_of(first.leaves[0]):
        return first.leaves[0]
    return Linear(tuple(terms))


def all_of(plan: Plan) -> Term:
    """All rows of a plan."""
    return Term((plan,), (), tuple(Column(index, kind) for index, kind in enumerate(plan.types)))


def inputs_of(plan: Plan) -> tuple[Plan, ...]:
    """The plans that a plan reads, each once."""
    match plan:
        case Linear(terms=terms):
            return tuple(dict.fromkeys(leaf for term in terms for leaf in term.leaves))
        case Grouped(input=source) | Counted(input=source):
            return (source,)
        case Keyed(inputs=inputs) | Recomputed(inputs=inputs):
            return tuple(dict.fromkeys(inputs))
        case _:
            return ()
