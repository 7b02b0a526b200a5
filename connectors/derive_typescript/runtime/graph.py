"""The import graph of a module, as Deno resolves it: no file outside the project may be in it.

Deno loads any file that an import names, without permission, and its type checker shows parts of the file. So the graph
is checked before a module is checked, fetched for, or run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from connectors.derive_typescript.catalog.config import config_of, module_of
from connectors.derive_typescript.runtime.command import run_deno
from connectors.derive_typescript.runtime.guards import FOLDER, GUARDED, UNGUARDED
from connectors.derive_typescript.runtime.place import authored, place_in
from connectors.derive_typescript.runtime.project import CHECK, INTERFACES, path_of
from derive.errors import Issue
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
