"""Infer the shape of a JSON Schema, and the locations that it has evaluated.

The successful parts of a schema depend on the document. Every location that some part may evaluate therefore counts as
evaluated, and the others are unevaluated in every document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any
from urllib.parse import unquote

from derive.document.pointer import JSON, unescape
from derive.schema.shape import (
    ALL,
    ANYTHING,
    NOTHING,
    NUMBER,
    Shape,
    Types,
    Values,
    common,
    distinct,
    intersect,
    matches,
    settle,
    union,
)

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
        types, values = _types(schema)
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


def _types(schema: dict[str, Any]) -> tuple[Types, Values | None]:
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
    """Return true if a schema narrows one of its applicators by more than types, or has several applicators."""
    applied = sum(keyword in schema for keyword in _APPLICATORS)
    return applied > 1 or replace(own, types=ALL) != ANYTHING


def _whole(value: JSON) -> int | None:
    return None if value is None else int(value)


def _bounds(schema: Mapping[str, JSON], *keywords: str) -> list[int | float]:
    return [schema[keyword] for keyword in keywords if keyword in schema]


def _annotate(shape: Shape, schema: Mapping[str, JSON]) -> Shape:
    """Return the shape with a schema's own annotations, which precede those of its references."""
    if not shape.types:
        return shape
    secret = schema.get("secret", schema.get("airbyte_secret", shape.secret))
    return replace(
        shape,
        default=(schema["default"],) if "default" in schema else shape.default,
        title=schema.get("title", shape.title),
        description=schema.get("description", shape.description),
        secret=secret,
        reduction=schema.get("reduce", shape.reduction),
    )
