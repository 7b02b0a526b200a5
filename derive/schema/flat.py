"""Flat schemas: what a schema says of whole columns of values, without looking at documents one by one.

Most collections are objects whose properties have a type each. That a column holds nothing but strings is known from
the types of its values, many times faster than each document is validated. What is not proven here is not invalid: the
validator decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, TypeAlias

from derive.document.columns import Columns, Kinds, are_finite
from derive.document.pointer import JSON, parse_pointer
from derive.schema.dialect import ANNOTATIONS, subschemas

Column: TypeAlias = Sequence[JSON]
"""Values of one property, one for each document."""

Proof: TypeAlias = Callable[[Kinds, Column], bool]
"""Whether all values of a column certainly are valid."""

_KINDS: Mapping[str, Kinds] = {
    "array": frozenset({list}),
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),  # 1.0 is one as well, which is left to the validator
    "null": frozenset({type(None)}),
    "number": frozenset({int, float}),
    "object": frozenset({dict}),
    "string": frozenset({str}),
}
_NUMBERS = frozenset({int, float})
_NULL = type(None)

_SILENT = ANNOTATIONS | {"$defs", "definitions", "$comment"}
"""Keywords that refuse nothing."""

_OBJECTS = frozenset(
    {
        "additionalProperties", "dependentRequired", "dependentSchemas", "maxProperties", "minProperties",
        "patternProperties", "properties", "propertyNames", "required", "unevaluatedProperties",
    }
)  # fmt: skip
_ARRAYS = frozenset(
    {
        "contains", "items", "maxContains", "maxItems", "minContains", "minItems", "prefixItems", "unevaluatedItems",
        "uniqueItems",
    }
)  # fmt: skip
_TEXTS = frozenset({"format", "maxLength", "minLength", "pattern", "x-str-maximum", "x-str-minimum"})
_BOUNDS: Mapping[str, tuple[Callable[[Column], JSON], Callable[[JSON, JSON], Any]]] = {
    "exclusiveMaximum": (max, lt),
    "exclusiveMinimum": (min, gt),
    "maximum": (max, le),
    "minimum": (min, ge),
}
_OF_KIND: Mapping[str, Kinds] = {
    **dict.fromkeys(_OBJECTS, frozenset({dict})),
    **dict.fromkeys(_ARRAYS, frozenset({list})),
    **dict.fromkeys(_TEXTS, frozenset({str})),
    **dict.fromkeys((*_BOUNDS, "multipleOf"), _NUMBERS),
}
"""Keywords that refuse only values of some types."""

_SHOWN = frozenset({"additionalProperties", "properties", "required", "type"})
"""What columns show of an object."""

_RENAMING = frozenset({"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"})
_EXACT = 1 << 53
"""Integers up to here are the same as floating-point numbers."""

_MOST_REFERENCES = 32


class _Unproven(Exception):
    """A schema says something of an object that columns do not show."""


class FlatSchema:
    """What a schema says of the columns of documents.

    Args:
        schema: self-contained JSON Schema whose `$ref`s resolve inside it.
    """

    def __init__(self, schema: JSON) -> None:
        self._root = schema
        self._objects = _objects(schema)
        self._proofs: dict[tuple[str, ...], tuple[Proof, ...] | None] = {}

    def proves(self, columns: Columns) -> bool:
        """Whether all of these documents certainly are valid; if not, they may be so all the same."""
        proofs = self._proofs_of(columns.names)
        return proofs is not None and all(map(_is_proven, proofs, columns.values, columns.kinds))

    def may_prove(self, names: tuple[str, ...]) -> bool:
        """Whether it may prove documents that have just these properties."""
        return self._proofs_of(names) is not None

    def _proofs_of(self, names: tuple[str, ...]) -> tuple[Proof, ...] | None:
        if names not in self._proofs:
            self._proofs[names] = self._compile(names)
        return self._proofs[names]

    def _compile(self, names: tuple[str, ...]) -> tuple[Proof, ...] | None:
        """What proves each of these columns; None if documents that have just these properties are not proven."""
        if self._objects is None or any(not rule.required <= set(names) for rule in self._objects):
            return None
        proofs = []
        for name in names:
            schemas = [rule.properties.get(name, rule.others) for rule in self._objects]
            try:
                proofs.append(_all_of([_compile_value(schema, self._root) for schema in schemas]))
            except _Unproven:
                return None
        return tuple(proofs)


@dataclass(frozen=True, slots=True)
class _Object:
    """What one of the schemas that apply to a document says of its properties.

    Attributes:
        properties: schemas of those it names.
        required: names of those it demands.
        others: the schema of all others.
    """

    properties: Mapping[str, JSON]
    required: frozenset[str]
    others: JSON


def _objects(schema: JSON) -> list[_Object] | None:
    """What a schema says of a document; None if that is more than columns show."""
    if any(not _RENAMING.isdisjoint(subschema) for _, subschema in subschemas(schema)):
        return None
    try:
        return [_object(part) for part in _parts(schema, schema)]
    except _Unproven:
        return None


def _object(part: Mapping[str, JSON]) -> _Object:
    for keyword, value in part.items():
        is_known = keyword in _SHOWN or (keyword in _OF_KIND and keyword not in _OBJECTS) or _is_silent(keyword)
        if not is_known or (keyword == "type" and "object" not in _listed(value)):
            raise _Unproven
    required = frozenset(part.get("required", ()))
    return _Object(part.get("properties", {}), required, part.get("additionalProperties", True))


def _parts(schema: JSON, root: JSON, references: int = 0) -> Iterator[Mapping[str, JSON]]:
    """The schemas that all apply to a value where one does, without `$ref` and `allOf`."""
    if schema is True:
        return
    if not isinstance(schema, dict) or references > _MOST_REFERENCES:
        raise _Unproven
    yield {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "allOf")}
    for inner in schema.get("allOf", ()):
        yield from _parts(inner, root, references + 1)
    if "$ref" in schema:
        yield from _parts(_resolve(schema["$ref"], root), root, references + 1)


def _resolve(reference: JSON, root: JSON) -> JSON:
    """What a reference to a location of the root refers to."""
    if not isinstance(reference, str) or not reference.startswith("#") or "%" in reference:
        raise _Unproven
    target = root
    try:
        for token in parse_pointer(reference[1:]):
            target = target[token]
    except (KeyError, TypeError, ValueError):
        raise _Unproven from None
    return target


def _is_silent(keyword: str) -> bool:
    return keyword in _SILENT or (keyword.startswith("x-") and keyword not in _OF_KIND)


def _listed(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else [value]


def _is_proven(proof: Proof, column: Column, kinds: Kinds) -> bool:
    return proof(kinds, column) and (float not in kinds or are_finite(column, kinds))


def _compile_value(schema: JSON, root: JSON) -> Proof:
    """What proves the values of a property."""
    proofs = []
    for part in _parts(schema, root):
        for keyword, value in part.items():
            if keyword == "type":
                proofs.append(_of_kinds(frozenset().union(*(_KINDS.get(name, frozenset()) for name in _listed(value)))))
            elif keyword in _BOUNDS:
                proofs.append(_within(keyword, value))
            elif keyword in ("maxLength", "minLength"):
                proofs.append(_of_length(keyword, value))
            elif keyword in ("const", "enum"):
                proofs.append(_among([value] if keyword == "const" else value))
            elif keyword in _OF_KIND:
                proofs.append(_free_of(_OF_KIND[keyword]))
            elif not _is_silent(keyword):
                raise _Unproven
    return _all_of(proofs)


def _all_of(proofs: Iterable[Proof]) -> Proof:
    several = tuple(proofs)
    if len(several) == 1:
        return several[0]
    return lambda kinds, column: all(proof(kinds, column) for proof in several)


def _of_kinds(allowed: Kinds) -> Proof:
    return lambda kinds, _: kinds <= allowed


def _free_of(refused: Kinds) -> Proof:
    return lambda kinds, _: kinds.isdisjoint(refused)


def _within(keyword: str, bound: JSON) -> Proof:
    """A bound of numbers: what is least or greatest of them decides."""
    if type(bound) not in _NUMBERS or abs(bound) >= _EXACT:
        return _free_of(_NUMBERS)
    furthest, is_within = _BOUNDS[keyword]

    def proof(kinds: Kinds, column: Column) -> bool:
        return kinds.isdisjoint(_NUMBERS) or (kinds <= _NUMBERS and bool(is_within(furthest(column), bound)))

    return proof


def _of_length(keyword: str, length: JSON) -> Proof:
    """A bound of the numbers of characters."""

    def proof(kinds: Kinds, column: Column) -> bool:
        if str not in kinds or kinds != _KINDS["string"]:
            return str not in kinds
        longest_or_shortest = (max if keyword == "maxLength" else min)(map(len, column))
        return bool(longest_or_shortest <= length if keyword == "maxLength" else longest_or_shortest >= length)

    return proof


def _among(values: Sequence[JSON]) -> Proof:
    """One of some values, where that is told by equality: texts, and null."""
    texts = frozenset([value for value in values if value is None or type(value) is str])
    return lambda kinds, column: kinds <= {str, _NULL} and texts.issuperset(column)
