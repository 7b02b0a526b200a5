"""The configuration of a derivation in TypeScript: its module, the files loaded, permissions, and its JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from connectors.module_kit import checks
from connectors.module_kit.checks import list_schema, permissions_schema
from derive.errors import Issue
from derive.position import Position, Script
from derive.protocol.authoring import CODE_OR_FILE
from derive.protocol.specs import DerivationSpec


@dataclass(frozen=True, slots=True)
class Permissions:
    """Permissions that an author asks for; none by default.

    Attributes:
        net: hosts, each with an optional port, that the module may connect to.
        read: files and folders that it may read.
        env: names of environment variables that it may read.
        position: position of the permissions in the catalog.
        folder: folder of the catalog file, if it is local; relative paths begin there.
    """

    net: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    position: Position | None = None
    folder: str | None = None

    def __bool__(self) -> bool:
        return bool(self.net or self.read or self.env)

    def __str__(self) -> str:
        parts = {"net": self.net, "read": self.read, "env": self.env}
        return ", ".join(f"{name} ({', '.join(values)})" for name, values in parts.items() if values)


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """A file that a module imports by a relative path.

    Attributes:
        path: path relative to the folder of the module, normalized, with slashes.
        content: bytes of the file; None if it was not loaded, or if it is the module itself, by its own name.
        outside: whether the file is outside the project's folder, and was not loaded.
    """

    path: str
    content: bytes | None
    outside: bool = False


ImportMap: TypeAlias = tuple[tuple[str, str], ...]
"""Prefixes of import names, each with its target: a library, or a path from the module's folder."""


@dataclass(frozen=True, slots=True)
class TypeScriptConfig:
    """The parts of a derivation in TypeScript.

    Attributes:
        module: the module.
        imports: files that it imports.
        import_map: names that imports use.
        settings: path of the `deno.json` that the catalog names; empty if it names none.
        permissions: permissions that the module asks for.
    """

    module: Script
    imports: tuple[ImportedFile, ...] = ()
    import_map: ImportMap = ()
    settings: str = ""
    permissions: Permissions = field(default_factory=Permissions)


def config_of(spec: DerivationSpec) -> TypeScriptConfig:
    """Return the configuration of a derivation in TypeScript."""
    config: TypeScriptConfig = spec.connector_config
    return config


def refusal_of(spec: DerivationSpec) -> Issue | None:
    """Return an issue if the module asks for permissions that the run does not grant; otherwise None."""
    return checks.refusal_of(spec, config_of(spec).permissions)


def module_of(spec: DerivationSpec) -> Script:
    """Return the module of a derivation in TypeScript."""
    return config_of(spec).module


MODULE_PATTERN = r"\.(ts|mts|tsx|js|mjs|jsx)$"
"""Suffixes of files with code."""


_PATTERN = r"^[^\s,*][^,*]*$"
"""Pattern of items, because Deno takes a list separated by commas, and an empty list would allow everything."""

_PERMISSIONS = permissions_schema(
    net=list_schema("Hosts to connect to, with or without a port.", "a host such as 'example.com:443'", _PATTERN),
    path_pattern=_PATTERN,
)

_FILES = {
    "type": "array",
    "description": "Files in place of 'module'. The first file with code is the module. The module may import the"
    " names in the 'imports' of a 'deno.json'. The other files travel with the module.",
    "items": {"type": "string", "description": "A file, relative to this one.", "title": "File"},
    "contains": {"type": "string", "pattern": MODULE_PATTERN},
    "errorMessage": "'files' is an array of paths, one of them of a module such as 'mod.ts'",
    "x-code": "E018",
}

SCHEMA = {
    "title": "TypeScript",
    "description": "Lambdas are methods of a TypeScript class, run by Deno.",
    "type": "object",
    "properties": {
        "module": {
            "type": "string",
            "description": f"The module, whose class `Derivation` has a method per transform. {CODE_OR_FILE}",
        },
        "files": _FILES,
        "permissions": _PERMISSIONS,
    },
    "patternProperties": {"^x-": True},
    "additionalProperties": False,
    "if": {"type": "object"},
    "then": {
        "anyOf": [{"required": ["module"]}, {"required": ["files"]}],
        "errorMessage": "a derivation in TypeScript needs 'module' or 'files'",
        "x-code": "E018",
    },
}
