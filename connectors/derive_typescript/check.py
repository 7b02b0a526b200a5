"""Type errors of a derivation's module, as issues in the author's files; a cache of modules without errors.

The digest of a cached module includes the types of its collections, Deno, and the checking code. Another version of a
library may be fetched at any time, so the digest of a module that uses libraries includes those of its import graph.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson

from connectors.derive_typescript.author_files import RESERVED, method_of
from connectors.derive_typescript.config import module_of
from connectors.derive_typescript.runtime.command import deno, run_deno, uses_libraries
from connectors.derive_typescript.runtime.project import (
    CHECK,
    authored,
    digest_of,
    guard_imports,
    look_into,
    member_position,
    position_in,
    write_project,
)
from connectors.module_kit import checks
from derive.document.pointer import JSON
from derive.errors import Issue
from derive.position import Position, Script
from derive.protocol.specs import DerivationSpec

_FILE = "flowctl-sound-modules"
_MOST = 1_000
"""Maximum number of cached modules; the latest are kept."""


class SoundModules:
    """The cache of a user.

    Args:
        folder: folder of the cache file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._known = self._read()

    def knows(self, spec: DerivationSpec, libraries: str = "") -> bool:
        """Return whether the module of a derivation was checked without errors, and is unchanged.

        Args:
            spec: the derivation.
            libraries: the libraries of its import graph; a module that uses libraries is unknown without them.
        """
        return (bool(libraries) or not uses_libraries(spec)) and _digest(spec, libraries) in self._known

    def add(self, specs: Iterable[DerivationSpec], libraries: str = "") -> None:
        """Add modules without errors to the cache, if it can be written.

        Args:
            specs: the derivations.
            libraries: the libraries of their import graphs; modules that use libraries are not added without them.
        """
        added = [_digest(spec, libraries) for spec in specs if libraries or not uses_libraries(spec)]
        if not added:
            return
        self._known = list(dict.fromkeys([*self._read(), *added]))[-_MOST:]
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            written = self._file.with_name(f"{_FILE}.{os.getpid()}")
            written.write_text("\n".join(self._known))
            written.replace(self._file)

    def _read(self) -> list[str]:
        with suppress(OSError, UnicodeDecodeError):
            return self._file.read_text().split()
        return []


def _digest(spec: DerivationSpec, libraries: str) -> str:
    """Return a digest of everything on which the result of a check depends."""
    used = libraries if uses_libraries(spec) else ""
    return hashlib.sha256(f"{digest_of(spec)} {_lookers()} {used}".encode()).hexdigest()[:32]


@cache
def _lookers() -> str:
    """Return the identity of the checker: the version of Deno and the code of this connector."""
    files = [Path(deno()), *sorted(Path(__file__).parent.rglob("*.py"))]
    stamps = [(path.name, stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]]
    return repr(stamps)


_GRAPH = "graph.ts"
_HEADER = re.compile(r"(?:TS\d+ \[ERROR\]|error): (.*)")
_CHECK_PLACE = re.compile(rf"/{re.escape(CHECK)}:(\d+):\d+")
_PROJECT = re.compile(r"/(flowctl-deno-[^/\s]+)/")
_LIBRARY = re.compile(
    r"""(?:npm package ['"]|for package ['"]|JSR package manifest for ['"]|in cache: ['"])(@?[^'"@]+)"""
)
_FETCH = "fetch libraries ahead of time: flowctl generate --cache"
_FILE_NAME = re.compile(r"""(['"])(?:\./[^'"]*|file://[^'"]*/)module\.ts\1""")


@dataclass(frozen=True, slots=True)
class _Report:
    """One error that Deno printed.

    Attributes:
        message: its text, without the excerpt of the code.
        place: the first line with a position.
        length: number of underlined characters.
        project: name of the project folder.
        is_of_type: whether it is a type error; otherwise a module cannot be loaded.
    """

    message: str
    place: str
    length: int
    project: str
    is_of_type: bool


def check_names(spec: DerivationSpec) -> list[Issue]:
    """Return an issue for each transform whose method name is already taken or reserved."""
    return checks.check_names(spec, method_of, lambda method: not method or method in RESERVED)


def check_modules(specs: Sequence[DerivationSpec], sound: SoundModules) -> list[Issue]:
    """Return all errors of `deno check` for modules, given the types of their collections.

    One run checks all modules, because the start of TypeScript takes most of the time.

    Args:
        specs: the derivations.
        sound: cache of modules without errors.
    """
    left = [spec for spec in specs if not sound.knows(spec)]
    return _look_at(left, sound) if left else []


