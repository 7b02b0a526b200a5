"""Generation: files that help to write a catalog's code, made from the catalog alone.

Files are generated before the code of a catalog exists. So missing files of code are no error here, and neither is code
that is wrong. Everything else that is wrong is reported, and nothing is removed unless the catalog is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from derive.catalog.build import Build, build
from derive.catalog.loading.project import project_root
from derive.catalog.loading.resources import Resources
from derive.errors import FlowError, Issue
from derive.lambda_sql.stub import shuffle_stubs
from derive.protocol.authoring import GENERATED, GENERATED_FOLDER, GeneratedFile, Generation
from derive.protocol.installed import find_authoring
from derive.protocol.resource import show
from derive.protocol.specs import DerivationSpec

_FILE_NAME = re.compile(r"[^\s;:*?\"<>|]+\.\w+")


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one file.

    Attributes:
        path: the absolute path.
        outcome: what becomes of it; `unchanged` if it exists and has this text.
        text: its new text; empty if it is removed.
    """

    path: Path
    outcome: Literal["created", "updated", "unchanged", "removed"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What generating from a catalog comes to.

    Attributes:
        root: of the project.
        files: each once.
        issues: what is wrong with the catalog, other than its code.
        notes: what the authors have to do themselves.
        derivations: those that are right, missing code aside.
    """

    root: Path
    files: tuple[Change, ...]
    issues: tuple[Issue, ...]
    notes: tuple[str, ...]
    derivations: tuple[DerivationSpec, ...]


def plan_changes(source: Path) -> Changes:
    """The changes that generation would make; nothing is written.

    Args:
        source: path of its root file.

    Raises:
        FlowError: a file that is there cannot be read.
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
                # A file that someone else has made meanwhile is never overwritten.
                with change.path.open(
                    "x" if change.outcome == "created" else "w", encoding="utf-8", newline=""
                ) as stream:
                    stream.write(change.text)
        except OSError as exc:
            raise FlowError(f"cannot write {show(str(change.path))}: {exc.strerror or exc}") from exc


def cache_libraries(derivations: Iterable[DerivationSpec]) -> Iterator[str]:
    """Fetch the libraries that derivations' code imports; yields a line for each that was not there already.

    Raises:
        TaskError: a library cannot be fetched.
    """
    for derivation in derivations:
        yield from find_authoring(derivation.connector).cache(derivation)


def _build(source: Path, root: Path) -> tuple[Build, frozenset[str]]:
    """The catalog as if missing files of code, where they can be written, were there and empty; and those files."""
    built = build(source)
    missing = frozenset(url for url in built.missing if _is_writable(url, root))
    if missing:
        again = build(source, Resources(given=dict.fromkeys(missing, "")))
        built = replace(again, missing=built.missing)
    return built, missing


def _is_writable(url: str, root: Path) -> bool:
    """Whether a missing resource is a file below the root, by a name that is meant as one."""
    path = Path(url)
    return path.is_absolute() and path.is_relative_to(root) and _FILE_NAME.fullmatch(path.name) is not None


def _files(generations: list[Generation], shuffles: list[list[GeneratedFile]]) -> dict[Path, tuple[str, bool]]:
    """Text of each file, and whether it is a stub; what several derivations share is generated once."""
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
    """Files in the folder that say of themselves that they were generated."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            first = (_content(path) or b"").split(b"\n", 1)[0]
            if GENERATED.encode() in first:
                yield path


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
