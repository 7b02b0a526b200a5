"""Files for the authors of modules: types of documents, a stub of the module, and `deno.json` for editors.

`deno.json` is written if it does not exist. An existing file belongs to the author, so it is not edited, and missing
entries are reported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from connectors.derive_typescript.config import module_of
from connectors.derive_typescript.declaration import declare, member
from connectors.derive_typescript.loader import parse_jsonc
from connectors.module_kit.named_schemas import camel, type_name
from derive.document.pointer import JSON
from derive.errors import FlowError
from derive.protocol.authoring import GENERATED, GENERATED_FOLDER, GeneratedFile, stub_file
from derive.protocol.specs import DerivationSpec

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
"""The import map's name for the folder of generated types."""

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
