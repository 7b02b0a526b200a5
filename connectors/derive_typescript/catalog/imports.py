"""Modules: find the files that a TypeScript module imports, so that they are loaded with it.

Only files of the project are followed, by relative paths and by names of the import map; Deno finds libraries. Missing
files, and files outside the project, are reported by `deno check` with the position of their import.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from connectors.derive_typescript.catalog.config import ImportedFile, ImportMap
from connectors.derive_typescript.catalog.schema import MODULE_PATTERN
from derive.document.jsonc import parse_jsonc
from derive.document.pointer import JSON
from derive.position import Script
from derive.protocol.authoring import CatalogFiles
from derive.protocol.resource import resolve

_IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*(["'])([^"'\n\\]+)\1""")
_SETTINGS = ("deno.json", "deno.jsonc")
_LIBRARY = ("npm:", "jsr:", "https:", "http:")
_RELATIVE = ("./", "../")
_GENERATED = "flow/"
"""Prefix of imports of generated types; each derivation gets its own."""


def is_settings(path: str) -> bool:
    """Return whether a file is Deno's settings, by its name."""
    return posixpath.basename(path) in _SETTINGS


def is_code(path: str) -> bool:
    """Return whether a file is a module, by its name."""
    return re.search(MODULE_PATTERN, path) is not None


def is_within(path: str, folder: str) -> bool:
    """Return whether a path leads below a folder after resolving symbolic links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def imported_files(
    files: CatalogFiles, module: Script, url: str, names: ImportMap = (), listed: Sequence[str] = ()
) -> tuple[ImportedFile, ...]:
    """Return the files that a module imports, directly or indirectly, sorted by path.

    Args:
        files: loads the files; local files outside the project's folder are not loaded.
        module: the module.
        url: URL of the file that contains the module.
        names: the import map.
        listed: URLs of files that are included whether they are imported or not.
    """
    folder = files.root if is_within(url, files.root) else os.path.dirname(url)
    imported: dict[str, ImportedFile] = {}
    pending = [posixpath.relpath(file, posixpath.dirname(url)) for file in listed]
    pending += _imports(module.text, ".", names)
    while pending:
        path = pending.pop()
        target = resolve(url, path)
        if path in imported:
            continue
        if target == url and module.source == module.text:  # the module itself, by its own name
            imported[path] = ImportedFile(path, None)
        elif os.path.isabs(target) and not is_within(target, folder):
            imported[path] = ImportedFile(path, None, outside=True)
        else:
            try:
                content = files.content(target)
            except OSError:
                continue
            imported[path] = ImportedFile(path, content)
            if is_code(path):
                pending += _imports(content.decode("utf-8", "replace"), path, names)
    return tuple(imported[path] for path in sorted(imported))


def _imports(text: str, path: str, names: ImportMap) -> list[str]:
    """Return paths, relative to the module's folder, of the files that code at `path` imports."""
    folder = posixpath.dirname(path)
    paths = []
    for statement in _IMPORT.finditer(text):
        specifier = statement[2]
        if specifier.startswith(_RELATIVE):
            paths.append(posixpath.join(folder, specifier))
        elif (target := _named(specifier, names)).startswith(_RELATIVE):
            paths.append(target)
    return [posixpath.normpath(path) for path in paths]


def _named(specifier: str, names: ImportMap) -> str:
    """Resolve a specifier by an import map; the longest matching name or folder counts."""
    fitting = [
        (name, to) for name, to in names if name == specifier or (name[-1:] == "/" and specifier.startswith(name))
    ]
    name, to = max(fitting, key=lambda entry: len(entry[0]), default=(specifier, specifier))
    return to + specifier[len(name) :]


def named_libraries(files: CatalogFiles, url: str) -> ImportMap:
    """Return the libraries that have names in the `imports` of the nearest `deno.json`.

    Args:
        files: loads the `deno.json`.
        url: URL of the file that contains the module; only a local file has a `deno.json` above it.
    """
    for folder in Path(url).parents if Path(url).is_absolute() else ():
        for name in _SETTINGS:
            try:
                value = parse_jsonc(files.content(str(folder / name)).decode("utf-8", "replace"))
            except OSError:
                continue
            return tuple((key, to) for key, to in _entries(value) or () if to.startswith(_LIBRARY))
    return ()


def import_map(text: str, settings: str, url: str) -> ImportMap | None:
    """Return the `imports` of settings, with paths from the module's folder; None if they are malformed.

    Args:
        text: text of the settings; empty if the file does not exist yet.
        settings: URL of the settings file.
        url: URL of the file that contains the module.
    """
    beside = posixpath.relpath(posixpath.dirname(settings), posixpath.dirname(url))
    entries = _entries(parse_jsonc(text or "{}"))
    if entries is None:
        return None
    return tuple((name, _moved(to, beside)) for name, to in entries if name != _GENERATED)


def _moved(target: str, beside: str) -> str:
    if not target.startswith(_RELATIVE):
        return target
    end = "/" if target.endswith("/") else ""
    return f"./{posixpath.normpath(posixpath.join(beside, target))}{end}"


def _entries(value: JSON) -> list[tuple[str, str]] | None:
    """Return the names of an import map with their targets, sorted; None if it is malformed."""
    imports = value.get("imports", {}) if isinstance(value, dict) else None
    if not isinstance(imports, dict):
        return None
    return sorted((name, to) for name, to in imports.items() if isinstance(to, str))
