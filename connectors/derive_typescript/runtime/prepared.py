"""Projects that are ready to run: their import graph is checked, and their libraries are cached.

Deno loads any file that an import names, without permission, and its type checker shows parts of the file. So the graph
is checked before a module is checked, fetched for, or run.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from connectors.derive_typescript.config import config_of, module_of
from connectors.derive_typescript.runtime.command import cache_folder, run_deno
from connectors.derive_typescript.runtime.project import (
    AUTHOR,
    CHECK,
    FOLDER,
    GUARDED,
    INTERFACES,
    MODULE,
    PREFIX,
    UNGUARDED,
    authored,
    path_of,
    place_in,
    position_in,
    write_project,
)
from derive.errors import Issue, LambdaError, TaskError
from derive.position import Position
from derive.protocol.specs import DerivationSpec

_ELSEWHERE = ("npm", "jsr", "https", "http", "node", "data")
_HINT = "a module imports files of its own project, and libraries"


@dataclass(frozen=True, slots=True)
class Graph:
    """The import graph of one module.

    Attributes:
        issues: E535 issues, imports of files outside the project.
        complete: whether all imported modules exist.
    """

    issues: tuple[Issue, ...]
    complete: bool


def look_into(projects: Mapping[Path, DerivationSpec], root: Path) -> list[Graph]:
    """Return the import graph of each module, without fetching anything.

    Args:
        projects: derivations by project folder.
        root: a file that imports each folder's `CHECK`.
    """
    run = run_deno(["info", "--json", "--quiet", root.name], root.parent)
    try:
        answer = orjson.loads(run.stdout)
    except orjson.JSONDecodeError:
        return [_failure(spec, run.stderr) for spec in projects.values()]
    modules = {module["specifier"]: module for module in answer["modules"]}
    return [_Walk(modules, answer["redirects"], folder, spec).graph() for folder, spec in projects.items()]


def _failure(spec: DerivationSpec, said: str) -> Graph:
    module = module_of(spec)
    message = f"'deno info' failed: {authored(module, said.strip()[-500:])}"
    return Graph((Issue("E531", message, module.position),), complete=False)


class _Walk:
    """A traversal from one project's module along its imports."""

    def __init__(
        self, modules: Mapping[str, Any], redirects: Mapping[str, str], folder: Path, spec: DerivationSpec
    ) -> None:
        self._modules = modules
        self._redirects = redirects
        self._spec = spec
        self._module = module_of(spec)
        self._folder = os.path.realpath(folder)
        self._left_out = {path_of(file) for file in config_of(spec).imports if file.outside}

    def graph(self) -> Graph:
        issues: dict[Issue, None] = {}
        complete = True
        begin = (Path(self._folder) / CHECK).as_uri()
        seen = {begin}
        pending = [(begin, self._module.position)]
        while pending:
            specifier, position = pending.pop()
            node = self._modules.get(specifier, {})
            complete = complete and bool(node) and "error" not in node
            for written, target, span in _dependencies(node):
                at = self._position(specifier, span) or position
                reached = self._redirects.get(target, target)
                if written == UNGUARDED:
                    issues.setdefault(Issue("E535", f"'{written}' is not there for derivations", at))
                elif not self._is_fine(reached):
                    message = f"'{written}' is not a file of the project's, and no library"
                    issues.setdefault(Issue("E535", message, at, _HINT))
                elif reached not in seen and not (self._path(reached) or "").startswith(f"{FOLDER}/"):
                    seen.add(reached)
                    pending.append((reached, at))
        return Graph(tuple(issues), complete and not issues)

    def _is_fine(self, specifier: str) -> bool:
        """Return whether a module may import a specifier."""
        scheme, _, rest = specifier.partition(":")
        if scheme == "npm":  # the path of a file in a package might lead outside the package
            return ".." not in unquote(rest).replace("\\", "/").split("/")
        path = self._path(specifier)
        if path is None:
            return scheme in _ELSEWHERE
        return (
            path in (CHECK, INTERFACES)
            or path.startswith(GUARDED)
            or (path.startswith("author/") and path not in self._left_out)
        )

    def _path(self, specifier: str) -> str | None:
        """Return the path of a `file:` URL in the project, with `..` if it is outside; None for other URLs."""
        if not specifier.startswith("file:"):
            return None
        return os.path.relpath(os.path.realpath(unquote(urlsplit(specifier).path)), self._folder)

    def _position(self, specifier: str, span: Mapping[str, Any] | None) -> Position | None:
        """Return the position of an import; None if it is not in a file of the author's."""
        path = self._path(specifier) or ""
        if not path.startswith("author/") or span is None:
            return None
        begin, end = span["start"], span["end"]
        length = end["character"] - begin["character"] if end["line"] == begin["line"] else 0
        return place_in(self._module, path, begin["line"] + 1, begin["character"] + 1, length)


