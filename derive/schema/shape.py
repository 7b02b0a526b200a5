"""Shapes: bounds of the values that a JSON Schema allows at a location, and their inference from the schema.

A shape is an upper bound: every document that is valid under the schema matches it. `union` bounds the values of either
of two shapes, `intersect` the values of both.

Which parts of a schema succeed depends on the document. Every location that some part may evaluate therefore counts as
evaluated. All other locations are unevaluated in every document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

import jsonschema_rs

from derive.document.key import compare, order_key
from derive.document.pointer import JSON, unescape


def matches(pattern: str, name: str) -> bool:
    """Return true if a regular expression matches some part of a property name, exactly as in validation."""
    return _compile(pattern).is_valid(name)


@cache
def _compile(pattern: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"pattern": pattern})


Values: TypeAlias = tuple[JSON, ...]
"""Distinct values in document order; 1 equals 1.0, and 1 differs from true."""


def type_of(value: JSON) -> str:
    """Return the JSON type of a value; 1.0 is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fractional"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def distinct(values: Iterable[JSON]) -> Values:
    """Return the distinct values, sorted by `derive.document.key`."""
    unique: list[JSON] = []
    for value in sorted(values, key=order_key):
        if not unique or compare(unique[-1], value):
            unique.append(value)
    return tuple(unique)


def common(left: Values, right: Values) -> Values:
    """Return the values that both sides permit."""
    return tuple(value for value in left if any(compare(value, other) == 0 for other in right))


def equal(left: Values, right: Values) -> bool:
    """Return true if both sides have the same values."""
    return compare(list(left), list(right)) == 0


Exists: TypeAlias = Literal["must", "may", "implicit", "cannot"]
"""Existence of a location: in every valid document, in some, unknown to the schema, or in none."""

Types: TypeAlias = frozenset[str]
"""JSON types: `array boolean fractional integer null object string`."""

ALL: Types = frozenset({"array", "boolean", "fractional", "integer", "null", "object", "string"})
NONE: Types = frozenset()
NUMBER: Types = frozenset({"fractional", "integer"})


