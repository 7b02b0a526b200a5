"""Flat schemas: proofs that whole columns of values are valid, without a check of each document.

Most collections are objects whose properties have one type each. The types of a column's values prove, for example,
that it has only strings, much faster than validation of each document. An unproven document is not necessarily invalid:
the validator decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, TypeAlias

from derive.document.columns import Columns, Kinds, are_finite
from derive.document.pointer import JSON, parse_pointer
from derive.schema.dialect import ANNOTATIONS, schemas_in

Column: TypeAlias = Sequence[JSON]
"""Values of one property, one for each document."""

Proof: TypeAlias = Callable[[Kinds, Column], bool]
"""Function that returns true if all values of a column are certainly valid."""

_KINDS: Mapping[str, Kinds] = {
    "array": frozenset({list}),
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),  # 1.0 is an integer, too; the validator checks floats
    "null": frozenset({type(None)}),
    "number": frozenset({int, float}),
    "object": frozenset({dict}),
    "string": frozenset({str}),
}
_NUMBERS = frozenset({int, float})
_NULL = type(None)

_SILENT = ANNOTATIONS | {"$defs", "definitions", "$comment"}
"""Keywords without an assertion."""

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
"""Types of values to which each keyword's assertion applies."""

_SHOWN = frozenset({"additionalProperties", "properties", "required", "type"})
"""Keywords on objects for which columns can be a proof."""

_RENAMING = frozenset({"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"})
_EXACT = 1 << 53
"""Bound up to which integers and floating-point numbers are equal."""

_MOST_REFERENCES = 32


class _Unproven(Exception):
    """A schema has an assertion on objects that columns cannot prove."""


class FlatSchema:
    """Proofs of a schema for columns of documents.

    Args:
        schema: self-contained JSON Schema.
    """

    def __init__(self, schema: JSON) -> None:
        self._root = schema
        self._objects = _objects(schema)
        self._proofs: dict[tuple[str, ...], tuple[Proof, ...] | None] = {}

    def proves(self, columns: Columns) -> bool:
        """Return true if all documents are certainly valid; False does not mean that one is invalid."""
        proofs = self._proofs_of(columns.names)
        return proofs is not None and all(map(_is_proven, proofs, columns.values, columns.kinds))

    def may_prove(self, names: tuple[str, ...]) -> bool:
        """Return true if a proof may exist for documents with exactly these properties."""
        return self._proofs_of(names) is not None

    def _proofs_of(self, names: tuple[str, ...]) -> tuple[Proof, ...] | None:
        if names not in self._proofs:
            self._proofs[names] = self._compile(names)
        return self._proofs[names]

    def _compile(self, names: tuple[str, ...]) -> tuple[Proof, ...] | None:
        """Return a proof for each column; None if documents with exactly these properties cannot be proven."""
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
    """Assertions on properties by one of the schemas that apply to a document.

    Attributes:
        properties: schemas of named properties.
        required: names of required properties.
        others: schema of all other properties.
    """

    properties: Mapping[str, JSON]
    required: frozenset[str]
    others: JSON


def _objects(schema: JSON) -> list[_Object] | None:
    """Return the assertions of a schema on a document; None if columns cannot prove them all."""
    if any(not _RENAMING.isdisjoint(subschema) for subschema in schemas_in(schema)):
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
    """Yield all schemas that apply together to a value, without `$ref` and `allOf`."""
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
    """Return the target of a reference inside the root schema."""
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
    """Return the proof for the values of a property."""
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
    """Return the proof of a numeric bound, which checks only the least or greatest number."""
    if type(bound) not in _NUMBERS or abs(bound) >= _EXACT:
        return _free_of(_NUMBERS)
    furthest, is_within = _BOUNDS[keyword]

    def proof(kinds: Kinds, column: Column) -> bool:
        return kinds.isdisjoint(_NUMBERS) or (kinds <= _NUMBERS and bool(is_within(furthest(column), bound)))

    return proof


def _of_length(keyword: str, length: JSON) -> Proof:
    """Return the proof of a bound on the number of characters."""

    def proof(kinds: Kinds, column: Column) -> bool:
        if str not in kinds or kinds != _KINDS["string"]:
            return str not in kinds
        longest_or_shortest = (max if keyword == "maxLength" else min)(map(len, column))
        return bool(longest_or_shortest <= length if keyword == "maxLength" else longest_or_shortest >= length)

    return proof


def _among(values: Sequence[JSON]) -> Proof:
    """Return the proof of an enumeration, for texts and null only."""
    texts = frozenset([value for value in values if value is None or type(value) is str])
    return lambda kinds, column: kinds <= {str, _NULL} and texts.issuperset(column)