def _dependencies(node: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any] | None]]:
    """Yield the imports of a module: specifier as written, resolved specifier, and position."""
    for dependency in node.get("dependencies", ()):
        for kind in ("code", "type"):
            target = dependency.get(kind, {})
            if "specifier" in target:
                is_other = kind == "type" and "code" in dependency  # a comment names the types of the import
                yield (
                    target["specifier"] if is_other else dependency["specifier"],
                    target["specifier"],
                    target.get("span"),
                )


_UNUSED_SECONDS = 30 * 86_400.0
_COMPLETE = "complete"
"""A file that marks a project whose import graph is checked and complete."""


def project_folder(spec: DerivationSpec, digest: str) -> Path:
    """Return the folder of a derivation's project, created if needed; the path, which a module can see, never changes.

    Args:
        spec: the derivation.
        digest: its digest by `digest_of`.

    Raises:
        LambdaError: the module imports a file outside the project.
    """
    folder = cache_folder() / "projects" / f"{PREFIX}{digest}"
    if folder.exists():
        os.utime(folder)
    else:
        _make(spec, folder)
    if not (folder / _COMPLETE).exists():
        [graph] = look_into({folder: spec}, folder / CHECK)
        for issue in graph.issues:
            raise LambdaError(f"'{spec.name}': {issue.message}", position=issue.position, hint=issue.hint)
        if graph.complete:
            (folder / _COMPLETE).touch()
    return folder


def _make(spec: DerivationSpec, folder: Path) -> None:
    """Write a project, and remove projects that have not been used for long."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        with suppress(OSError):  # another process may be faster
            if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(other)
    written = write_project(spec, folder.parent)
    try:
        written.rename(folder)
    except OSError:  # another process has created the folder
        shutil.rmtree(written)


_REGISTRY = (
    "NPM_CONFIG_REGISTRY",
    "JSR_URL",
    "DENO_CERT",
    "DENO_TLS_CA_STORE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
"""Environment variables that configure how Deno fetches libraries."""


def cache_modules(spec: DerivationSpec) -> list[str]:
    """Fetch the libraries that a module imports (`npm:`, `jsr:` and `https:`); no other function fetches.

    The libraries stay in `cache_folder`; checking and running use them without a network.

    Returns:
        Deno's output, a line for each fetched library.

    Raises:
        TaskError: a library cannot be fetched, or the module imports a file outside the project.
    """
    module = module_of(spec)
    folder = write_project(spec)
    settings = {name: value for name, value in os.environ.items() if name.upper() in _REGISTRY}
    try:
        [graph] = look_into({folder: spec}, folder / CHECK)
        for issue in graph.issues:
            raise TaskError(f"'{spec.name}': {issue.message}", position=issue.position, hint=issue.hint)
        run = run_deno(["cache", AUTHOR + MODULE], folder, {"DENO_TLS_CA_STORE": "system,mozilla", **settings})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if run.returncode != 0:
        said = authored(module, run.stderr.strip()[-1_000:])
        raise TaskError(
            f"libraries of '{spec.name}' cannot be fetched: {said}",
            position=position_in(module, run.stderr) or module.position,
        )
    return [line for line in run.stderr.splitlines() if line.startswith("Download ")]
