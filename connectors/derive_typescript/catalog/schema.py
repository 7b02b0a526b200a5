"""The JSON Schema of a catalog's value below `using: {typescript: …}`."""

from __future__ import annotations

from typing import Any

from derive.protocol.authoring import CODE_OR_FILE

MODULE_PATTERN = r"\.(ts|mts|tsx|js|mjs|jsx)$"
"""Suffixes of files with code."""


def _list_of(description: str, item: str, pattern: str = r"^[^\s,*][^,*]*$") -> dict[str, Any]:
    # Deno takes a list separated by commas, and an empty list would allow everything.
    desired = {"type": "string", "description": f"This is {item}.", "pattern": pattern}
    fault = {"errorMessage": f"this is not {item}", "x-code": "E017"}
    return {"type": "array", "description": description, "items": {**desired, **fault}}


_PERMISSIONS = {
    "title": "Permissions",
    "description": "What the module may touch outside its sandbox, if `flowctl run` is given `--allow-permissions`.",
    "type": "object",
    "properties": {
        "net": _list_of("Hosts, each perhaps with a port, to connect to.", "a host such as 'example.com:443'"),
        "read": _list_of("Files and folders to read.", "the path of a file or folder"),
        "env": _list_of(
            "Environment variables to read.", "the name of an environment variable", r"^[A-Za-z_][A-Za-z0-9_]*$"
        ),
    },
    "patternProperties": {"^x-": True},
    "additionalProperties": False,
}

_FILES = {
    "type": "array",
    "description": "Files in place of 'module'. The first with code is the module; the 'imports' of a 'deno.json'"
    " are names for what it imports; others travel with it.",
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
