"""Relations and predicates in one normal form, so that equal ones compare equal."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Call, Column, Expression, Literal, Subquery
from derive.algebra.relation import Constant, Filter, Join, Project, Relation
from derive.algebra.rewrite import rewritten, shifted
from derive.algebra.types import Type
from derive.functions.types.array import elements_of

_ANY, _NONE = "equals_any_", "differs_from_all_"


def is_membership(call: Call) -> bool:
    """Whether it tells whether a value is one of an array."""
    return call.function.startswith((_ANY, _NONE))


def among(call: Call) -> Call:
    """The same, of an array that is a literal as a list of its elements."""
    if not is_membership(call):
        return call
    operand, array = call.arguments
    kind = array.type.element
    if not isinstance(array, Literal) or not isinstance(array.value, bytes) or kind is None:
        return call
    elements = (Literal(datum, kind) for datum in elements_of(kind, array.value))
    inside = Call("in", (operand, *elements), Type.BOOLEAN)
    return inside if call.function.startswith(_ANY) else Call("not", (inside,), Type.BOOLEAN)


_ONE_ROW = Constant(((),), ())


def joined(left: Relation, right: Relation, predicates: Sequence[Expression] = ()) -> Relation:
    """An inner join of two relations, as one of all that they join."""
    inputs: list[Relation] = []
    all_predicates: list[Expression] = []
    width = 0
    for relation in (left, right):
        parts = relation.inputs if isinstance(relation, Join) else (relation,)
        inputs += [part for part in parts if part != _ONE_ROW]
        if isinstance(relation, Join):
            all_predicates += [shifted(predicate, width) for predicate in relation.predicates]
        width += len(relation.types)
    all_predicates += predicates
    if not inputs:
        inputs = [_ONE_ROW]
    if len(inputs) == 1 and not all_predicates:
        return inputs[0]
    return Join(tuple(inputs), tuple(all_predicates))


def conjuncts_of(predicate: Expression) -> tuple[Expression, ...]:
    """The predicates that all must be true for one to be."""
    if isinstance(predicate, Call) and predicate.function == "and":
        return tuple(part for argument in predicate.arguments for part in conjuncts_of(argument))
    return (predicate,)


def filtered(relation: Relation, predicate: Expression) -> Relation:
    """The rows of a relation that fulfil a predicate; a join takes as much of it as it can."""
    if not isinstance(relation, Join):
        return Filter(relation, predicate)
    conjuncts = conjuncts_of(predicate)
    plain = [part for part in conjuncts if not has_subquery(part)]
    others = [part for part in conjuncts if has_subquery(part)]
    relation = joined(relation, _ONE_ROW, plain)
    if not others:
        return relation
    return Filter(relation, others[0] if len(others) == 1 else Call("and", tuple(others), others[0].type))


def has_subquery(expression: Expression) -> bool:
    """Whether a subquery is part of an expression."""
    has = False

    def note(part: Expression, _: int) -> Expression | None:
        nonlocal has
        has = has or isinstance(part, Subquery)
        return part if has else None

    rewritten(expression, note)
    return has


def projected(relation: Relation, expressions: Sequence[Expression]) -> Relation:
    """A relation's rows as expressions about them; itself if these are its columns."""
    own = tuple(Column(index, kind) for index, kind in enumerate(relation.types))
    return relation if tuple(expressions) == own else Project(relation, tuple(expressions))


def columns_of(relation: Relation) -> tuple[Column, ...]:
    """A relation's columns as expressions."""
    return tuple(Column(index, kind) for index, kind in enumerate(relation.types))
