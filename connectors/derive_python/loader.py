"""Loads the code of a derivation in Python: one module, and the files of its project that it imports.

A module imports a file of its project by its path from the import root, or by a relative import. All other names are
libraries of the Python environment.
"""

from __future__ import annotations

import ast
import os
import posixpath
from collections.abc import Iterator
from contextlib import suppress

from connectors.derive_python.config import Permissions, ProjectFile, PythonConfig
from connectors.derive_python.environment import LOCKS, PROJECT, find_fault
from connectors.module_kit.projects import is_within
from derive.errors import Issue
from derive.position import reason_of, resolve, show
from derive.protocol.authoring import CatalogFiles, LocatedValue

_INLINE = "derivation.py"
"""Path of a module that is written in the catalog."""


def load_config(at: LocatedValue, files: CatalogFiles) -> PythonConfig | None:
    """Return the configuration below `python`, with its files; None if some of them cannot be loaded.

    Args:
        at: value that is valid under `SCHEMA`.
        files: loads the files, and collects their issues.
    """
    fields = dict(at.items())
    listed = list(fields["files"].elements()) if "files" in fields else []
    code = fields.get("module") or next(file for file in listed if file.value.endswith(".py"))
    module = files.script(code, "the module", may_be_inline="module" in fields)
    if module is None:
        return None
    is_inline = "module" in fields and module.source != module.text
    is_inline = is_inline or module.position.file == show(files.url)
    url = files.url if is_inline else resolve(files.url, code.value)
    project = next((file.value for file in listed if posixpath.basename(file.value) == PROJECT), None)
    anchor = resolve(files.url, project) if project else (files.url if listed else url)
    root = posixpath.dirname(anchor)
    others = [_listed(file, root, files) for file in listed if file is not code]
    path = _INLINE if is_inline else _path(url, root)
    if path is None:
        message = f"{code.value} is not below the folder of {PROJECT}"
        files.report(Issue("E535", message, code.position, "list the pyproject.toml of the outermost folder"))
    if path is None or None in others:
        return None
    given = {file.path: file for file in others if file is not None}
    if project and (fault := find_fault(given[PROJECT].content, show(anchor))):
        files.report(fault)
        return None
    given |= _locks(root, files) if project else {}
    return PythonConfig(
        module=module,
        path=path,
        files=tuple(_imported(files, module.text, path, root, given)),
        folder="" if is_inline else root,
        config=fields["config"].value if "config" in fields else None,
        config_schema=_config_schema(fields),
        interpreter=_interpreter(fields, files),
        permissions=_permissions(fields.get("permissions"), files.url),
        models=fields["models"].value if "models" in fields else "pydantic",
    )


def _config_schema(fields: dict[str, LocatedValue]) -> object:
    return fields["spec"].value.get("configSchema", True) if "spec" in fields else True


def _interpreter(fields: dict[str, LocatedValue], files: CatalogFiles) -> str:
    if "python" not in fields:
        return ""
    text: str = fields["python"].value
    return resolve(files.url, text) if "/" in text else text


def _permissions(at: LocatedValue | None, url: str) -> Permissions:
    if at is None or not at.value:
        return Permissions()
    read = tuple(resolve(url, path) for path in at.value.get("read", ()))
    return Permissions(bool(at.value.get("net")), read, tuple(at.value.get("env", ())), at.position)


def _path(url: str, root: str) -> str | None:
    """Return the path of a file from the root; None if the file is elsewhere."""
    path = posixpath.relpath(url, root)
    return None if path.startswith("../") else path


def _listed(at: LocatedValue, root: str, files: CatalogFiles) -> ProjectFile | None:
    """Return a listed file; report an issue and return None if it cannot be loaded."""
    url = resolve(files.url, at.value)
    path = _path(url, root)
    if path is None:
        files.report(Issue("E535", f"{at.value} is not below the folder {show(root)}", at.position))
        return None
    try:
        return ProjectFile(path, files.content(url))
    except OSError as exc:
        files.report(Issue("E003", f"cannot load {show(url)}: {reason_of(exc)}", at.position))
        return None


def _locks(root: str, files: CatalogFiles) -> dict[str, ProjectFile]:
    """Return the file with exact versions of libraries beside pyproject.toml, by path; empty without one."""
    for name in LOCKS:
        url = posixpath.join(root, name)
        if os.path.isabs(url) and os.path.isfile(url):
            with suppress(OSError):
                return {name: ProjectFile(name, files.content(url))}
    return {}


def _imported(files: CatalogFiles, text: str, path: str, root: str, given: dict[str, ProjectFile]) -> list[ProjectFile]:
    """Return the listed files and all files that they and the module import, sorted by path."""
    loaded = dict(given)
    pending = [*_packages(path), *_candidates(text, path)]
    for file in given.values():
        if file.path.endswith(".py"):
            pending += _candidates(file.content.decode("utf-8", "replace"), file.path)
    absent = {path}
    while pending:
        candidate = pending.pop()
        if candidate in loaded or candidate in absent:
            continue
        url = posixpath.join(root, candidate)
        content = None
        if not os.path.isabs(url) or (os.path.isfile(url) and is_within(url, files.root)):
            with suppress(OSError):
                content = files.content(url)
        if content is None:
            absent.add(candidate)
            continue
        loaded[candidate] = ProjectFile(candidate, content)
        pending += [*_packages(candidate), *_candidates(content.decode("utf-8", "replace"), candidate)]
    return [loaded[name] for name in sorted(loaded)]


def _candidates(text: str, path: str) -> Iterator[str]:
    """Yield the paths that the imports of a Python file may mean."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = path.split("/")[: -node.level] if node.level else []
            names = [*base, *(node.module.split(".") if node.module else ())]
            yield from _files_of(names)
            for alias in node.names:
                yield from _files_of([*names, alias.name])


def _packages(path: str) -> Iterator[str]:
    """Yield the first files of the packages around a module."""
    folders = path.split("/")[:-1]
    for count in range(1, len(folders) + 1):
        yield f"{'/'.join(folders[:count])}/__init__.py"


def _files_of(names: list[str]) -> Iterator[str]:
    for count in range(1, len(names) + 1):
        folder = "/".join(names[:count])
        yield f"{folder}.py"
        yield f"{folder}/__init__.py"
