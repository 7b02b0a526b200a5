"""Generates files that help to write a catalog's code, from the catalog alone.

Files are generated before the code of a catalog exists, so missing code files and errors in code are ignored. All other
errors are reported, and files are removed only if the catalog has no errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from derive.catalog.build import Build, build
from derive.catalog.loading import Resources, project_root
from derive.errors import FlowError, Issue
from derive.lambda_sql.stub import shuffle_stubs
from derive.position import show
from derive.protocol.authoring import GENERATED, GENERATED_FOLDER, BuildsEnvironments, GeneratedFile, Generation
from derive.protocol.entry_points import find_authoring
from derive.protocol.specs import DerivationSpec

_FILE_NAME = re.compile(r"[^\s;:*?\"<>|]+\.\w+")


@dataclass(frozen=True, slots=True)
class Change:
    """The planned change of one file.

    Attributes:
        path: the absolute path.
        outcome: kind of change; `unchanged` if the file exists with this text.
        text: the new text; empty for a removed file.
    """

    path: Path
    outcome: Literal["created", "updated", "unchanged", "removed"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """The planned changes of a catalog's generated files.

    Attributes:
        root: folder of the project.
        files: changes, one per file.
        issues: errors in the catalog other than in its code.
        notes: tasks that are left to the authors.
        derivations: valid derivations, apart from missing code.
    """

    root: Path
    files: tuple[Change, ...]
    issues: tuple[Issue, ...]
    notes: tuple[str, ...]
    derivations: tuple[DerivationSpec, ...]


def plan_changes(source: Path) -> Changes:
    """Return the changes that generation would make, without writing.

    Args:
        source: path of its root file.

    Raises:
        FlowError: a file cannot be read.
    """
    root = project_root(source)
    built, missing = _build(source, root)
    derivations = tuple(built.spec.derivations[name] for name in sorted(built.spec.derivations))
    generations = [
        find_authoring(derivation.connector).generate(derivation, root, missing) for derivation in derivations
    ]
    stubs = [shuffle_stubs(derivation, missing) for derivation in derivations]
    files = _files(generations, stubs)
    changes = [_change(path, text, is_stub=is_stub) for path, (text, is_stub) in files.items()]
    if not built.issues:
        changes += [Change(path, "removed") for path in _stale(root / GENERATED_FOLDER) if path not in files]
    notes = dict.fromkeys(note for generation in generations for note in generation.notes)
    return Changes(root, tuple(changes), built.issues, tuple(notes), derivations)


def write_changes(changes: Changes) -> None:
    """Write planned changes.

    Raises:
        FlowError: a file cannot be written.
    """
    for change in changes.files:
        try:
            if change.outcome == "removed":
                change.path.unlink()
                _remove_empty(change.path.parent, changes.root)
            elif change.outcome != "unchanged":
                change.path.parent.mkdir(parents=True, exist_ok=True)
                # A file that another process has just created is not overwritten.
                with change.path.open(
                    "x" if change.outcome == "created" else "w", encoding="utf-8", newline=""
                ) as stream:
                    stream.write(change.text)
        except OSError as exc:
            raise FlowError(f"cannot write {show(str(change.path))}: {exc.strerror or exc}") from exc


def build_environments(derivations: Iterable[DerivationSpec]) -> Iterator[str]:
    """Build the environments that derivations' projects declare; yield a line for each new one.

    Raises:
        TaskError: an environment cannot be built.
    """
    for derivation in derivations:
        authoring = find_authoring(derivation.connector)
        if isinstance(authoring, BuildsEnvironments) and not derivation.disabled:
            line = authoring.build_environment(derivation)
            if line is not None:
                yield line


def cache_libraries(derivations: Iterable[DerivationSpec]) -> Iterator[str]:
    """Fetch the libraries that derivations' code imports; yield a line for each new one.

    Raises:
        TaskError: a library cannot be fetched.
    """
    for derivation in derivations:
        yield from find_authoring(derivation.connector).cache(derivation)


def _build(source: Path, root: Path) -> tuple[Build, frozenset[str]]:
    """Build the catalog with empty texts for missing code files that can be written; return it with these files."""
    built = build(source)
    missing = frozenset(url for url in built.missing if _is_writable(url, root))
    if missing:
        again = build(source, Resources(given=dict.fromkeys(missing, "")))
        built = replace(again, missing=built.missing)
    return built, missing


def _is_writable(url: str, root: Path) -> bool:
    """Return true if a missing resource is a file below the root, with a plausible file name."""
    path = Path(url)
    return path.is_absolute() and path.is_relative_to(root) and _FILE_NAME.fullmatch(path.name) is not None


def _files(generations: list[Generation], shuffles: list[list[GeneratedFile]]) -> dict[Path, tuple[str, bool]]:
    """Return the text of each file, and true for a stub; files shared by several derivations appear once."""
    files: dict[Path, tuple[str, bool]] = {}
    for generation, stubs in zip(generations, shuffles, strict=True):
        for file in (*generation.files, *stubs):
            files.setdefault(file.path, (file.text, file.is_stub))
    return files


def _change(path: Path, text: str, *, is_stub: bool) -> Change:
    present = _content(path)
    if present is None:
        return Change(path, "created", text)
    return Change(path, "unchanged" if is_stub or present == text.encode() else "updated", text)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise FlowError(f"cannot read {show(str(path))}: {exc.strerror or exc}") from exc


def _stale(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder with the marker of generated files."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            first = (_content(path) or b"").split(b"\n", 1)[0]
            if GENERATED.encode() in first:
                yield path


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
