"""Loads the code of a derivation in TypeScript: one module, and the files that it imports.

Only files of the project are followed, by relative paths and by names of the import map; Deno finds libraries. Missing
files, and files outside the project, are reported by `deno check` with the position of their import.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from connectors.derive_typescript.config import MODULE_PATTERN, ImportedFile, ImportMap, Permissions, TypeScriptConfig
from connectors.module_kit.projects import is_within
from derive.document.pointer import JSON
from derive.errors import Issue
from derive.position import Script, reason_of, resolve, show
from derive.protocol.authoring import CatalogFiles, LocatedValue

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/|\ufeff", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")


def plain_json(text: str) -> str:
    """Replace comments and trailing commas by spaces, so that all other text keeps its position."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[1] else re.sub(r"[^\r\n]", " ", match[0])

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text))


def parse_jsonc(text: str) -> JSON:
    """Return the value of a text; None if the text is not JSON, with or without comments."""
    try:
        return json.loads(plain_json(text))
    except ValueError:
        return None


_IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*(["'])([^"'\n\\]+)\1""")
_SETTINGS = ("deno.json", "deno.jsonc")
_LIBRARY = ("npm:", "jsr:", "https:", "http:")
_RELATIVE = ("./", "../")
_GENERATED = "flow/"
"""Prefix of imports of generated types; each derivation gets its own."""


def is_code(path: str) -> bool:
    """Return whether a file is a module, by its name."""
    return re.search(MODULE_PATTERN, path) is not None


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
    """Resolve a specifier by an import map; of several matching entries, the longest entry is used."""
    fitting = [
        (name, to) for name, to in names if name == specifier or (name[-1:] == "/" and specifier.startswith(name))
    ]
    name, to = max(fitting, key=lambda entry: len(entry[0]), default=(specifier, specifier))
    return to + specifier[len(name) :]


def named_libraries(files: CatalogFiles, url: str) -> ImportMap:
    """Return the libraries that the `imports` of the nearest `deno.json` name.

    Args:
        files: loads the `deno.json`.
        url: URL of the file that contains the module; only a local file can have a `deno.json` in a folder above it.
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


def load_config(at: LocatedValue, files: CatalogFiles) -> TypeScriptConfig | None:
    """Return the configuration below `typescript`, with its files; None if some of them cannot be loaded.

    Args:
        at: value that is valid under `SCHEMA`.
        files: loads the files, and collects their issues.
    """
    fields = dict(at.items())
    listed = list(fields["files"].elements()) if "files" in fields else []
    code = fields.get("module") or next(file for file in listed if is_code(file.value))
    module = files.script(code, "the module", may_be_inline="module" in fields)
    written_in = _written_in(module, files) if module else resolve(files.url, code.value)
    settings = next((file for file in listed if posixpath.basename(file.value) in _SETTINGS), None)
    names = _names(settings, files, written_in) if settings else named_libraries(files, written_in)
    others = [_listed(file, files) for file in listed if file is not code and file is not settings]
    if module is None or names is None or None in others:
        return None
    return TypeScriptConfig(
        module=module,
        imports=imported_files(files, module, written_in, names, [url for url in others if url]),
        import_map=names,
        settings=resolve(files.url, settings.value) if settings else "",
        permissions=_permissions(fields.get("permissions"), files.url),
    )


def _permissions(at: LocatedValue | None, url: str) -> Permissions:
    if at is None or not at.value:
        return Permissions()
    net, read, env = (tuple(at.value.get(name, ())) for name in ("net", "read", "env"))
    folder = os.path.dirname(url) if os.path.isabs(url) else None
    return Permissions(net, tuple(resolve(url, path) for path in read), env, at.position, folder)


def _written_in(module: Script, files: CatalogFiles) -> str:
    """Return the URL of the file that contains a module's text: the module's own file, or the catalog's file."""
    shown = module.position.file
    return files.url if shown == show(files.url) else resolve(os.path.join(os.getcwd(), "_"), shown)


def _names(at: LocatedValue, files: CatalogFiles, written_in: str) -> ImportMap | None:
    """Return the import names of the settings; report an issue and return None if they cannot be read."""
    url = resolve(files.url, at.value)
    if not _is_ours(at, url, files):
        return None
    try:
        text = files.text(url)
    except OSError as exc:
        is_missing = isinstance(exc, FileNotFoundError)
        message = f"cannot load the settings {show(url)}: {reason_of(exc)}"
        hint = "write a first version: flowctl generate" if is_missing else None
        files.report(Issue("E003", message, at.position, hint), missing=url if is_missing else "")
        return None
    names = import_map(text, url, written_in)
    if names is None:
        message = f"{show(url)} is not valid: the file must be a JSON object, and its 'imports' a JSON object"
        files.report(Issue("E018", message, at.position))
    return names


def _listed(at: LocatedValue, files: CatalogFiles) -> str | None:
    """Return the URL of a file to be loaded with the module; report an issue and return None if it cannot be loaded."""
    url = resolve(files.url, at.value)
    if not _is_ours(at, url, files):
        return None
    try:
        files.content(url)
    except OSError as exc:
        files.report(Issue("E003", f"cannot load {show(url)}: {reason_of(exc)}", at.position))
        return None
    return url


def _is_ours(at: LocatedValue, url: str, files: CatalogFiles) -> bool:
    """Return whether a file is in the project's folder or remote; report an issue otherwise."""
    if not os.path.isabs(url) or is_within(url, files.root):
        return True
    message = f"{at.value} is not in the project's folder, {show(files.root)}"
    files.report(Issue("E535", message, at.position))
    return False
