"""The configuration of a derivation in TypeScript: its module and the files loaded with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from connectors.derive_typescript.catalog.permissions import Permissions
from derive.errors import Issue
from derive.position import Script
from derive.protocol.specs import DerivationSpec


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """A file that a module imports by a relative path.

    Attributes:
        path: path relative to the folder of the module, normalized, with slashes.
        content: bytes of the file; None if it is the module itself, by its own name, or was not loaded.
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
    permissions = config_of(spec).permissions
    if not permissions or spec.limits.allows_permissions:
        return None
    message = f"the module of '{spec.name}' asks for permissions: {permissions}"
    hint = "if you trust it, add --allow-permissions"
    return Issue("E534", message, permissions.position or spec.collection.position, hint)


def module_of(spec: DerivationSpec) -> Script:
    """Return the module of a derivation in TypeScript."""
    return config_of(spec).module
