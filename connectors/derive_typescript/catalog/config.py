"""The configuration of a derivation in TypeScript: its module, with all that travels with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from connectors.derive_typescript.catalog.permissions import Permissions
from derive.errors import Issue
from derive.position import Script
from derive.protocol.specs import DerivationSpec


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """A file that a module imports from beside it.

    Attributes:
        path: relative to the folder of the module, normalized, with slashes.
        content: its bytes; None if it is the module itself, by its own name, or was not loaded.
        outside: it is not in the project's folder, and was not loaded.
    """

    path: str
    content: bytes | None
    outside: bool = False


ImportMap: TypeAlias = tuple[tuple[str, str], ...]
"""Names that imports may begin with, each with what it stands for: a library, or a path from the module's folder."""


@dataclass(frozen=True, slots=True)
class TypeScriptConfig:
    """What a derivation in TypeScript consists of.

    Attributes:
        module: the module.
        imports: files that it imports.
        import_map: names that imports use.
        settings: path of the `deno.json` that the catalog names; empty if it names none.
        permissions: what the module asks to be allowed.
    """

    module: Script
    imports: tuple[ImportedFile, ...] = ()
    import_map: ImportMap = ()
    settings: str = ""
    permissions: Permissions = field(default_factory=Permissions)


def config_of(spec: DerivationSpec) -> TypeScriptConfig:
    """The configuration of a derivation in TypeScript."""
    config: TypeScriptConfig = spec.connector_config
    return config


def refusal_of(spec: DerivationSpec) -> Issue | None:
    """What is wrong if the module asks for permissions that the run does not give; None if nothing is."""
    permissions = config_of(spec).permissions
    if not permissions or spec.limits.allows_permissions:
        return None
    message = f"the module of '{spec.name}' asks for permissions: {permissions}"
    hint = "if you trust it, add --allow-permissions"
    return Issue("E534", message, permissions.position or spec.collection.position, hint)


def module_of(spec: DerivationSpec) -> Script:
    """The module of a derivation in TypeScript."""
    return config_of(spec).module
