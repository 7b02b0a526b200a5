"""Files for the authors of modules: types of documents, a stub of the module, and `deno.json` for editors.

`deno.json` is written if it does not exist. An existing file belongs to the author, so it is not edited, and missing
entries are reported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from connectors.derive_typescript.config import module_of
from connectors.derive_typescript.loader import parse_jsonc
from connectors.module_kit.named_schemas import camel, endless_names, named_shapes, type_name
from derive.document.pointer import JSON
from derive.errors import FlowError
from derive.protocol.authoring import GENERATED, GENERATED_FOLDER, GeneratedFile, stub_file
from derive.protocol.specs import DerivationSpec
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


RESERVED = ("constructor", "flush", "reset", "startCommit")
"""Members of the class that the runtime uses; the method of a transform must not have these names."""

_MEMBERS = """\
    constructor(_open: { state: unknown }) {}

    /** Called at the end of each tick in which documents were processed: the returned documents are published, too. */
    flush(): Document[] | Promise<Document[]> {
        return [];
    }

    /** Called at the end of a transaction: the next constructor gets the returned state. */
    startCommit(_startCommit: { runtimeCheckpoint: unknown }): State | Promise<State> {
        return {};
    }

    /** Called between catalog tests, to forget everything. */
    reset(): void | Promise<void> {}
""".replace("State", "{ state?: { updated: unknown; mergePatch: boolean } }")


def method_of(transform: str) -> str:
    """Return the name of the method that implements a transform: lower camel case."""
    name = camel(transform)
    return name[:1].lower() + name[1:]


def source_of(transform: str) -> str:
    """Return the name of the type of the documents that a transform reads."""
    return type_name(f"Source{camel(transform)}")


def generate_interfaces(spec: DerivationSpec) -> str:
    """Return the interfaces module of a derivation: its types, and the base class of the derivation's class."""
    taken = {"Document", "IDerivation", *(source_of(transform.name) for transform in spec.transforms)}
    parts = [
        f"// {GENERATED} from the schemas of {spec.name} and of its sources: changes in this file are lost.",
        *declare(spec.collection.write_schema, "Document", taken),
    ]
    methods = [_MEMBERS]
    for transform in spec.transforms:
        source = source_of(transform.name)
        parts += declare(spec.sources[transform.input.source].read_schema, source, taken)
        read = f"{{ doc: {source}; publishedAt: string }}"
        methods.append(
            f"    abstract {member(method_of(transform.name))}(read: {read}): Document[] | Promise<Document[]>;"
        )
    body = "\n".join(methods)
    parts.append(f"export abstract class IDerivation {{\n{body}\n}}")
    return "\n\n".join(parts) + "\n"


def module_stubs(spec: DerivationSpec, missing: Collection[str]) -> list[GeneratedFile]:
    """Return the stub of the derivation's module, if it is missing.

    Args:
        spec: the derivation.
        missing: absolute paths.
    """
    return stub_file(module_of(spec), missing, module_stub(spec))


def module_stub(spec: DerivationSpec) -> str:
    """Return a class with a method for each transform, all unimplemented."""
    imported = ["Document", "IDerivation", *(source_of(transform.name) for transform in spec.transforms)]
    names = f" {', '.join(imported)} "
    if len(names) > 80:
        names = "".join(f"\n    {name}," for name in imported) + "\n"
    methods = [
        f"    {member(method_of(transform.name))}(read: {{ doc: {source_of(transform.name)} }}): Document[] {{\n"
        "        throw new Error('Not implemented');\n"
        "    }\n"
        for transform in spec.transforms
    ]
    return (
        f"import {{{names}}} from 'flow/{spec.name}.ts';\n\n"
        f"// Implementation for derivation {spec.name}.\n"
        f"export class Derivation extends IDerivation {{\n{chr(10).join(methods)}}}\n"
    )


NAME = "flow/"
"""Name of the folder of generated types in the import map."""

_FILES = ("deno.json", "deno.jsonc")


@dataclass(frozen=True, slots=True)
class Settings:
    """The planned content of the file.

    Attributes:
        path: path of the file.
        text: content to write, equal to the existing content if the file is complete; None to leave the file unchanged.
        note: an action for the author, if needed.
    """

    path: Path
    text: str | None
    note: str | None = None


def settings_of(root: Path, named: str = "") -> Settings:
    """Return the project's `deno.json` (or `deno.jsonc`), which needs an entry for the generated types.

    Args:
        root: folder of the project.
        named: path of the file that the catalog names; empty for the file in the root.

    Raises:
        FlowError: the file exists and cannot be read.
    """
    path = Path(named) if named else next((root / name for name in _FILES if (root / name).exists()), root / _FILES[0])
    to_root = os.path.relpath(root, path.parent)
    target = f"{'.' if to_root == '.' else to_root}/{GENERATED_FOLDER}/typescript/"
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return Settings(path, json.dumps({"imports": {NAME: target}}, indent=4) + "\n")
    except OSError as exc:
        raise FlowError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError:
        reason: str | None = "is not UTF-8 text"
    else:
        reason = _what_is_missing(parse_jsonc(text), target)
        if reason is None:
            return Settings(path, text)
    note = f'for editors to find the types, add "{NAME}": "{target}" to "imports": {path.name} {reason}'
    return Settings(path, None, note)


def _what_is_missing(value: JSON, target: str) -> str | None:
    """Return the reason why editors cannot find the types with this `deno.json`; None if they can."""
    imports = value.get("imports", {}) if isinstance(value, dict) else None
    if not isinstance(imports, dict):
        return "has no object of imports"
    if imports.get(NAME) == target:
        return None
    if NAME in imports:
        return f"maps this name to {json.dumps(imports[NAME])}"
    return f"has its imports in {json.dumps(value['importMap'])}" if "importMap" in value else "lacks this name"
