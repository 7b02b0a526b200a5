"""A project's `deno.json`, which points editors to the generated types.

The file is written if it does not exist. An existing file belongs to the author: it is never edited, and missing
entries are reported.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from derive.document.jsonc import parse_jsonc
from derive.document.pointer import JSON
from derive.errors import FlowError
from derive.protocol.authoring import GENERATED_FOLDER

NAME = "flow/"
"""The import map's name for the folder of generated types."""

_FILES = ("deno.json", "deno.jsonc")


@dataclass(frozen=True, slots=True)
class Settings:
    """The planned content of the file.

    Attributes:
        path: path of the file.
        text: content to write, equal to the existing content if the file is complete; None to leave it alone.
        note: an action for the author, if needed.
    """

    path: Path
    text: str | None
    note: str | None = None


def settings_of(root: Path, named: str = "") -> Settings:
    """Return the project's `deno.json` (or `deno.jsonc`), which needs an entry for the generated types.

    Args:
        root: folder of the project.
        named: path of the file that the catalog names; empty for the one in the root.

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
    """Return why editors cannot find the types with this content; None if they can."""
    imports = value.get("imports", {}) if isinstance(value, dict) else None
    if not isinstance(imports, dict):
        return "is not understood"
    if imports.get(NAME) == target:
        return None
    if NAME in imports:
        return f"has another place for it, {json.dumps(imports[NAME])}"
    return f"has its imports in {json.dumps(value['importMap'])}" if "importMap" in value else "does not have it"
