"""TypeScript types of documents, from the shapes of their schemas."""

from __future__ import annotations

import json
import re

from derive.protocol.specs import DerivationSpec
from derive.schema.infer import infer
from derive.schema.shape import ALL, Shape

_IDENTIFIER = re.compile(r"[^\W\d]\w*")


def method_of(transform: str) -> str:
    """Name of the method that implements a transform: lower camel case."""
    name = camel(transform)
    return name[:1].lower() + name[1:]


def camel(name: str) -> str:
    """A name in upper camel case: what is neither letter nor digit goes, and the letter behind it is raised."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name))


def type_of(shape: Shape, indent: str = "") -> str:
    """The TypeScript type of a shape.

    Args:
        shape: what is known of the location.
        indent: of the line the type begins on.
    """
    if not shape.types:
        return "never"
    if shape.types == ALL:
        return "unknown"
    parts = []
    if "object" in shape.types:
        parts.append(_object(shape, indent))
    if "array" in shape.types:
        parts.append(_array(shape, indent))
    for kind, name in (("boolean", "boolean"), ("integer", "number"), ("fractional", "number"), ("string", "string")):
        if kind in shape.types and name not in parts:
            parts.append(name)
    if "null" in shape.types:
        parts.append("null")
    return " | ".join(parts)


def _object(shape: Shape, indent: str) -> str:
    if not shape.properties and (shape.additional is None or shape.additional.types == ALL):
        return "Record<string, unknown>"
    inner = indent + "    "
    lines = []
    types = []
    for name in sorted(shape.properties):
        optional = "" if name in shape.required else "?"
        written = name if _IDENTIFIER.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        kind = type_of(shape.properties[name], inner)
        types.append(kind if not optional else f"{kind} | undefined")
        lines.append(f"{inner}{_comment(shape.properties[name])}{written}{optional}: {kind};")
    if shape.additional is not None and shape.additional.types:
        union = " | ".join(dict.fromkeys([*types, type_of(shape.additional, inner)]))
        lines.append(f"{inner}[k: string]: {union};")
    return "{\n" + "\n".join(lines) + f"\n{indent}}}"


def _comment(shape: Shape) -> str:
    text = " ".join(each.strip() for each in (shape.title, shape.description) if each).replace("*/", "*\\/")
    return f"/* {text} */ " if text else ""


def _array(shape: Shape, indent: str) -> str:
    rest = "unknown" if shape.items is None else type_of(shape.items, indent)
    if not shape.prefix:
        return f"({rest})[]" if "|" in rest else f"{rest}[]"
    items = [
        type_of(each, indent) + ("" if place < shape.min_items else "?") for place, each in enumerate(shape.prefix)
    ]
    if shape.items is None or shape.items.types:
        items.append(f"...({rest})[]")
    return f"[{', '.join(items)}]"


def generate_interfaces(spec: DerivationSpec) -> str:
    """The module that a derivation's own module imports from: its types, and the class it extends."""
    parts = [
        f"// Types of the derivation {spec.name}, generated from the schemas of its collections.",
        f"export type Document = {type_of(infer(spec.collection.write_schema))};",
    ]
    methods = []
    for each in spec.transforms:
        source = infer(spec.sources[each.source].read_schema)
        parts.append(f"export type Source{camel(each.name)} = {type_of(source)};")
        methods.append(
            f"    abstract {method_of(each.name)}(read: {{ doc: Source{camel(each.name)} }}):"
            " Document[] | Promise<Document[]>;"
        )
    body = "\n".join(methods)
    parts.append(f"export abstract class IDerivation {{\n{body}\n}}")
    return "\n\n".join(parts) + "\n"
