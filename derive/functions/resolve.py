"""Resolve overloads by PostgreSQL's rules: the function of a name, or the common type of several expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from derive.algebra.types import Type
from derive.errors import SqlError, suggest_misspelt
from derive.functions.function import Function, word_of
from derive.functions.scalar.array import SIGNATURES, ArraySignature, actual
from derive.functions.scalar.casts import resolve_cast
from derive.functions.types.type_info import INFO_OF

CATEGORIES = {kind: info.category for kind, info in INFO_OF.items()}
"""Category of each type that overload resolution distinguishes."""
PREFERRED = {kind for kind, info in INFO_OF.items() if info.is_preferred}
"""The preferred type of a category, chosen if no other rule decides."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolved function.

    Attributes:
        function: name of the function in a `Call`.
        argument_types: types to which the builder of the `Call` casts the arguments implicitly.
        result_type: type of the result.
    """

    function: str
    argument_types: tuple[Type, ...]
    result_type: Type


_Candidate: TypeAlias = tuple[Function, tuple[Type | None, ...]]


def _coerces(source: Type, target: Type | None) -> bool:
    return target is None or source is Type.UNKNOWN or resolve_cast(source, target, "implicit") is not None


def _fits(source: Type, expected: Type | None) -> bool:
    """Return whether an argument fits a parameter's type; a parameter of an array type takes only that type."""
    return _coerces(source, expected) and not (source.element and expected and source is not expected)


def choose(functions: Sequence[Function], types: Sequence[Type], *, is_operator: bool = False) -> list[Resolution]:
    """Return the functions that fit arguments of these types: none, one, or several."""
    candidates = [
        (function, signature)
        for function in functions
        if (signature := function.takes(len(types))) is not None and all(map(_fits, types, signature))
    ]
    given = tuple(types)
    exact = _exact(candidates, given)
    if not exact and is_operator and len(given) == 2 and Type.UNKNOWN in given:
        known = given[1] if given[0] is Type.UNKNOWN else given[0]
        exact = _exact(candidates, (known, known)) if known is not Type.UNKNOWN else []
    if exact:
        candidates = exact
    for narrow in (_most_exact, _most_preferred, _by_category, _by_known_type):
        if len(candidates) > 1:
            candidates = narrow(candidates, given)
    return [_resolution(function, signature, given) for function, signature in candidates]


def _resolution(function: Function, signature: tuple[Type | None, ...], given: tuple[Type, ...]) -> Resolution:
    arguments = tuple(
        expected or (Type.TEXT if kind is Type.UNKNOWN else kind)
        for expected, kind in zip(signature, given, strict=True)
    )
    return Resolution(function.name, arguments, function.result)


def _exact(candidates: list[_Candidate], types: tuple[Type, ...]) -> list[_Candidate]:
    return [candidate for candidate in candidates if candidate[1] == types][:1]


def _best(candidates: list[_Candidate], scores: list[int]) -> list[_Candidate]:
    return [candidate for candidate, score in zip(candidates, scores, strict=True) if score == max(scores)]


def _most_exact(candidates: list[_Candidate], types: tuple[Type, ...]) -> list[_Candidate]:
    """Return the candidates that take most arguments without a cast."""
    scores = [
        sum(kind is expected for kind, expected in zip(types, signature, strict=True)) for _, signature in candidates
    ]
    return _best(candidates, scores)


def _most_preferred(candidates: list[_Candidate], types: tuple[Type, ...]) -> list[_Candidate]:
    """Return the candidates that take most arguments without a cast or as the preferred type of their category."""

    def score(signature: tuple[Type | None, ...]) -> int:
        return sum(
            kind is expected
            or (expected in PREFERRED and expected is not None and CATEGORIES[expected] == CATEGORIES[kind])
            for kind, expected in zip(types, signature, strict=True)
            if kind is not Type.UNKNOWN
        )

    return _best(candidates, [score(signature) for _, signature in candidates])


def _by_category(candidates: list[_Candidate], types: tuple[Type, ...]) -> list[_Candidate]:
    """Return the candidates for untyped literals: candidates that take text, else candidates of the common category."""
    for index, kind in enumerate(types):
        if kind is not Type.UNKNOWN:
            continue
        expected = [signature[index] for _, signature in candidates]
        categories = {CATEGORIES[kind] for kind in expected if kind}
        if "S" not in categories and len(categories) != 1:
            return candidates
        category = "S" if "S" in categories else categories.pop()
        has_preferred = any(kind in PREFERRED and CATEGORIES[kind] == category for kind in expected if kind)
        candidates = [
            candidate
            for candidate, taken in zip(candidates, expected, strict=True)
            if taken and CATEGORIES[taken] == category and (taken in PREFERRED or not has_preferred)
        ]
    return candidates


def _by_known_type(candidates: list[_Candidate], types: tuple[Type, ...]) -> list[_Candidate]:
    """Return the candidates that take untyped literals as the one type of all other arguments."""
    known = {kind for kind in types if kind is not Type.UNKNOWN}
    if len(known) != 1 or Type.UNKNOWN not in types:
        return candidates
    kind = known.pop()
    fitting = [candidate for candidate in candidates if all(_coerces(kind, expected) for expected in candidate[1])]
    return fitting if len(fitting) == 1 else candidates


