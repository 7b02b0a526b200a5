"""Projects: the folders from which a module is imported, and positions of its errors in the author's files."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from connectors.derive_python.config import PythonConfig, config_of, module_of, shown_path
from connectors.derive_python.environment import environment_of
from connectors.derive_python.models import generate_package, package_of
from connectors.module_kit.projects import keep_project, user_cache, write_project
from derive.document.exact import dump_exact
from derive.position import Position
from derive.protocol.collection import owner_of_version
from derive.protocol.specs import DerivationSpec
from derive.recently_used import cached_by_identity

HARNESS = Path(__file__).parents[1]
"""The folder of the package `flow_harness`."""

PREFIX = "flowctl-python-"
"""Prefix of project folders' names."""

AUTHOR, TYPES = "author", "types"
"""Folders of a project: the author's files, and the generated package."""

_PLACE = re.compile(
    rf"(?:File \")?[^\s'\"(),]*/{PREFIX}[^/\s]+/{AUTHOR}/([^\s'\":,]+\.py)(?:\"?, line |:)?(\d+)?(?::(\d+))?"
)
_FRAME = re.compile(r'^\s*File "', re.MULTILINE)


def types_package(spec: DerivationSpec) -> str:
    """Return the package of the types of a derivation; a shadow has the package of its collection."""
    return package_of(owner_of_version(spec.name) or spec.name)


def project_files(spec: DerivationSpec) -> dict[str, bytes]:
    """Return the files of a project by path."""
    config = config_of(spec)
    types = types_package(spec).replace(".", "/")
    return {
        **{f"{AUTHOR}/{file.path}": file.content for file in config.files},
        f"{AUTHOR}/{config.path}": config.module.text.encode(),
        f"{TYPES}/{types}/__init__.py": generate_package(spec, config.config_schema, config.models).encode(),
    }


def digest_of(spec: DerivationSpec) -> str:
    """Return a digest of everything that determines the behaviour of a process."""
    config = config_of(spec)
    environment = environment_of(config)
    settings = (
        environment.name if environment else config.interpreter or sys.executable,
        dump_exact(config.config),
        str(config.permissions),
        spec.limits.allows_permissions,
        spec.limits.python_megabytes,
        [(transform.name, transform.shuffle.key) for transform in spec.transforms],
        _harness_text(),
    )
    return hashlib.sha256(repr((_files_digest(spec), settings)).encode()).hexdigest()[:32]


@cached_by_identity
def _files_digest(spec: DerivationSpec) -> str:
    return hashlib.sha256(repr(sorted(project_files(spec).items())).encode()).hexdigest()


@cache
def _harness_text() -> str:
    texts = [path.read_text() for path in sorted((HARNESS / "flow_harness").glob("*.py"))]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def project_folder(spec: DerivationSpec, digest: str) -> Path:
    """Return the folder of a derivation's project, created if needed."""
    folder = user_cache("python") / "projects" / f"{PREFIX}{digest}"
    keep_project(folder, lambda parent: write_project(project_files(spec), PREFIX, parent))
    return folder


def keeps_state(config: PythonConfig) -> bool:
    """Return whether a module or one of its files mentions state; without state, any shard may process a document."""
    texts = [config.module.text.encode(), *(file.content for file in config.files if file.path.endswith(".py"))]
    return any(re.search(rb"\bstate\b|\bstart_commit\b", text) for text in texts)


def position_in(spec: DerivationSpec, text: str) -> Position | None:
    """Return the author's innermost position that a stack names; None if it names none.

    The harness writes the innermost frame first, and Python's own tracebacks write the innermost frame last, except
    for those of `faulthandler`.
    """
    places = [place for place in _PLACE.finditer(text) if place[2]]
    if not places:
        return None
    is_reversed = "most recent call first" in text or not _FRAME.search(text)
    place = places[0] if is_reversed else places[-1]
    return place_in(spec, place[1], int(place[2]), int(place[3] or 1))


def place_in(spec: DerivationSpec, path: str, line: int, column: int, length: int = 0) -> Position:
    """Return the position in one of the author's files; `path` is relative to the import root."""
    config = config_of(spec)
    if path == config.path:
        return config.module.locate_line(line, column, length)
    return Position(shown_path(config, path), line, column, length)


def member_position(spec: DerivationSpec, name: str) -> Position:
    """Return the position of the definition of a method or a class; the module's beginning if it has none."""
    module = module_of(spec)
    member = re.search(rf"^\s*(?:async\s+)?(?:def|class)\s+({re.escape(name)})\b", module.text, re.MULTILINE)
    return module.locate(member.start(1), len(name)) if member else module.position


def authored(spec: DerivationSpec, text: str) -> str:
    """Return a message of Python with the author's files and positions, without lines of the harness."""
    config = config_of(spec)

    def replaced(written: re.Match[str]) -> str:
        if written[2]:
            return str(place_in(spec, written[1], int(written[2]), int(written[3] or 1)))
        return shown_path(config, written[1])

    return _PLACE.sub(replaced, "\n".join(_without_harness(text.split("\n"))))


def _without_harness(lines: list[str]) -> Iterator[str]:
    is_hidden = False
    for line in lines:
        if line.lstrip().startswith('File "'):
            is_hidden = f"/{PREFIX}" not in line
        elif not line.startswith("    "):
            is_hidden = False
        if not is_hidden:
            yield line
