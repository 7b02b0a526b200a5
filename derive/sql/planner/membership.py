"""`x = ANY (array)` of an array that is known, as `x IN (…)`, which is looked up."""

from __future__ import annotations

from derive.algebra.expression import Call, Literal
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
