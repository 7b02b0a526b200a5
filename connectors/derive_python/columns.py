"""Columns of documents for methods with `@arrow`: the types of properties, and the arrays that a method receives.

A property has one Arrow type: texts, integers of 64 bits, doubles, booleans, lists of these, or JSON text for a value
of another type or of several types. `null` is the value of a property that is missing or null.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from connectors.derive_python.config import module_of
from derive.document.pointer import JSON, escape
from derive.protocol.specs import CollectionSpec, DerivationSpec
from derive.schema.shape import Shape, infer

_KINDS = {
    frozenset({"string"}): "string",
    frozenset({"integer"}): "integer",
    frozenset({"integer", "fractional"}): "number",
    frozenset({"fractional"}): "number",
    frozenset({"boolean"}): "boolean",
}

_SCALARS = frozenset(_KINDS.values())

_SHOWN = {"integer": "int64", "number": "double", "boolean": "bool", "json": "string, as JSON"}


@dataclass(frozen=True, slots=True)
class Column:
    """A property of documents as a column.

    Attributes:
        name: name of the property.
        kind: `string`, `integer`, `number`, `boolean` or `json`; for a list, `[]` and the kind of its items.
        is_required: whether every document has the property.
        is_nullable: whether the value may be null.
    """

    name: str
    kind: str
    is_required: bool
    is_nullable: bool

    def __str__(self) -> str:
        item = self.kind.lstrip("[]")
        text = _SHOWN.get(item, item)
        for _ in range(self.kind.count("[]")):
            text = f"list<{text}>"
        name = self.name if self.name.isidentifier() else repr(self.name)
        return f"{name}: {text}{' not null' if self.is_required and not self.is_nullable else ''}"


def columns_of(schema: JSON) -> list[Column]:
    """Return the columns of the properties that a schema names.

    >>> shown = columns_of({"type": "object", "required": ["id"], "properties": {
    ...     "id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}, "any": {}}})
    >>> list(map(str, shown))
    ['id: int64 not null', 'tags: list<string>', 'any: string, as JSON']
    """
    shape = infer(schema)
    return [
        Column(name, _kind(part), name in shape.required, "null" in part.types)
        for name, part in shape.properties.items()
        if part.types
    ]


def _kind(shape: Shape) -> str:
    types = shape.types - {"null"}
    if types == {"array"} and shape.items is not None and not shape.prefix:
        item = _kind(shape.items)
        return "json" if item.endswith("json") else f"[]{item}"
    return _KINDS.get(types, "json")


def arrow_methods(spec: DerivationSpec) -> frozenset[str]:
    """Return the methods of the module's class that have the decorator `@arrow`, as far as the module shows them."""
    try:
        tree = ast.parse(module_of(spec).text)
    except (SyntaxError, ValueError):
        return frozenset()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Derivation"]
    return frozenset(
        member.name
        for node in classes
        for member in node.body
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(isinstance(decorator, ast.Name) and decorator.id == "arrow" for decorator in member.decorator_list)
    )


def arrays_read(spec: DerivationSpec, methods: Set[str]) -> list[list[str]] | None:
    """Return the fields of each transform's columns; None if a method takes documents, or a column is no field.

    Args:
        spec: the derivation.
        methods: names of the methods of its transforms.
    """
    if not arrow_methods(spec) >= methods:
        return None
    if re.search(r"\bflush\b", module_of(spec).text):
        return None
    fields = [_fields_of(spec.sources[transform.input.source]) for transform in spec.transforms]
    return None if None in fields else [names for names in fields if names is not None]


def _fields_of(source: CollectionSpec) -> list[str] | None:
    """Return the scalar fields of a source's properties; None if a property has no such field."""
    columns = columns_of(source.read_schema)
    fields = {item.pointer: item.field for item in source.projections if _KINDS.get(item.types - {"null"})}
    names = [fields.get(f"/{escape(column.name)}") for column in columns if column.kind in _SCALARS]
    return None if len(names) < len(columns) or None in names else [name for name in names if name is not None]


def settings_of(columns: Sequence[Column]) -> list[list[Any]]:
    """Return columns as the harness takes them."""
    return [[column.name, column.kind, column.is_required, column.is_nullable] for column in columns]
