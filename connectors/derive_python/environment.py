"""Environments of libraries that a derivation's pyproject.toml declares.

An environment is a folder in the user's caches. Its name is a digest of the declaration, so an edited declaration names
another environment, and an environment never changes. Only `flowctl generate` builds environments; workers of a cluster
unpack the archive of an environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from connectors.derive_python.config import PythonConfig, shown_path
from connectors.module_kit.projects import user_cache
from derive.errors import Issue
from derive.position import Position

PROJECT = "pyproject.toml"
LOCKS = ("requirements.lock", "uv.lock")
"""Files with exact versions beside pyproject.toml, in order of preference: pip does not read `uv.lock`."""

OLDEST_PYDANTIC = (2, 12)
_HARNESS = f"pydantic>={'.'.join(map(str, OLDEST_PYDANTIC))}"
_AT = re.compile(r"\(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True, slots=True)
class Environment:
    """A declaration of libraries, and the folder of its environment.

    Attributes:
        pyproject: text of pyproject.toml.
        lock: name of the file with exact versions; empty without one.
        lock_text: its text.
        dependencies: requirements of the module (PEP 508).
        requires_python: versions of Python that the module supports (PEP 440); empty for all.
        harness: requirements of the harness, which runs the module.
    """

    pyproject: str
    lock: str
    lock_text: str
    dependencies: tuple[str, ...]
    requires_python: str
    harness: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name, which changes with the declaration, the version of Python, and the platform."""
        declared = repr((self.pyproject, self.lock, self.lock_text, self.harness)).encode()
        python = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
        return f"{python}-{hashlib.sha256(declared).hexdigest()[:24]}"

    @property
    def folder(self) -> Path:
        """Return the folder of the environment."""
        return environments_folder() / self.name

    @property
    def python(self) -> Path:
        """Return the interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def files(self) -> dict[str, str]:
        """Return the texts of the files that declare the environment, by name."""
        return {PROJECT: self.pyproject, **({self.lock: self.lock_text} if self.lock else {})}


def environments_folder() -> Path:
    """Return the folder of all environments of this user."""
    return user_cache("python") / "environments"


def environment_of(config: PythonConfig) -> Environment | None:
    """Return the environment that a module's pyproject.toml declares; None if the module runs in another one.

    A declaration without dependencies needs an environment only if it excludes the Python of `flowctl`.
    """
    files = {file.path: file.content for file in config.files if file.path in {PROJECT, *LOCKS}}
    if config.interpreter or PROJECT not in files:
        return None
    lock = next((name for name in LOCKS if name in files), "")
    return _declared(files[PROJECT], lock, files.get(lock, b""), config.models)


@lru_cache(maxsize=64)
def _declared(pyproject: bytes, lock: str, lock_text: bytes, models: str) -> Environment | None:
    text = pyproject.decode()
    project = _project(text)
    dependencies = tuple(project.get("dependencies", ()))
    requires = project.get("requires-python", "")
    if not dependencies and supports_python(requires):
        return None
    harness = (_HARNESS, "msgspec") if models == "msgspec" else (_HARNESS,)
    return Environment(text, lock, lock_text.decode("utf-8", "replace"), dependencies, requires, harness)


def _project(text: str) -> dict[str, Any]:
    project = tomllib.loads(text).get("project", {})
    return project if isinstance(project, dict) else {}


def supports_python(requires_python: str) -> bool:
    """Return whether the Python of `flowctl` satisfies a specifier of versions; true for an empty one."""
    if not requires_python:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(requires_python).contains(".".join(map(str, sys.version_info[:3])), prereleases=True)


def find_fault(content: bytes, shown: str) -> Issue | None:
    """Return the issue of a pyproject.toml whose declaration cannot be read; None without one.

    Args:
        content: content of the file.
        shown: path of the file in messages.
    """
    try:
        text = content.decode()
        project = _project(text)
    except tomllib.TOMLDecodeError as exc:
        at = _AT.search(str(exc))
        position = Position(shown, int(at[1]), int(at[2])) if at else Position(shown)
        return Issue("E536", f"{PROJECT} is not valid TOML: {_AT.sub('', str(exc)).strip()}", position)
    except UnicodeDecodeError:
        return Issue("E536", f"{PROJECT} is not valid TOML: the text is not UTF-8", Position(shown))
    dependencies, requires = project.get("dependencies", []), project.get("requires-python", "")
    if "dependencies" in _texts(project.get("dynamic")):
        message = f"{PROJECT} declares its dependencies as dynamic, so only its build knows them"
        return Issue("E536", message, _position(text, shown, "dynamic"), "list them in 'dependencies'")
    if not isinstance(dependencies, list) or len(_texts(dependencies)) < len(dependencies):
        message = f"'dependencies' of {PROJECT} is not a list of texts"
        return Issue("E536", message, _position(text, shown, "dependencies"))
    try:
        supports_python(requires)
    except (TypeError, ValueError, AttributeError):  # `packaging` raises a subclass of ValueError
        message = f"'requires-python' of {PROJECT} does not name versions"
        hint = "write versions such as '>=3.11'"
        return Issue("E536", message, _position(text, shown, "requires-python"), hint)
    return None


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def find_missing(config: PythonConfig) -> Issue | None:
    """Return an issue if the environment of a module is not built; otherwise None, and note its use."""
    environment = environment_of(config)
    if environment is None:
        return None
    if environment.python.exists():
        with suppress(OSError):  # the folder may be of another user
            os.utime(environment.folder)
        return None
    message = f"no environment is built for the present content of {' and '.join(environment.files)}"
    return Issue("E536", message, declaration_position(config, environment), "run flowctl generate")


def declaration_position(config: PythonConfig, environment: Environment, key: str = "") -> Position:
    """Return the position of a key of the table `project`.

    Args:
        config: configuration of a module.
        environment: its environment.
        key: the key; empty for the one because of which the module needs the environment.
    """
    key = key or ("dependencies" if environment.dependencies else "requires-python")
    return _position(environment.pyproject, shown_path(config, PROJECT), key)


def _position(text: str, shown: str, key: str) -> Position:
    table = re.search(r"^\[project\]", text, re.MULTILINE)
    match = re.compile(rf"^[ \t]*({re.escape(key)})[ \t]*=", re.MULTILINE).search(text, table.end() if table else 0)
    if match is None:
        return Position(shown)
    line = text.count("\n", 0, match.start(1)) + 1
    column = match.start(1) - text.rfind("\n", 0, match.start(1))
    return Position(shown, line, column, len(key))


def interpreter_of(config: PythonConfig) -> str:
    """Return the interpreter of a module, which exists unless `find_missing` returns an issue."""
    environment = environment_of(config)
    return str(environment.python) if environment else config.interpreter or sys.executable


def library_hint(config: PythonConfig) -> str:
    """Return the remedy for a library that the environment of a module lacks."""
    if environment_of(config):
        return f"add the library to 'dependencies' of {PROJECT}, and run flowctl generate"
    return "install the library into the environment that runs flowctl, or name its interpreter with 'python'"
