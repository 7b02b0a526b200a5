"""TypeScript types of documents, from the shapes of their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from derive.document.pointer import JSON, parse_pointer
from derive.schema.dialect import subschemas
from derive.schema.shape import ALL, ANYTHING, Inference, Shape, intersect, type_of

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


_ANCHOR = re.compile(r"[A-Z]\w+")
_DEFINITIONS = ("$defs", "definitions")
_SILENT = (*_DEFINITIONS, "properties")
_FILE = re.compile(r"(\.schema)?\.(ya?ml|json)$")


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """A schema with a name.

    Attributes:
        name: name of the type.
        schema: the schema.
    """

    name: str
    schema: dict[str, JSON]


def camel(name: str) -> str:
    """Return a name in upper camel case: other characters are removed, and the next letter is capitalized."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name))


def type_name(text: str) -> str:
    """Return a valid type name: characters that an identifier cannot have are removed."""
    return "".join(character for character in text if f"a{character}".isidentifier())


def named_schemas(schema: JSON, name: str, taken: set[str]) -> dict[int, NamedSchema]:
    """Return the schemas of a document that become named types.

    Args:
        schema: self-contained schema of the document.
        name: name of the document's type, which is the prefix of the other names.
        taken: names in use; the function adds new names.

    Returns:
        Named schemas by the identity (`id`) of each schema. The schema of the document is included if it is recursive.
    """
    schemas: dict[int, tuple[str, dict[str, JSON]]] = {}
    for pointer, subschema in subschemas(schema):
        schemas.setdefault(id(subschema), (pointer, subschema))
    recursive = _recursive(Inference(schema), schemas)
    names = {}
    for key, (pointer, subschema) in schemas.items():
        anchor = subschema.get("$anchor")
        if isinstance(anchor, str) and _ANCHOR.fullmatch(anchor):
            names[key] = NamedSchema(_free(type_name(name + anchor), taken), subschema)
        elif key in recursive:
            names[key] = NamedSchema(name if pointer == "" else _free(name + _title(pointer), taken), subschema)
    return names


def _title(pointer: str) -> str:
    """Return a name for the schema at a pointer: the property names on the way to it."""
    tokens = [token for token in parse_pointer(pointer) if token not in _SILENT]
    return type_name("".join(camel(_FILE.sub("", token)) for token in tokens)) or "Part"


def _free(name: str, taken: set[str]) -> str:
    number = 1
    free = name
    while free in taken:
        number += 1
        free = f"{name}{number}"
    taken.add(free)
    return free


def _recursive(inference: Inference, schemas: dict[int, tuple[str, dict[str, JSON]]]) -> set[int]:
    """Return the identities of schemas that refer to themselves."""
    targets: dict[int, set[int]] = {}
    pending = [subschema for _, subschema in schemas.values() if isinstance(subschema.get("$ref"), str)]
    reached = [inference.resolve(referring["$ref"]) for referring in pending]
    for target in reached:
        if isinstance(target, dict) and id(target) in schemas and id(target) not in targets:
            inside = [inference.resolve(reference) for reference in _references(target)]
            targets[id(target)] = {id(inner) for inner in inside if isinstance(inner, dict)}
    return {identity for identity in targets if identity in _reachable(identity, targets)}


def _reachable(begin: int, edges: dict[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    pending = [*edges[begin]]
    while pending:
        identity = pending.pop()
        if identity not in seen:
            seen.add(identity)
            pending += edges.get(identity, ())
    return seen


def _references(schema: dict[str, JSON]) -> Iterator[str]:
    """Yield references in a schema and below it; definitions are skipped, because references lead to them."""
    used = {keyword: value for keyword, value in schema.items() if keyword not in _DEFINITIONS}
    for pointer, subschema in subschemas(used):
        below = parse_pointer(pointer)
        if isinstance(subschema.get("$ref"), str) and not set(below) & set(_DEFINITIONS):
            yield subschema["$ref"]


_OBJECTS = Shape(types=frozenset({"object"}))
_SCALARS = {"boolean": "boolean", "integer": "number", "fractional": "number", "string": "string", "null": "null"}
"""TypeScript types by JSON type, in the order of a union, after objects and arrays."""


def declare(schema: JSON, name: str, taken: set[str]) -> list[str]:
    """Return declarations of the type of a collection's documents, and of the types that its schema names.

    Args:
        schema: self-contained schema.
        name: name of the type.
        taken: names in use; the function adds new names.
    """
    named = named_schemas(schema, name, taken)
    inference = Inference(schema, {key: named_schema.name for key, named_schema in named.items()})
    shapes = {named_schema.name: inference.define(named_schema.schema) for named_schema in named.values()}
    root = named.get(id(schema))
    if root is None:
        # The documents of a collection are objects, even if the schema does not say so.
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
    """Return names of types that TypeScript refuses: they refer to themselves without a property or item in between."""
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


def _in_place(shape: Shape) -> frozenset[str]:
    """Return the names of types that can replace the whole shape."""
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
