"""TypeScript types of documents, from the shapes of their schemas."""

from __future__ import annotations

import json
import re

from connectors.derive_typescript.literals import Schemas
from derive.protocol.specs import DerivationSpec
from derive.schema.infer import infer
from derive.schema.shape import ALL, Shape

RESERVED = ("constructor", "flush", "reset", "startCommit")
"""Members of the class that have a meaning of their own, so no transform's method may have their names."""

_MEMBERS = """\
    constructor(_open: { state: unknown }) {}

    /** Called at the end of each tick in which documents were processed: what it returns is published, too. */
    flush(): Document[] | Promise<Document[]> {
        return [];
    }

    /** Called at the end of a transaction: the state it returns is handed to the constructor of the next one. */
    startCommit(_startCommit: { runtimeCheckpoint: unknown }): State | Promise<State> {
        return {};
    }

    /** Called between catalog tests, to forget everything. */
    reset(): void | Promise<void> {}
""".replace("State", "{ state?: { updated: unknown; mergePatch: boolean } }")

_IDENTIFIER = re.compile(r"[^\W\d_]\w*")


def method_of(transform: str) -> str:
    """Name of the method that implements a transform: lower camel case."""
    name = camel(transform)
    return name[:1].lower() + name[1:]


def camel(name: str) -> str:
    """A name in upper camel case: what is neither letter nor digit goes, and the letter behind it is raised."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name))


def generate_interfaces(spec: DerivationSpec) -> str:
    """The module that a derivation's own module imports from: its types, and the class it extends."""
    parts = [
        f"// Types of the derivation {spec.name}, generated from the schemas of its collections.",
        f"export type Document = {_type_of_schema(spec.collection.write_schema)};",
    ]
    methods = [_MEMBERS]
    for each in spec.transforms:
        source = f"Source{camel(each.name)}"
        parts.append(f"export type {source} = {_type_of_schema(spec.sources[each.source].read_schema)};")
        read = f"{{ doc: {source}; publishedAt: string }}"
        methods.append(f"    abstract {_name(method_of(each.name))}(read: {read}): Document[] | Promise<Document[]>;")
    body = "\n".join(methods)
    parts.append(f"export abstract class IDerivation {{\n{body}\n}}")
    return "\n\n".join(parts) + "\n"


def _type_of_schema(schema: object) -> str:
    return type_of(infer(schema), Schemas.of(schema))


def type_of(shape: Shape, schemas: Schemas, indent: str = "") -> str:
    """The TypeScript type of a location.

    Args:
        shape: what is known of the location.
        schemas: the schemas that apply there, for the values they list.
        indent: of the line the type begins on.
    """
    if not shape.types:
        return "never"
    values = schemas.values(shape.types)
    if values is not None:
        return " | ".join(json.dumps(each, ensure_ascii=False) for each in values) or "never"
    if shape.types == ALL:
        return "unknown"
    parts = []
    if "object" in shape.types:
        parts.append(_object(shape, schemas, indent))
    if "array" in shape.types:
        parts.append(_array(shape, schemas, indent))
    for kind, name in (("boolean", "boolean"), ("integer", "number"), ("fractional", "number"), ("string", "string")):
        if kind in shape.types and name not in parts:
            parts.append(name)
    if "null" in shape.types:
        parts.append("null")
    return " | ".join(parts)


def _object(shape: Shape, schemas: Schemas, indent: str) -> str:
    if not shape.properties and (shape.additional is None or shape.additional.types == ALL):
        return "Record<string, unknown>"
    inner = indent + "    "
    lines = []
    types = []
    for name in sorted(shape.properties):
        optional = "" if name in shape.required else "?"
        kind = type_of(shape.properties[name], schemas.property(name), inner)
        types.append(f"{kind} | undefined" if optional else kind)
        lines.append(f"{inner}{_comment(shape.properties[name])}{_name(name)}{optional}: {kind};")
    if shape.additional is not None and shape.additional.types:
        union = " | ".join(dict.fromkeys([*types, type_of(shape.additional, Schemas(), inner)]))
        lines.append(f"{inner}[k: string]: {union};")
    return "{\n" + "\n".join(lines) + f"\n{indent}}}" if lines else "Record<string, never>"


def _name(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _comment(shape: Shape) -> str:
    text = " ".join(" ".join(each.split()) for each in (shape.title, shape.description) if each)
    closed = text.replace("*/", "* /")
    return f"/* {closed} */ " if text else ""


def _array(shape: Shape, schemas: Schemas, indent: str) -> str:
    rest = "unknown" if shape.items is None else type_of(shape.items, schemas.item(), indent)
    if not shape.prefix:
        return f"{_grouped(rest)}[]"
    # TypeScript lets no required item follow an optional one, which `min_items` never asks for.
    items = [
        _grouped(type_of(each, Schemas(), indent)) + ("" if place < shape.min_items else "?")
        for place, each in enumerate(shape.prefix)
    ]
    if shape.items is None or shape.items.types:
        items.append(f"...({rest})[]")
    return f"[{', '.join(items)}]"


def _grouped(kind: str) -> str:
    return f"({kind})" if "|" in kind else kind
