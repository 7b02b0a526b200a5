"""Names for the parts of a schema that become types of a language: parts with an anchor, and recursive parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from derive.document.pointer import JSON, parse_pointer
from derive.schema.dialect import subschemas
from derive.schema.shape import Inference, Shape, intersect

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


def named_shapes(schema: JSON, name: str, taken: set[str]) -> dict[str, Shape]:
    """Return the shapes of a collection's documents, and of the parts of its schema that become named types.

    Args:
        schema: self-contained schema.
        name: name of the type of documents, the first of the result.
        taken: names in use; the function adds new names.
    """
    named = named_schemas(schema, name, taken)
    inference = Inference(schema, {key: named_schema.name for key, named_schema in named.items()})
    shapes = {named_schema.name: inference.define(named_schema.schema) for named_schema in named.values()}
    root = named.get(id(schema))
    if root is None:
        # The documents of a collection are objects, even if the schema does not say so.
        return {name: intersect(inference.define(schema), _OBJECTS), **shapes}
    if root.name != name:
        return {name: Shape(name=root.name), **shapes}
    return {name: shapes.pop(name), **shapes}


def endless_names(shapes: Mapping[str, Shape]) -> set[str]:
    """Return names of types that refer to themselves without a property or item in between."""
    names = {name: _in_place(shape) for name, shape in shapes.items()}
    recursive = set()
    for begin, others in names.items():
        seen: set[str] = set()
        pending = [*others]
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += names[name]
        if begin in seen:
            recursive.add(begin)
    return recursive


def _in_place(shape: Shape) -> frozenset[str]:
    """Return the names of types that can replace the whole shape."""
    own = [] if shape.name is None else [shape.name]
    return frozenset(own).union(*(_in_place(alternative) for alternative in shape.alternatives))
