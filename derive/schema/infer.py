"""From a JSON Schema to its shape."""

from __future__ import annotations

from functools import reduce
from typing import Any

from derive.document.pointer import JSON, unescape
from derive.schema.shape import ALL, ANYTHING, NOTHING, Shape, Types, annotate, intersect, union

_NUMBER: Types = frozenset({"integer", "fractional"})


def infer(schema: JSON) -> Shape:
    """The shape of a self-contained JSON Schema.

    A recursive `$ref` says nothing, and neither do `not` and an `if` without both `then` and `else`.
    """
    return _Inference(schema).shape(schema, ())


class _Inference:
    def __init__(self, root: JSON) -> None:
        self._root = root
        self._anchors: dict[str, JSON] = {}
        self._find_anchors(root)

    def _find_anchors(self, value: JSON) -> None:
        pending = [value]
        while pending:
            each = pending.pop()
            if isinstance(each, dict):
                if isinstance(each.get("$anchor"), str):
                    self._anchors[each["$anchor"]] = each
                pending += each.values()
            elif isinstance(each, list):
                pending += each

    def shape(self, schema: JSON, references: tuple[str, ...]) -> Shape:
        if schema is False:
            return NOTHING
        if not isinstance(schema, dict):
            return ANYTHING
        shape = self._own(schema, references)
        for part in schema.get("allOf", ()):
            shape = intersect(shape, self.shape(part, references))
        for keyword in ("oneOf", "anyOf"):
            if schema.get(keyword):
                branches = [self.shape(each, references) for each in schema[keyword]]
                shape = intersect(shape, reduce(union, branches))
        if "if" in schema and "then" in schema and "else" in schema:
            branches = [self.shape(schema[each], references) for each in ("then", "else")]
            shape = intersect(shape, union(*branches))
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in references:
            shape = intersect(shape, self.shape(self._resolve(reference), (*references, reference)))
        return annotate(shape, schema)

    def _resolve(self, reference: str) -> JSON:
        fragment = reference.partition("#")[2]
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

    def _own(self, schema: dict[str, Any], references: tuple[str, ...]) -> Shape:
        properties = {name: self.shape(each, references) for name, each in schema.get("properties", {}).items()}
        required = frozenset(schema.get("required", ()))
        properties.update(dict.fromkeys(sorted(required - set(properties)), ANYTHING))
        additional = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        if additional is not None or schema.get("patternProperties"):
            patterns = [self.shape(each, references) for each in schema.get("patternProperties", {}).values()]
            rest = ANYTHING if additional is None else self.shape(additional, references)
            others: Shape | None = reduce(union, patterns, rest)
        else:
            others = None
        prefix, items = self._items(schema, references)
        return Shape(
            _types(schema),
            properties,
            required,
            others,
            prefix,
            items,
            schema.get("minItems", 0),
            schema.get("maxItems"),
            format=schema.get("format"),
            content_encoding=schema.get("contentEncoding"),
        )

    def _items(self, schema: dict[str, Any], references: tuple[str, ...]) -> tuple[tuple[Shape, ...], Shape | None]:
        items = schema.get("items")
        if isinstance(items, list):
            rest = schema.get("additionalItems", schema.get("unevaluatedItems"))
            first = items
        else:
            first = schema.get("prefixItems", [])
            rest = items if items is not None else schema.get("unevaluatedItems")
        prefix = tuple(self.shape(each, references) for each in first)
        return prefix, None if rest is None else self.shape(rest, references)


def _types(schema: dict[str, Any]) -> Types:
    types = ALL
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types = frozenset().union(*(_NUMBER if each == "number" else {each} for each in named))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        types &= frozenset(map(type_of, values))
    return types


def type_of(value: JSON) -> str:
    """The JSON type of a value; 1.0 is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fractional"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
