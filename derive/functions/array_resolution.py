"""Resolution of array functions: the element type follows from the arguments."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import word_of
from derive.functions.resolve import Resolution, common_type
from derive.functions.scalar.array import SIGNATURES, ArraySignature, actual
from derive.functions.scalar.casts import cast_between


def resolve_array(symbol: str, types: Sequence[Type]) -> Resolution | None:
    """Return the array function of a call or an operation; None if there is none.

    Args:
        symbol: name in SQL.
        types: types of the arguments.
    """
    for signature in SIGNATURES.get(symbol, ()):
        element = _element_of(signature, types)
        if element is not None:
            return _resolution(signature, element)
    return None


def resolve_quantified(symbol: str, kind: Type, *, is_all: bool) -> Resolution | None:
    """Return the function that compares a value with all elements of an array, both of one type; None without one.

    Args:
        symbol: comparison operator.
        kind: the type.
        is_all: whether all elements must fulfil it, instead of one.
    """
    signatures = SIGNATURES.get(f"{symbol} {'all' if is_all else 'any'}")
    return _resolution(signatures[0], kind) if signatures and kind.array else None


def _resolution(signature: ArraySignature, element: Type) -> Resolution:
    types = tuple(actual(part, element) for part in signature.arguments)
    return Resolution(f"{signature.word}_{word_of(element)}", types, actual(signature.result, element))


def _element_of(signature: ArraySignature, types: Sequence[Type]) -> Type | None:
    """Return the element type for which a signature accepts arguments; None without one."""
    if len(types) != len(signature.arguments):
        return None
    elements: list[Type] = []
    for part, kind in zip(signature.arguments, types, strict=True):
        if kind is Type.UNKNOWN:
            continue
        if isinstance(part, Type):
            if cast_between(kind, part, "implicit") is None:
                return None
        elif (part == "array") is not (kind.element is not None):
            return None
        else:
            elements.append(kind.element or kind)
    if not elements or (signature.is_strict and len(set(elements)) > 1):
        return None
    try:
        element = common_type(elements)
    except SqlError:
        return None
    return element if element.array else None