@dataclass(frozen=True, slots=True)
class Shape:
    """The bound of a location.

    An attribute of one type (`format` of strings, `items` of arrays) describes only values of that type, and is unset
    if the type is impossible.

    Attributes:
        types: possible JSON types.
        properties: shapes of named properties.
        required: names of required properties.
        rest: shape of properties that are neither named nor match a pattern; None if unspecified.
        prefix: shapes of the first items.
        items: shape of other items; None if unspecified.
        min_items: least number of items.
        max_items: greatest number of items; None if unbounded.
        default: the default, as a one-element tuple; empty for none.
        format: the `format` of strings.
        content_encoding: the `contentEncoding` of strings.
        title: the `title` annotation.
        description: the `description` annotation.
        patterns: shapes of unnamed properties with a matching name, by regular expression.
        values: the only possible values; None if the schema lists none.
        content_type: the `contentMediaType` of strings.
        min_length: least number of characters.
        max_length: greatest number of characters; None if unbounded.
        minimum: least number; None if unbounded.
        maximum: greatest number; None if unbounded.
        reduction: the `reduce` annotation, or `MULTIPLE`.
        name: name of the schema, if `Inference` has names; all other attributes are then unset.
        alternatives: shapes of the alternatives, where `Inference` keeps them separate; the other attributes bound them
            all.
    """

    types: Types = ALL
    properties: Mapping[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    rest: Shape | None = None
    prefix: tuple[Shape, ...] = ()
    items: Shape | None = None
    min_items: int = 0
    max_items: int | None = None
    default: tuple[JSON, ...] = ()
    format: str | None = None
    content_encoding: str | None = None
    title: str | None = None
    description: str | None = None
    patterns: Mapping[str, Shape] = field(default_factory=dict)
    values: Values | None = None
    content_type: str | None = None
    min_length: int = 0
    max_length: int | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    reduction: Mapping[str, JSON] | None = None
    name: str | None = None
    alternatives: tuple[Shape, ...] = ()

    @property
    def additional(self) -> Shape | None:
        """Return the shape of properties that are not named; None if unspecified."""
        if not self.patterns:
            return self.rest
        return reduce(union, self.patterns.values(), self.rest or ANYTHING)

    def member(self, name: str) -> Shape | None:
        """Return the shape of a property: by name, else by patterns, else `rest`; None if unspecified."""
        if name in self.properties:
            return self.properties[name]
        matching = [pattern_shape for pattern, pattern_shape in self.patterns.items() if matches(pattern, name)]
        return reduce(intersect, matching) if matching else self.rest

    def item(self, index: int) -> Shape | None:
        """Return the shape of an item; None if unspecified."""
        return self.prefix[index] if index < len(self.prefix) else self.items


ANYTHING = Shape()
NOTHING = Shape(types=NONE)
MULTIPLE: Mapping[str, JSON] = {"strategy": "multiple"}
"""Reduction of a location whose alternatives have different reductions."""

_OBJECT, _ARRAY, _STRING = frozenset({"object"}), frozenset({"array"}), frozenset({"string"})
_FACETS: Mapping[Types, tuple[str, ...]] = {
    _OBJECT: ("properties", "required", "rest", "patterns"),
    _ARRAY: ("prefix", "items", "min_items", "max_items"),
    _STRING: ("format", "content_encoding", "content_type", "min_length", "max_length"),
    NUMBER: ("minimum", "maximum"),
}
"""Attributes that describe only values of some types."""

_MOST_ALTERNATIVES = 64
"""Limit for the number of alternatives; beyond it only their common bound is kept."""

_T = TypeVar("_T")


def settle(shape: Shape) -> Shape:
    """Return the shape without attributes that have no effect, so that equivalent shapes are equal."""
    types, values = shape.types, shape.values
    if values is not None:
        values = tuple(value for value in values if type_of(value) in types)
        types &= frozenset(map(type_of, values))
    if not types:
        return NOTHING
    unset: dict[str, Any] = {}
    for kinds, names in _FACETS.items():
        if not types & kinds:
            unset.update({name: getattr(ANYTHING, name) for name in names})
    return replace(shape, types=types, values=values, **unset)


def union(left: Shape, right: Shape) -> Shape:
    """Return the union of two shapes."""
    if not left.types or not right.types:
        return right if not left.types else left
    facets: dict[str, Any] = {}
    for kinds, unite in _UNITE.items():
        # a shape that excludes objects (or arrays, …) does not constrain properties (or items, …).
        if left.types & kinds and right.types & kinds:
            facets.update(unite(left, right))
        else:
            side = left if left.types & kinds else right
            facets.update({name: getattr(side, name) for name in _FACETS[kinds]})
    return Shape(
        left.types | right.types,
        default=left.default if equal(left.default, right.default) else (),
        title=_same(left.title, right.title),
        description=_same(left.description, right.description),
        values=_unite_values(left, right),
        reduction=_unite_reductions(left.reduction, right.reduction),
        **facets,
    )


def _same(left: _T | None, right: _T | None) -> _T | None:
    return left if left == right else None


def _loosest(choose: Callable[[Any, Any], _T], left: _T | None, right: _T | None) -> _T | None:
    return None if left is None or right is None else choose(left, right)


def _tightest(choose: Callable[[Any, Any], _T], left: _T | None, right: _T | None) -> _T | None:
    return choose(left, right) if left is not None and right is not None else right if left is None else left


def _unite_values(left: Shape, right: Shape) -> Values | None:
    if left.values is None and right.values is None:
        return None
    sides = [_listed(left), _listed(right)]
    return None if sides[0] is None or sides[1] is None else distinct((*sides[0], *sides[1]))


def _listed(shape: Shape) -> Values | None:
    # null and booleans are enumerable: a nullable enumeration stays one.
    if shape.values is None and shape.types <= {"null", "boolean"}:
        return ((None,) if "null" in shape.types else ()) + ((False, True) if "boolean" in shape.types else ())
    return shape.values


def _unite_reductions(left: Mapping[str, JSON] | None, right: Mapping[str, JSON] | None) -> Mapping[str, JSON] | None:
    if left is None or right is None:
        return None
    return left if equal((left,), (right,)) else MULTIPLE


def _unite_strings(left: Shape, right: Shape) -> dict[str, Any]:
    numeric = {left.format, right.format} == {"integer", "number"}
    return {
        "format": "number" if numeric else _same(left.format, right.format),
        "content_encoding": _same(left.content_encoding, right.content_encoding),
        "content_type": _same(left.content_type, right.content_type),
        "min_length": min(left.min_length, right.min_length),
        "max_length": _loosest(max, left.max_length, right.max_length),
    }


def _unite_numbers(left: Shape, right: Shape) -> dict[str, Any]:
    return {
        "minimum": _loosest(min, left.minimum, right.minimum),
        "maximum": _loosest(max, left.maximum, right.maximum),
    }


def _unite_objects(left: Shape, right: Shape) -> dict[str, Any]:
    properties = {}
    for name in sorted({*left.properties, *right.properties}):
        both = _loosest(union, left.member(name), right.member(name))
        if both is not None:
            properties[name] = both
    patterns = {}
    for pattern in sorted({*left.patterns, *right.patterns}):
        both = _loosest(union, _bound(left, pattern), _bound(right, pattern))
        if both is not None:
            patterns[pattern] = both
    return {
        "properties": properties,
        "required": left.required & right.required,
        "rest": _loosest(union, left.rest, right.rest),
        "patterns": patterns,
    }


def _bound(shape: Shape, pattern: str) -> Shape | None:
    """Return the bound of unnamed properties that match a pattern, which the shape need not have."""
    if pattern in shape.patterns:
        return shape.patterns[pattern]
    if shape.rest is None:
        return None
    # These properties may match any of its patterns, or none.
    return reduce(union, shape.patterns.values(), shape.rest)


def _unite_arrays(left: Shape, right: Shape) -> dict[str, Any]:
    length = max(len(left.prefix), len(right.prefix))
    prefix = []
    for index in range(length):
        both = _loosest(union, left.item(index), right.item(index))
        if both is None:
            break
        prefix.append(both)
    return {
        "prefix": tuple(prefix),
        "items": _loosest(union, left.items, right.items) if len(prefix) == length else None,
        "min_items": min(left.min_items, right.min_items),
        "max_items": _loosest(max, left.max_items, right.max_items),
    }


_UNITE: Mapping[Types, Callable[[Shape, Shape], dict[str, Any]]] = {
    _OBJECT: _unite_objects,
    _ARRAY: _unite_arrays,
    _STRING: _unite_strings,
    NUMBER: _unite_numbers,
}


def intersect(left: Shape, right: Shape) -> Shape:
    """Return the intersection of two shapes; annotations of `left` come first."""
    alternatives = _distribute(left, right) if left.alternatives or right.alternatives else ()
    if alternatives is None:
        return NOTHING
    names = sorted({*left.properties, *right.properties})
    patterns = sorted({*left.patterns, *right.patterns})
    length = max(len(left.prefix), len(right.prefix))
    both = _tightest(common, left.values, right.values)
    return settle(
        Shape(
            left.types & right.types,
            {name: _tightest(intersect, left.member(name), right.member(name)) or ANYTHING for name in names},
            left.required | right.required,
            _tightest(intersect, left.rest, right.rest),
            tuple(_tightest(intersect, left.item(at), right.item(at)) or ANYTHING for at in range(length)),
            _tightest(intersect, left.items, right.items),
            max(left.min_items, right.min_items),
            _tightest(min, left.max_items, right.max_items),
            default=left.default or right.default,
            format=left.format or right.format,
            content_encoding=left.content_encoding or right.content_encoding,
            title=left.title or right.title,
            description=left.description or right.description,
            patterns={
                pattern: _tightest(intersect, _bound(left, pattern), _bound(right, pattern)) or ANYTHING
                for pattern in patterns
            },
            values=both,
            content_type=left.content_type or right.content_type,
            min_length=max(left.min_length, right.min_length),
            max_length=_tightest(min, left.max_length, right.max_length),
            minimum=_tightest(max, left.minimum, right.minimum),
            maximum=_tightest(min, left.maximum, right.maximum),
            reduction=left.reduction or right.reduction,
            name=left.name or right.name,
            alternatives=alternatives,
        )
    )


def _distribute(left: Shape, right: Shape) -> tuple[Shape, ...] | None:
    """Return the possible alternatives of an intersection; None if there are none."""
    sides = [side.alternatives or (replace(side, title=None, description=None),) for side in (left, right)]
    if len(sides[0]) * len(sides[1]) > _MOST_ALTERNATIVES:
        return ()
    products = (intersect(one, other) for one in sides[0] for other in sides[1])
    return tuple(product for product in products if product.types) or None


def locate(shape: Shape, tokens: tuple[str, ...]) -> tuple[Shape, Exists]:
    """Return the shape of a location and its existence: the existence of the least certain token of the path."""
    exists: Exists = "must"
    order: tuple[Exists, ...] = ("must", "may", "implicit", "cannot")
    for token in tokens:
        shape, step = _step(shape, token)
        exists = max(exists, step, key=order.index)
    return (NOTHING if exists == "cannot" else shape), exists


def _step(shape: Shape, token: str) -> tuple[Shape, Exists]:
    candidates: list[tuple[Shape, Exists]] = []
    if "object" in shape.types:
        must = token in shape.required and shape.types == _OBJECT
        candidates.append(_known(shape.member(token), must))
    if "array" in shape.types and token.isascii() and token.isdigit() and (token == "0" or token[0] != "0"):
        index = int(token[:19])  # no array is that long, and `int` rejects thousands of digits
        beyond = shape.max_items is not None and index >= shape.max_items
        must = index < shape.min_items and shape.types == _ARRAY
        candidates.append(_known(NOTHING if beyond else shape.item(index), must))
    candidates = [candidate for candidate in candidates if candidate[1] != "cannot"]
    if len(candidates) == 2:
        return union(candidates[0][0], candidates[1][0]), "may"
    return candidates[0] if candidates else (NOTHING, "cannot")


def _known(shape: Shape | None, must: bool) -> tuple[Shape, Exists]:
    if shape is None:
        return ANYTHING, "must" if must else "implicit"
    if not shape.types:
        return NOTHING, "cannot"
    return shape, "must" if must else "may"


_NUMBER = frozenset({"integer", "fractional"})


def serialize(shape: Shape) -> dict[str, Any]:
    """Return the JSON Schema of a shape.

    Inferring the result returns the shape again, with two exceptions: attributes of types that the shape does not have,
    and shapes of fractional numbers only, for which JSON Schema has no type.
    """
    schema: dict[str, Any] = {}
    if shape.types == NONE:
        return {"enum": []}
    if shape.types != ALL:
        schema["type"] = _types(shape.types)
    for keyword, value in (
        ("title", shape.title),
        ("description", shape.description),
        ("format", shape.format),
        ("contentEncoding", shape.content_encoding),
    ):
        if value is not None:
            schema[keyword] = value
    if shape.default:
        schema["default"] = shape.default[0]
    if "object" in shape.types:
        schema |= _object_keywords(shape)
    if "array" in shape.types:
        schema |= _array_keywords(shape)
    return schema


def _types(types: frozenset[str]) -> str | list[str]:
    named = sorted({"number"} | (types - _NUMBER) if "fractional" in types else types)
    return named[0] if len(named) == 1 else named


def _object_keywords(shape: Shape) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if shape.required:
        keywords["required"] = sorted(shape.required)
    if shape.properties:
        keywords["properties"] = {name: _below(member) for name, member in sorted(shape.properties.items())}
    if shape.additional is not None:
        keywords["additionalProperties"] = _below(shape.additional)
    return keywords


def _array_keywords(shape: Shape) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if shape.min_items:
        keywords["minItems"] = shape.min_items
    if shape.max_items is not None:
        keywords["maxItems"] = shape.max_items
    if shape.prefix:
        keywords["prefixItems"] = [_below(item) for item in shape.prefix]
    if shape.items is not None:
        keywords["items"] = _below(shape.items)
    return keywords


def _below(shape: Shape) -> JSON:
    """Return the schema of a shape as a subschema, which may be `true` or `false`."""
    if shape == ANYTHING:
        return True
    return serialize(shape) if shape.types else False


Resolve = Callable[[str], JSON]
"""Function from a reference to its target schema."""


def unevaluated(schema: dict[str, Any], infer: Callable[[JSON], Shape], resolve: Resolve) -> Shape:
    """Return the shape that a schema's `unevaluatedProperties` and `unevaluatedItems` allow."""
    names: set[str] = set()
    patterns: set[str] = set()
    length = 0
    rest = schema.get("unevaluatedProperties")
    items = schema.get("unevaluatedItems")
    for part in _parts(schema, resolve):
        names.update(part.get("properties", ()))
        patterns.update(part.get("patternProperties", ()))
        length = max(length, len(part.get("prefixItems", ())))
        own = part is schema
        if "additionalProperties" in part or "$dynamicRef" in part or ("unevaluatedProperties" in part and not own):
            rest = None
        if {"items", "contains", "$dynamicRef"} & set(part) or ("unevaluatedItems" in part and not own):
            items = None
    shape = Shape()
    if rest is not None:
        shape = Shape(
            properties=dict.fromkeys(sorted(names), ANYTHING),
            patterns=dict.fromkeys(sorted(patterns), ANYTHING),
            rest=infer(rest),
        )
    if items is None:
        return shape
    return Shape(
        properties=shape.properties,
        patterns=shape.patterns,
        rest=shape.rest,
        prefix=(ANYTHING,) * length,
        items=infer(items),
    )


def _parts(schema: JSON, resolve: Resolve) -> Iterator[dict[str, Any]]:
    """Yield the schema and all other schemas that apply to the same location."""
    pending, seen = [schema], set()
    while pending:
        part = pending.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for keyword in ("allOf", "anyOf", "oneOf"):
            pending += part.get(keyword, ())
        pending += [part[keyword] for keyword in ("if", "then", "else") if keyword in part]
        pending += part.get("dependentSchemas", {}).values()
        if isinstance(part.get("$ref"), str):
            pending.append(resolve(part["$ref"]))


_MOST = 20_000
"""Limit for the number of schemas in one inference: schemas with many mutual references grow exponentially."""

_APPLICATORS = ("allOf", "oneOf", "anyOf", "if", "$ref", "unevaluatedProperties", "unevaluatedItems")


def infer(schema: JSON) -> Shape:
    """Return the shape of a self-contained JSON Schema.

    A recursive `$ref`, `not`, `$dynamicRef`, and an `if` without both `then` and `else` are ignored.
    """
    return Inference(schema).define(schema)


class Inference:
    """Infers the shapes of schemas in one document.

    Args:
        root: the self-contained document.
        names: names of schemas by identity (`id`), for generated types. A location with such a schema alone has a shape
            of that name; further keywords beside it expand the name. Alternatives that are objects or have names are
            kept separate. None to infer one bound of all alternatives.
    """

    def __init__(self, root: JSON, names: Mapping[int, str] | None = None) -> None:
        self._root = root
        self._names = names
        self._anchors: dict[str, JSON] = {}
        self._is_one_resource = True
        self._looked_at = 0
        self._find_anchors(root)

    def _find_anchors(self, root: JSON) -> None:
        pending = [root]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                name = value.get("$anchor")
                if isinstance(name, str):
                    # Two equal names are in different documents, so the target is unknown.
                    self._anchors[name] = True if name in self._anchors else value
                if value is not root and isinstance(value.get("$id"), str):
                    self._is_one_resource = False
                pending += value.values()
            elif isinstance(value, list):
                pending += value

    def define(self, schema: JSON) -> Shape:
        """Return the shape of a schema in the document; the name of a named schema is expanded."""
        return self._define(schema, (), inline=False)

    def resolve(self, reference: str) -> JSON:
        """Return the target of a reference; True, the schema without assertions, if it is unknown."""
        if not reference.startswith("#") or not self._is_one_resource:
            return True
        fragment = unquote(reference[1:])
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment, True)
        target = self._root
        for token in fragment.split("/")[1:]:
            name = unescape(token)
            try:
                target = target[int(name)] if isinstance(target, list) else target[name]
            except (KeyError, IndexError, ValueError, TypeError):
                return True
        return target

    def _shape(self, schema: JSON, references: tuple[str, ...], *, inline: bool = False) -> Shape:
        """Return the shape of a location; `inline` expands names, because further keywords apply."""
        if self._names and not inline and id(schema) in self._names:
            return Shape(name=self._names[id(schema)])
        return self._define(schema, references, inline=inline)

    def _define(self, schema: JSON, references: tuple[str, ...], *, inline: bool) -> Shape:
        if schema is False:
            return NOTHING
        self._looked_at += 1
        if not isinstance(schema, dict) or self._looked_at > _MOST:
            return ANYTHING
        shape = self._own(schema, references)
        inline = inline or (bool(self._names) and _says_more(shape, schema))
        parts = schema.get("allOf", ())
        for part in parts:
            shape = intersect(shape, self._shape(part, references, inline=inline or len(parts) > 1))
        for keyword in ("oneOf", "anyOf"):
            if schema.get(keyword):
                branches = [self._shape(branch, references, inline=inline) for branch in schema[keyword]]
                shape = intersect(shape, self._union(branches))
        if "if" in schema and "then" in schema and "else" in schema:
            branches = [self._shape(schema[keyword], references, inline=inline) for keyword in ("then", "else")]
            shape = intersect(shape, self._union(branches))
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in references:
            target = self._shape(self.resolve(reference), (*references, reference), inline=inline)
            shape = intersect(shape, target)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            left = unevaluated(schema, lambda part: self._shape(part, references), self.resolve)
            shape = intersect(shape, left)
        return _annotate(shape, schema)

    def _union(self, branches: list[Shape]) -> Shape:
        bound = reduce(union, branches)
        if self._names is None:
            return bound
        shapes = [shape for branch in branches if branch.types for shape in branch.alternatives or (branch,)]
        apart = [shape for shape in shapes if shape.name or "object" in shape.types]
        if len(shapes) < 2 or not (len(apart) > 1 or any(shape.name for shape in apart)):
            return bound
        others = [shape for shape in shapes if not shape.name and "object" not in shape.types]
        return replace(bound, alternatives=(*apart, *([reduce(union, others)] if others else ())))

    def _own(self, schema: dict[str, Any], references: tuple[str, ...]) -> Shape:
        types, values = _inferred_types(schema)
        prefix, items = self._items(schema, references)
        return settle(
            Shape(
                types,
                **self._properties(schema, references),
                prefix=prefix,
                items=items,
                min_items=int(schema.get("minItems", 0)),
                max_items=_whole(schema.get("maxItems")),
                format=schema.get("format"),
                content_encoding=schema.get("contentEncoding"),
                content_type=schema.get("contentMediaType"),
                values=values,
                min_length=int(schema.get("minLength", 0)),
                max_length=_whole(schema.get("maxLength")),
                minimum=max(_bounds(schema, "minimum", "exclusiveMinimum"), default=None),
                maximum=min(_bounds(schema, "maximum", "exclusiveMaximum"), default=None),
            )
        )

    def _properties(self, schema: dict[str, Any], references: tuple[str, ...]) -> dict[str, Any]:
        named = {name: self._shape(subschema, references) for name, subschema in schema.get("properties", {}).items()}
        patterns = {
            name: self._shape(subschema, references) for name, subschema in schema.get("patternProperties", {}).items()
        }
        rest = self._shape(schema["additionalProperties"], references) if "additionalProperties" in schema else None
        for pattern, pattern_shape in patterns.items():
            named = {
                name: intersect(own, pattern_shape) if matches(pattern, name) else own for name, own in named.items()
            }
        required = frozenset(schema.get("required", ()))
        unnamed = Shape(patterns=patterns, rest=rest)
        named.update({name: unnamed.member(name) or ANYTHING for name in sorted(required - set(named))})
        return {"properties": named, "patterns": patterns, "required": required, "rest": rest}

    def _items(self, schema: dict[str, Any], references: tuple[str, ...]) -> tuple[tuple[Shape, ...], Shape | None]:
        items = schema.get("items")
        first, rest = schema.get("prefixItems", []), items
        if isinstance(items, list):  # spelling of draft 2019-09
            first, rest = items, schema.get("additionalItems")
        prefix = tuple(self._shape(subschema, references) for subschema in first)
        return prefix, None if rest is None else self._shape(rest, references)