def common_type(types: Sequence[Type], construct: str = "CASE") -> Type:
    """Return the type to which the expressions of a CASE, UNION, COALESCE, IN, VALUES, … are cast.

    Args:
        types: types of the expressions, at least one.
        construct: name of the enclosing construct, for errors.

    Raises:
        SqlError: the expressions have no common type (42804 or 42846).
    """
    known = [kind for kind in types if kind is not Type.UNKNOWN]
    if not known:
        return Type.TEXT
    chosen = known[0]
    for kind in known[1:]:
        if CATEGORIES[kind] != CATEGORIES[chosen]:
            raise SqlError("42804", f"{construct} types {chosen.value} and {kind.value} cannot be matched")
        if chosen not in PREFERRED and _coerces(chosen, kind) and not _coerces(kind, chosen):
            chosen = kind
    for kind in known:
        if not _coerces(kind, chosen):
            raise SqlError("42846", f"{construct} could not convert type {kind.value} to {chosen.value}")
    return chosen


_INSTEAD = {
    "strftime": "to_char(now(), 'YYYY-MM-DD') returns a time as text.",
    "datetime": "now() returns the present time, and '2024-05-01 09:00'::timestamp a written time.",
    **dict.fromkeys(
        ("jsonb_each", "jsonb_each_text", "json_each", "json_each_text"),
        "jsonb_object_keys returns the keys, and j -> key returns the value of a key.",
    ),
}
"""Hints for unsupported functions: alternatives."""


def unknown_function(name: str, types: Sequence[Type], known: Mapping[str, object], offset: int | None) -> SqlError:
    """Return the error for a function that does not exist, or does not take such arguments."""
    hint = "No function matches the given name and argument types. You might need to add explicit type casts."
    if name in _INSTEAD:
        hint = _INSTEAD[name]
    elif name not in known and (nearest := suggest_misspelt(name, {word.removesuffix("[]") for word in known})):
        hint = f"Did you mean {nearest}? {hint}"
    listed = ", ".join(kind.value for kind in types)
    return SqlError("42883", f"function {name}({listed}) does not exist", hint=hint, offset=offset)


def ambiguous_function(name: str, types: Sequence[Type], offset: int | None) -> SqlError:
    """Return the error for an ambiguous call."""
    listed = ", ".join(kind.value for kind in types)
    hint = "Could not choose a best candidate function. You might need to add explicit type casts."
    return SqlError("42725", f"function {name}({listed}) is not unique", hint=hint, offset=offset)


def operation(symbol: str, types: Sequence[Type]) -> str:
    """Return an operator and the types of its operands, as errors show them."""
    names = [kind.value for kind in types]
    return " ".join((*names[:-1], symbol, names[-1]))


def unknown_operator(symbol: str, types: Sequence[Type], offset: int | None) -> SqlError:
    """Return the error for an operator that does not exist, or does not take such operands."""
    hint = "No operator matches the given name and argument types. You might need to add explicit type casts."
    return SqlError("42883", f"operator does not exist: {operation(symbol, types)}", hint=hint, offset=offset)


def ambiguous_operator(symbol: str, types: Sequence[Type], offset: int | None) -> SqlError:
    """Return the error for an ambiguous operation."""
    hint = "Could not choose a best candidate operator. You might need to add explicit type casts."
    return SqlError("42725", f"operator is not unique: {operation(symbol, types)}", hint=hint, offset=offset)


def resolve_array(symbol: str, types: Sequence[Type]) -> Resolution | None:
    """Return the array function of a call or an operation; None if there is none.

    Args:
        symbol: name in SQL.
        types: types of the arguments.
    """
    for signature in SIGNATURES.get(symbol, ()):
        element = _element_of(signature, types)
        if element is not None:
            return _array_resolution(signature, element)
    return None


def resolve_quantified(symbol: str, kind: Type, *, is_all: bool) -> Resolution | None:
    """Return the function that compares a value with all elements of an array of the same type; None if missing.

    Args:
        symbol: comparison operator.
        kind: the type.
        is_all: whether all elements must fulfil the comparison, instead of at least one.
    """
    signatures = SIGNATURES.get(f"{symbol} {'all' if is_all else 'any'}")
    return _array_resolution(signatures[0], kind) if signatures and kind.array else None


def _array_resolution(signature: ArraySignature, element: Type) -> Resolution:
    types = tuple(actual(part, element) for part in signature.arguments)
    return Resolution(f"{signature.word}_{word_of(element)}", types, actual(signature.result, element))


def _element_of(signature: ArraySignature, types: Sequence[Type]) -> Type | None:
    """Return the element type for which a signature accepts arguments; None if missing."""
    if len(types) != len(signature.arguments):
        return None
    elements: list[Type] = []
    for part, kind in zip(signature.arguments, types, strict=True):
        if kind is Type.UNKNOWN:
            continue
        if isinstance(part, Type):
            if resolve_cast(kind, part, "implicit") is None:
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
