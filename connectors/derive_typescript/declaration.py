"""TypeScript types of documents, from the shapes of their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import chain

from connectors.module_kit.named_schemas import endless_names, named_shapes
from derive.document.pointer import JSON
from derive.schema.shape import ALL, ANYTHING, Shape, type_of

_ORDER = ("object", "array", "boolean", "integer", "fractional", "string", "null")
_NAME = re.compile(r"[^\W\d_]\w*")
_LARGEST = 1.7e308
"""Greatest number in JavaScript; larger numbers are infinite, and have no literal."""


def quoted(text: str) -> str:
    """Return a string literal; characters that UTF-8 cannot encode are escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def member(name: str) -> str:
    """Return the name of a member in source code, quoted unless it is an identifier that begins with a letter."""
    return name if _NAME.fullmatch(name) and name.isidentifier() else quoted(name)


def literals(values: Iterable[JSON]) -> list[str]:
    """Return the literal types of values, each once: objects, arrays, booleans, numbers, strings, null."""
    ordered = sorted(values, key=lambda value: _ORDER.index(type_of(value)))
    types = list(dict.fromkeys(literal(value) for value in ordered))
    if "true" in types and "false" in types:
        index = min(types.index("true"), types.index("false"))
        types[index : index + 2] = ["boolean"]
    return types


def literal(value: JSON) -> str:
    """Return the type of one value."""
    if isinstance(value, dict):
        members = "; ".join(f"{member(name)}: {literal(item)}" for name, item in value.items())
        return f"{{ {members} }}" if members else "Record<string, never>"
    if isinstance(value, list):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return "number"
    return json.dumps(value)


_SCALARS = {"boolean": "boolean", "integer": "number", "fractional": "number", "string": "string", "null": "null"}
"""TypeScript types by JSON type, in the order of a union, after objects and arrays."""


def declare(schema: JSON, name: str, taken: set[str]) -> list[str]:
    """Return declarations of the type of a collection's documents, and of the types that its schema names.

    Args:
        schema: self-contained schema.
        name: name of the type.
        taken: names in use; the function adds new names.
    """
    shapes = named_shapes(schema, name, taken)
    endless = endless_names(shapes)
    return [
        f"export type {name} = {'unknown' if name in endless else described(shape)};" for name, shape in shapes.items()
    ]


def described(shape: Shape, indent: str = "") -> str:
    """Return the type of a location, after a comment with its title and description."""
    return _comment(shape) + typescript_type(shape, indent)


def typescript_type(shape: Shape, indent: str = "") -> str:
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