def _inferred_types(schema: dict[str, Any]) -> tuple[Types, Values | None]:
    types = ALL
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types = frozenset().union(*(NUMBER if type_name == "number" else {type_name} for type_name in named))
    values = None
    for listed in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if listed is not None:
            listed_values = distinct(listed)
            values = listed_values if values is None else common(values, listed_values)
    return types, values


def _says_more(own: Shape, schema: Mapping[str, JSON]) -> bool:
    """Return true if a schema restricts an applicator by more than types, or has several applicators."""
    applied = sum(keyword in schema for keyword in _APPLICATORS)
    return applied > 1 or replace(own, types=ALL) != ANYTHING


def _whole(value: JSON) -> int | None:
    return None if value is None else int(value)


def _bounds(schema: Mapping[str, JSON], *keywords: str) -> list[int | float]:
    return [schema[keyword] for keyword in keywords if keyword in schema]


def _annotate(shape: Shape, schema: Mapping[str, JSON]) -> Shape:
    """Return the shape with a schema's own annotations, which precede the annotations of its references."""
    if not shape.types:
        return shape
    return replace(
        shape,
        default=(schema["default"],) if "default" in schema else shape.default,
        title=schema.get("title", shape.title),
        description=schema.get("description", shape.description),
        reduction=schema.get("reduce", shape.reduction),
    )
