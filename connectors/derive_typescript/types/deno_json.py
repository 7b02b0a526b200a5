"""A project's `deno.json`, which tells editors where the generated types are.

The file is its author's: an entry is inserted into the text, and everything else, comments included, stays as it is.
Where that cannot be done safely nothing is done, and the author is told what to add.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from derive.document.jsonc import parse_jsonc, plain_json
from derive.document.pointer import JSON
from derive.errors import FlowError
from derive.protocol.authoring import GENERATED_FOLDER

NAME = "flow/"
"""The name, in the import map, of the folder of generated types."""

_FILES = ("deno.json", "deno.jsonc")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(rf"{_STRING}|[{{}}\[\]:,]")


@dataclass(frozen=True, slots=True)
class Settings:
    """What becomes of the file.

    Attributes:
        path: of the file.
        text: what it is to hold; None to leave it alone.
        note: what the author has to do, if anything.
    """

    path: Path
    text: str | None
    note: str | None = None


def extend_settings(root: Path, named: str = "") -> Settings:
    """The project's `deno.json` (or `deno.jsonc`) with an entry for the generated types.

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
        return _left_alone(path, target, "is not UTF-8 text")
    reason = _obstacle(parse_jsonc(text), target)
    if reason is not None:
        return _left_alone(path, target, reason)
    value = parse_jsonc(text)
    if value.get("imports", {}).get(NAME) == target:
        return Settings(path, text)
    extended = _insert(text, target, has_imports="imports" in value)
    if parse_jsonc(extended) != {**value, "imports": {**value.get("imports", {}), NAME: target}}:
        return _left_alone(path, target, "is not understood")
    return Settings(path, extended)


def _obstacle(value: JSON, target: str) -> str | None:
    """Why nothing can be added to a file that holds this; None if something can, or need not."""
    imports = value.get("imports", {}) if isinstance(value, dict) else None
    if not isinstance(imports, dict):
        return "is not understood"
    if imports.get(NAME, target) != target:
        return f"has another place for it, {json.dumps(imports[NAME])}"
    return f"has its imports in {json.dumps(value['importMap'])}" if "importMap" in value else None


def _left_alone(path: Path, target: str, why: str) -> Settings:
    return Settings(
        path, None, f'for editors to find the types, add "{NAME}": "{target}" to "imports": {path.name} {why}'
    )


def _insert(text: str, target: str, *, has_imports: bool) -> str:
    """The text with the entry inserted at the beginning of the object it belongs to."""
    plain = plain_json(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = re.search(r"\n([ \t]+)\S", plain)
    step = indent[1] if indent else "    "
    entry = f"{json.dumps(NAME)}: {json.dumps(target)}"
    depth = 2
    begin = _imports_begin(plain) if has_imports else plain.index("{") + 1
    if not has_imports:
        entry = f'"imports": {{{newline}{step * 2}{entry}{newline}{step}}}'
        depth = 1
    inserted = newline + step * depth + entry
    before_end, brace, _ = plain[begin:].partition("}")
    if not brace or before_end.strip():
        inserted += ","
    elif "\n" not in before_end:
        inserted += newline + step * (depth - 1)
    return text[:begin] + inserted + text[begin:]


def _imports_begin(plain: str) -> int:
    """Index behind the opening brace of the root's `imports`."""
    return next(end for name, end in _members(plain) if name == "imports")


def _members(plain: str) -> Iterator[tuple[str, int]]:
    """Names of the root's members whose values are objects, each with the index behind its opening brace."""
    depth = 0
    name = ""
    for token in _TOKEN.finditer(plain):
        if token[0] in "{[":
            if depth == 1 and token[0] == "{":
                yield name, token.end()
            depth += 1
        elif token[0] in "}]":
            depth -= 1
        elif depth == 1 and token[0].startswith('"'):
            name = json.loads(token[0])
