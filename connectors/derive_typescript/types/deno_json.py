"""A project's `deno.json`, which tells editors where the generated types are.

It is written where there is none. One that is there is its author's: it is never edited, and what is missing in it is
told.
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
"""The name, in the import map, of the folder of generated types."""

_FILES = ("deno.json", "deno.jsonc")


@dataclass(frozen=True, slots=True)
class Settings:
    """What becomes of the file.

    Attributes:
        path: of the file.
        text: what it is to hold, which is what it holds if it is there; None to leave it alone.
        note: what the author has to do, if anything.
    """

    path: Path
    text: str | None
    note: str | None = None


def settings_of(root: Path, named: str = "") -> Settings:
    """The project's `deno.json` (or `deno.jsonc`), which is to have an entry for the generated types.

    Args:
        root: of the project.
        named: path of the file that the catalog names; without one it is in the root.

    Raises:
        FlowError: it is there and cannot be read.
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
    """Why editors cannot find the types by a file that holds this; None if they can."""
    imports = value.get("imports", {}) if isinstance(value, dict) else None
    if not isinstance(imports, dict):
        return "is not understood"
    if imports.get(NAME) == target:
        return None
    if NAME in imports:
        return f"has another place for it, {json.dumps(imports[NAME])}"
    return f"has its imports in {json.dumps(value['importMap'])}" if "importMap" in value else "does not have it"
