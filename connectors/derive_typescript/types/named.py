"""Schemas that become types of their own: those an author named by `$anchor`, and those that refer to themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from derive.document.pointer import JSON, parse_pointer
from derive.schema.dialect import subschemas
from derive.schema.infer import Inference

_ANCHOR = re.compile(r"[A-Z]\w+")
_DEFINITIONS = ("$defs", "definitions")
_SILENT = (*_DEFINITIONS, "properties")
_FILE = re.compile(r"(\.schema)?\.(ya?ml|json)$")


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """A schema with a name.

    Attributes:
        name: of the type.
        schema: what it stands for.
    """

    name: str
    schema: dict[str, JSON]


def camel(name: str) -> str:
    """A name in upper camel case: what is neither letter nor digit goes, and the letter behind it is raised."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name))


def type_name(text: str) -> str:
    """A name of a type: what an identifier cannot have is left out."""
    return "".join(character for character in text if f"a{character}".isidentifier())


def named_schemas(schema: JSON, name: str, taken: set[str]) -> dict[int, NamedSchema]:
    """The schemas of a document that become types of their own.

    Args:
        schema: the document, self-contained.
        name: of its own type, with which the others' names begin.
        taken: names that are in use already; the new ones are added.

    Returns:
        By the identity (`id`) of each schema. The document's own is among them where it refers to itself.
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
    """What to call the schema at a pointer: the names along the way, without the keywords that hold them."""
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
    """Identities of schemas that are referred to from inside themselves."""
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
    """References in a schema and below it, definitions left out: they count where something refers to them."""
    used = {keyword: value for keyword, value in schema.items() if keyword not in _DEFINITIONS}
    for pointer, subschema in subschemas(used):
        below = parse_pointer(pointer)
        if isinstance(subschema.get("$ref"), str) and not set(below) & set(_DEFINITIONS):
            yield subschema["$ref"]