def _look_at(specs: Sequence[DerivationSpec], sound: SoundModules) -> list[Issue]:
    parent = Path(tempfile.mkdtemp(prefix="flowctl-check-"))
    try:
        projects = {write_project(spec, parent).name: spec for spec in specs}
        _join(parent, projects)
        root = parent / _GRAPH
        root.write_text("".join(f"import './{name}/{CHECK}';\n" for name in projects))
        graphs = look_into({parent / name: spec for name, spec in projects.items()}, root)
        looked = zip(projects.items(), graphs, strict=True)
        unknown = {
            name: (spec, graph.libraries)
            for (name, spec), graph in looked
            if not graph.issues and not sound.knows(spec, graph.libraries)
        }
        checked = {name: spec for name, (spec, _) in unknown.items()}
        issues = [issue for graph in graphs for issue in graph.issues] + (_check(parent, checked) if checked else [])
        if not issues:
            for spec, libraries in unknown.values():
                sound.add([spec], libraries)
        return issues
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def _join(parent: Path, projects: Iterable[str]) -> None:
    """Merge several Deno projects into one, where each keeps its own imports."""
    joined: dict[str, JSON] = {}
    scopes = {}
    for name in projects:
        settings = parent / name / "deno.json"
        joined = orjson.loads(settings.read_bytes())
        imports = joined.pop("imports").items() - guard_imports().items()  # these modules keep Node's types
        del joined["scopes"]
        scopes[f"./{name}/"] = {
            key: f"./{name}/{target[2:]}" if target.startswith("./") else target for key, target in imports
        }
        settings.unlink()
    (parent / "deno.json").write_bytes(orjson.dumps({**joined, "scopes": scopes}))


def _check(parent: Path, projects: Mapping[str, DerivationSpec]) -> list[Issue]:
    run = run_deno(["check", "--cached-only", "--quiet", *(f"{name}/{CHECK}" for name in projects)], parent)
    if run.returncode == 0:
        return []
    by_project: dict[str, list[_Report]] = {}
    reports = _reports(run.stderr)
    for report in reports:
        by_project.setdefault(report.project, []).append(report)
    if len(projects) == 1:
        [(name, spec)] = projects.items()
        return _issues(module_of(spec), by_project.get(name, []) + by_project.get("", [])) or [_failure(spec, run)]
    issues = [issue for name, spec in projects.items() for issue in _issues(module_of(spec), by_project.get(name, []))]
    if reports and all(report.is_of_type for report in reports):
        return issues
    # An unloadable module hides all type errors, so check the other modules again.
    blamed = projects.keys() & by_project.keys()
    rest = [{name: spec for name, spec in projects.items() if name not in blamed}]
    if not blamed:
        rest = [{name: spec} for name, spec in projects.items()]
    return issues + [issue for group in rest if group for issue in _check(parent, group)]


def _failure(spec: DerivationSpec, run: subprocess.CompletedProcess[str]) -> Issue:
    """Return the issue of a Deno failure that is not attributed to the module."""
    module = module_of(spec)
    output = run.stderr.strip()[-500:] or f"exit status {run.returncode}"
    return Issue("E531", f"'deno check' failed: {authored(module, output)}", module.position)


def _reports(text: str) -> list[_Report]:
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if _HEADER.match(line):
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line)
    return [_report(block) for block in blocks if block[0] != "error: Type checking failed."]


def _report(block: list[str]) -> _Report:
    header = _HEADER.fullmatch(block[0])
    message = [header[1]] if header else []
    length = 0
    place = ""
    body = block[1:]
    for number, line in enumerate(body):
        if line.startswith("    at "):
            place = line
            break
        if line.strip() and not line.strip("~ "):
            length = line.count("~")
        elif line.startswith("  ") and number + 1 < len(body) and body[number + 1].strip("~ "):
            message.append(line.strip())  # TypeScript's reasons; the line above the tildes is the excerpt
    is_of_type = block[0].startswith("TS")
    if not is_of_type:  # the remaining lines are a framed excerpt, or Deno's context
        message = message[:1]
    project = _PROJECT.search("\n".join([place, *block]))
    text = "; ".join(line.rstrip(".") for line in message)
    return _Report(text, place, length, project[1] if project else "", is_of_type)


def _issues(module: Script, reports: list[_Report]) -> list[Issue]:
    issues = []
    about_class = []
    for report in reports:
        line = _CHECK_PLACE.search(report.place)
        if line:
            about_class.append((int(line[1]), report))
            continue
        library = _LIBRARY.search(report.message)
        position = position_in(module, report.place, report.length) or _import_position(module, library)
        issues.append(Issue("E531", _readable(module, report.message), position, _FETCH if library else None))
    return issues + _class_issues(module, about_class)


def _import_position(module: Script, library: re.Match[str] | None) -> Position:
    """Return the position where a module imports a library.

    The beginning of the module if another file has the import.
    """
    offset = module.text.find(f"{library[1]}") if library and library[1] else -1
    return module.position if offset < 0 else module.locate(offset, len(library[1] if library else ""))


def _class_issues(module: Script, reports: list[tuple[int, _Report]]) -> list[Issue]:
    """Return the issues of errors in `check.ts`, whose lines check the class as a whole."""
    lines = {line for line, _ in reports}
    if 1 in lines:
        message = "the module exports no class 'Derivation'"
        return [Issue("E531", message, module.position, "write 'export class Derivation extends IDerivation'")]
    position = member_position(module, "Derivation")
    return [Issue("E531", _readable(module, report.message), position) for _, report in reports[:1]]


def _readable(module: Script, message: str) -> str:
    return authored(module, _FILE_NAME.sub(rf"'{module.position.file}'", message))
