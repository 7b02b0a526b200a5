"""Which function of arrays a name or an operator means: the type of its elements follows from the arguments."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import word_of
from derive.functions.resolve import Resolution, common_type
from derive.functions.scalar.array import SIGNATURES, ArraySignature, actual
from derive.functions.scalar.casts import cast_between


def resolve_array(symbol: str, types: Sequence[Type]) -> Resolution | None:
    """The function of arrays that a call or an operation means; None if it means none.

    Args:
        symbol: what SQL calls it.
        types: of the arguments.
    """
    for signature in SIGNATURES.get(symbol, ()):
        element = _element_of(signature, types)
        if element is not None:
            return _resolution(signature, element)
    return None


def resolve_quantified(symbol: str, kind: Type, *, is_all: bool) -> Resolution | None:
    """What compares a value with all elements of an array, both of one type; None if nothing does.

    Args:
        symbol: by which they are compared.
        kind: the type.
        is_all: whether all must fulfil it, rather than one.
    """
    signatures = SIGNATURES.get(f"{symbol} {'all' if is_all else 'any'}")
    return _resolution(signatures[0], kind) if signatures and kind.array else None


def _resolution(signature: ArraySignature, element: Type) -> Resolution:
    types = tuple(actual(part, element) for part in signature.arguments)
    return Resolution(f"{signature.word}_{word_of(element)}", types, actual(signature.result, element))


def _element_of(signature: ArraySignature, types: Sequence[Type]) -> Type | None:
    """The type of elements for which a signature takes arguments; None if it takes them for none."""
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
