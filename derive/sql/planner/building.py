"""Relations and predicates in a normal form, so that equal relations compare equal."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Call, Column, Expression, Literal, Subquery
from derive.algebra.relation import Constant, Filter, Join, Project, Relation
from derive.algebra.rewrite import is_atomic, rewritten, shifted
from derive.algebra.types import Type
from derive.functions.registry import resolve_function
from derive.functions.scalar.logic import has_equal_data
from derive.functions.types.array import elements_of

_ANY, _NONE = "equals_any_", "differs_from_all_"

TRIM = resolve_function("rtrim", (Type.TEXT,)).function
"""Function that removes trailing spaces of a text."""


def is_membership(call: Call) -> bool:
    """Return whether a call tests membership of a value in an array."""
    return call.function.startswith((_ANY, _NONE))


def among(call: Call) -> Call:
    """Return a membership test of a literal array as a test of a list of its elements."""
    if not is_membership(call):
        return call
    operand, array = call.arguments
    kind = array.type.element
    if not isinstance(array, Literal) or not isinstance(array.value, bytes) or kind is None or not has_equal_data(kind):
        return call
    elements = (Literal(datum, kind) for datum in elements_of(kind, array.value))
    inside = Call("in", (operand, *elements), Type.BOOLEAN)
    return inside if call.function.startswith(_ANY) else Call("not", (inside,), Type.BOOLEAN)


_ONE_ROW = Constant(((),), ())


def joined(left: Relation, right: Relation, predicates: Sequence[Expression] = ()) -> Relation:
    """Return the inner join of two relations; inner joins within them are flattened."""
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
    """Return the conjuncts of a predicate, also comparisons that all alternatives of an OR have in common."""
    if isinstance(predicate, Call) and predicate.function == "and":
        return tuple(part for argument in predicate.arguments for part in conjuncts_of(argument))
    if isinstance(predicate, Call) and predicate.function == "or":
        return _factored(predicate)
    return (predicate,)


def _factored(disjunction: Call) -> tuple[Expression, ...]:
    """Return the conjuncts of an OR: `a AND b OR a AND c` is `a AND (b OR c)`, and `a` looks up the rows of a join."""
    alternatives = [conjuncts_of(argument) for argument in disjunction.arguments]
    common = [
        part
        for part in dict.fromkeys(alternatives[0])
        if isinstance(part, Call)
        and all(map(is_atomic, part.arguments))
        and all(part in alternative for alternative in alternatives[1:])
    ]
    if not common:
        return (disjunction,)
    rests = [[part for part in alternative if part not in common] for alternative in alternatives]
    if not all(rests):
        return tuple(common)
    arguments = tuple(rest[0] if len(rest) == 1 else Call("and", tuple(rest), Type.BOOLEAN) for rest in rests)
    return (*common, Call("or", arguments, Type.BOOLEAN))


def filtered(relation: Relation, predicate: Expression) -> Relation:
    """Return a relation filtered by a predicate; a join absorbs the conjuncts without subqueries."""
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
    """Return whether an expression contains a subquery."""
    has = False

    def note(part: Expression, _: int) -> Expression | None:
        nonlocal has
        has = has or isinstance(part, Subquery)
        return part if has else None

    rewritten(expression, note)
    return has


def projected(relation: Relation, expressions: Sequence[Expression]) -> Relation:
    """Return a projection of a relation; the relation itself if the expressions are its columns."""
    own = tuple(Column(index, kind) for index, kind in enumerate(relation.types))
    return relation if tuple(expressions) == own else Project(relation, tuple(expressions))


def columns_of(relation: Relation) -> tuple[Column, ...]:
    """Return a relation's columns as expressions."""
    return tuple(Column(index, kind) for index, kind in enumerate(relation.types))
