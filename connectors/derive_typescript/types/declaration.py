"""TypeScript types of documents, from the shapes of their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from connectors.derive_typescript.types.literals import literals, member
from connectors.derive_typescript.types.named import named_schemas
from derive.document.pointer import JSON
from derive.schema.infer import Inference
from derive.schema.shape import ALL, ANYTHING, Shape, intersect

_OBJECTS = Shape(types=frozenset({"object"}))
_SCALARS = {"boolean": "boolean", "integer": "number", "fractional": "number", "string": "string", "null": "null"}
"""TypeScript types by JSON type, in the order of a union, after objects and arrays."""


def declare(schema: JSON, name: str, taken: set[str]) -> list[str]:
    """Return declarations of the type of a collection's documents, and of the types that its schema names.

    Args:
        schema: self-contained schema.
        name: name of the type.
        taken: names in use; the function adds the new ones.
    """
    named = named_schemas(schema, name, taken)
    inference = Inference(schema, {key: named_schema.name for key, named_schema in named.items()})
    shapes = {named_schema.name: inference.define(named_schema.schema) for named_schema in named.values()}
    root = named.get(id(schema))
    if root is None:
        # A collection's documents are objects, whatever its schema says.
        shapes = {name: intersect(inference.define(schema), _OBJECTS), **shapes}
    elif root.name != name:
        shapes = {name: Shape(name=root.name), **shapes}
    else:
        shapes = {name: shapes.pop(name), **shapes}
    endless = _endless({name: _in_place(shape) for name, shape in shapes.items()})
    return [
        f"export type {name} = {'unknown' if name in endless else described(shape)};" for name, shape in shapes.items()
    ]


def _endless(names: Mapping[str, frozenset[str]]) -> set[str]:
    """Return names that are defined by themselves without a property or an item in between; TypeScript refuses them."""
    recursive = set()
    for begin in names:
        seen: set[str] = set()
        pending = [*names[begin]]
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += names[name]
        if begin in seen:
            recursive.add(begin)
    return recursive


def described(shape: Shape, indent: str = "") -> str:
    """Return the type of a location, after a comment with its title and description."""
    return _comment(shape) + type_of(shape, indent)


def type_of(shape: Shape, indent: str = "") -> str:
    """Return the type of a location.

    Args:
        shape: inferred shape of the location.
        indent: indentation of the line on which the type begins.
    """
    return " | ".join(_alternatives(shape, indent))


def _comment(shape: Shape) -> str:
    text = " ".join(" ".join(text.split()) for text in (shape.title, shape.description) if text)
    return f"/* {text.replace('*/', '* /')} */ " if text else ""


def _alternatives(shape: Shape, indent: str) -> list[str]:
    """Return the alternatives of a union type."""
    if shape.name is not None:
        return [shape.name]
    if shape.alternatives:
        kinds = dict.fromkeys(chain(*(_alternatives(alternative, indent) for alternative in shape.alternatives)))
        return ["unknown"] if "unknown" in kinds else sorted(kinds, key=lambda type_name: type_name == "null")
    if not shape.types:
        return ["never"]
    if shape.values is not None:
        return literals(shape.values)
    if shape.types == ALL:
        return ["unknown"]
    descriptions = []
    if "object" in shape.types:
        descriptions.append(_object(shape, indent))
    if "array" in shape.types:
        descriptions.append(_array(shape, indent))
    return descriptions + list(dict.fromkeys(_SCALARS[scalar] for scalar in _SCALARS if scalar in shape.types))


def _in_place(shape: Shape) -> frozenset[str]:
    """Return the names that stand in place of the shape itself."""
    own = [] if shape.name is None else [shape.name]
    return frozenset(own).union(*(_in_place(alternative) for alternative in shape.alternatives))


def _object(shape: Shape, indent: str) -> str:
    inner = indent + "    "
    additional = shape.additional
    others = [] if additional is None or not additional.types else _alternatives(additional, inner)
    if not shape.properties and (additional is None or others == ["unknown"]):
        return "Record<string, unknown>"
    lines = []
    kinds: dict[str, None] = {}
    for name in sorted(shape.properties):
        property_shape = shape.properties[name]
        alternatives = _alternatives(property_shape, inner)
        optional = "" if name in shape.required else "?"
        lines.append(f"{inner}{member(name)}{optional}: {_comment(property_shape)}{' | '.join(alternatives)};")
        kinds |= dict.fromkeys(alternatives)
    if others:
        undefined = ["undefined"] if shape.properties.keys() - shape.required else []
        lines.append(f"{inner}[k: string]: {' | '.join(kinds | dict.fromkeys([*others, *undefined]))};")
    return "{\n" + "\n".join(lines) + f"\n{indent}}}" if lines else "Record<string, never>"


def _array(shape: Shape, indent: str) -> str:
    rest = ANYTHING if shape.items is None else shape.items
    most = shape.max_items
    prefix = shape.prefix if most is None else shape.prefix[:most]
    if not prefix:
        return "[]" if most == 0 else f"{_element(rest, indent)}[]"
    # TypeScript allows no required item after an optional one, and `min_items` never needs it.
    items = [_element(item, indent) + ("" if index < shape.min_items else "?") for index, item in enumerate(prefix)]
    if rest.types and (most is None or most > len(prefix)):
        items.append(f"...({described(rest, indent)})[]")
    return f"[{', '.join(items)}]"


def _element(shape: Shape, indent: str) -> str:
    comment = _comment(shape)
    alternatives = _alternatives(shape, indent)
    text = comment + " | ".join(alternatives)
    return f"({text})" if comment or len(alternatives) > 1 else text
