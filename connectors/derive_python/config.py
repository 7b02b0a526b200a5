"""The configuration of a derivation in Python: its module, its files, settings, permissions, and the JSON Schema."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from urllib.parse import urljoin

from connectors.module_kit import checks
from connectors.module_kit.checks import permissions_schema
from derive.document.pointer import JSON
from derive.errors import Issue
from derive.position import Position, Script
from derive.protocol.authoring import CODE_OR_FILE
from derive.protocol.specs import DerivationSpec


@dataclass(frozen=True, slots=True)
class Permissions:
    """Permissions that an author asks for; none by default.

    Attributes:
        net: true to use the network.
        read: files and folders that the module may read.
        env: names of environment variables that it may read.
        position: position of the permissions in the catalog.
    """

    net: bool = False
    read: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    position: Position | None = None

    def __bool__(self) -> bool:
        return bool(self.net or self.read or self.env)

    def __str__(self) -> str:
        parts = [*(["net"] if self.net else ())]
        parts += [
            f"{name} ({', '.join(values)})" for name, values in (("read", self.read), ("env", self.env)) if values
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """A file that travels with a module.

    Attributes:
        path: path relative to the import root of the project, with slashes.
        content: bytes of the file.
    """

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class PythonConfig:
    """The parts of a derivation in Python.

    Attributes:
        module: the module with the class `Derivation`.
        path: path of the module relative to the import root of the project, with slashes.
        files: the other files of the project.
        folder: folder from which authors know the import root; empty for an inline module.
        config: the value of `config`.
        config_schema: the value of `spec.configSchema`; true without one.
        interpreter: path of a Python interpreter; empty for the one that runs `flowctl`.
        permissions: permissions that the module asks for.
        models: library of the models of documents, `pydantic` or `msgspec`.
    """

    module: Script
    path: str
    files: tuple[ProjectFile, ...] = ()
    folder: str = ""
    config: JSON = None
    config_schema: JSON = True
    interpreter: str = ""
    permissions: Permissions = field(default_factory=Permissions)
    models: str = "pydantic"


def config_of(spec: DerivationSpec) -> PythonConfig:
    """Return the configuration of a derivation in Python."""
    config: PythonConfig = spec.connector_config
    return config


def module_of(spec: DerivationSpec) -> Script:
    """Return the module of a derivation in Python."""
    return config_of(spec).module


def shown_path(config: PythonConfig, path: str) -> str:
    """Return the path by which the author knows a file of the project.

    Args:
        config: configuration of the module.
        path: path of the file relative to the import root.
    """
    shown = config.module.position.file
    if path == config.path:
        return shown
    beside = posixpath.relpath(path, posixpath.dirname(config.path) or ".")
    if "://" in shown:
        return urljoin(shown, beside)
    return posixpath.normpath(posixpath.join(posixpath.dirname(shown), beside))


def refusal_of(spec: DerivationSpec) -> Issue | None:
    """Return an issue if the module asks for permissions that the run does not grant; otherwise None."""
    return checks.refusal_of(spec, config_of(spec).permissions)


_PERMISSIONS = permissions_schema(
    net={"type": "boolean", "description": "True if the module may use the network."}, path_pattern=r"^\S"
)

SCHEMA = {
    "title": "Python",
    "description": "Lambdas are methods of a Python class, run in a process of its own.",
    "type": "object",
    "properties": {
        "module": {
            "type": "string",
            "description": f"The module, whose class `Derivation` has a method per transform. {CODE_OR_FILE}",
        },
        "files": {
            "type": "array",
            "description": "Files in place of 'module'. The first Python file is the module; the others travel with it."
            " The folder of a 'pyproject.toml' is the root of imports, and its dependencies are the libraries.",
            "items": {"type": "string", "description": "A file, relative to this one.", "title": "File"},
            "contains": {"type": "string", "pattern": r"\.py$"},
            "errorMessage": "'files' is an array of paths, one of them of a module such as 'mod.py'",
            "x-code": "E018",
        },
        "config": {"description": "Settings, the second argument of the class.", "type": "object"},
        "spec": {
            "title": "Specification",
            "description": "A description of the settings.",
            "type": "object",
            "properties": {"configSchema": {"description": "JSON Schema of 'config'.", "type": ["object", "boolean"]}},
            "patternProperties": {"^x-": True},
            "additionalProperties": False,
        },
        "python": {
            "type": "string",
            "description": "Path of a Python interpreter, 3.11 or later, whose environment has pydantic.",
            "minLength": 1,
        },
        "models": {
            "enum": ["pydantic", "msgspec"],
            "default": "pydantic",
            "description": "Library of the models of documents. Structs of msgspec are faster, and omit properties"
            " that the schema does not name.",
        },
        "permissions": _PERMISSIONS,
    },
    "patternProperties": {"^x-": True},
    "additionalProperties": False,
    "if": {"type": "object"},
    "then": {
        "anyOf": [{"required": ["module"]}, {"required": ["files"]}],
        "errorMessage": "a derivation in Python needs 'module' or 'files'",
        "x-code": "E018",
    },
}
