"""Errors of a derivation's module, as issues in the author's files, by the type checker pyrefly."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson

from connectors.derive_python.config import config_of, module_of
from connectors.derive_python.environment import find_missing, interpreter_of, library_hint
from connectors.derive_python.models import RESERVED, method_of, read_of
from connectors.derive_python.runtime.project import (
    AUTHOR,
    PREFIX,
    TYPES,
    authored,
    digest_of,
    member_position,
    place_in,
    project_files,
    types_package,
)
from connectors.module_kit import checks
from connectors.module_kit.projects import user_cache, write_project
from derive.errors import Issue, TaskError
from derive.protocol.specs import DerivationSpec

_CACHED = "checked"
"""Folder of the user's caches with an empty file for each module without errors."""

_UNKNOWN_LIBRARY = "missing-import"

_ARROW = ".arrow`\n"
"""End of the first line of an error about the argument of the decorator `@arrow`."""

_CLASS_CHECK = """
import {package} as _flow_types
_flow_base: type[_flow_types.IDerivation] = Derivation
class _FlowWhole(Derivation):
    def __init__(self) -> None: ...
_FlowWhole()
"""
"""Lines after the module's text that check the class as a whole; an error of the checker there is one of the class."""


def check_names(spec: DerivationSpec) -> list[Issue]:
    """Return an issue for each transform whose method name is already taken or reserved."""
    return checks.check_names(spec, method_of, RESERVED.__contains__)


def check_config(spec: DerivationSpec) -> list[Issue]:
    """Return an issue if the settings are not valid under their schema."""
    config = config_of(spec)
    value = {} if config.config is None else config.config
    errors = jsonschema_rs.validator_for(config.config_schema).iter_errors(value)
    what = f"'config' of '{spec.name}' is not valid under its schema"
    return [Issue("E018", f"{what}: {error.message}", spec.collection.position) for error in errors]


def check_environment(spec: DerivationSpec) -> list[Issue]:
    """Return an issue if the environment of a module is not built."""
    missing = find_missing(config_of(spec))
    return [missing] if missing else []


def check_modules(specs: Sequence[DerivationSpec]) -> list[Issue]:
    """Return all errors of pyrefly for modules, given the types of their collections.

    Raises:
        TaskError: pyrefly cannot be run.
    """
    cached = user_cache("python") / _CACHED
    pending = {cached / f"{digest_of(spec)}-{_checker(interpreter_of(config_of(spec)))}": spec for spec in specs}
    pending = {known: spec for known, spec in pending.items() if not known.exists()}
    issues = []
    for known, spec in pending.items():
        errors = _check(spec)
        issues += errors
        if not errors:
            with suppress(OSError):
                cached.mkdir(parents=True, exist_ok=True)
                known.touch()
    return issues


@cache
def _checker(interpreter: str) -> str:
    """Return a digest of what a check depends on beside the project: pyrefly, this connector, and the libraries."""
    import pyrefly

    folders = [Path(pyrefly.__file__).parents[1]]
    if interpreter != sys.executable:
        folders = sorted(Path(interpreter).absolute().parents[1].glob("lib/python*/site-packages"))
    files = [*folders, *sorted(Path(__file__).parent.rglob("*.py"))]
    stamps = [(str(path), path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]


def _check(spec: DerivationSpec) -> list[Issue]:
    """Return the errors of one module."""
    config = config_of(spec)
    project = project_files(spec)
    checked = {f"{AUTHOR}/{config.path}": _with_class_check(spec), "pyrefly.toml": _settings(spec)}
    folder = write_project({**_hidden_types(spec, project), **project, **checked}, PREFIX)
    try:
        files = [f"{AUTHOR}/{config.path}", *(f"{AUTHOR}/{file.path}" for file in config.files if _is_code(file.path))]
        command = [sys.executable, "-m", "pyrefly", "check", "--output-format", "json", *files]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False)
        try:
            errors = orjson.loads(run.stdout)["errors"]
        except (orjson.JSONDecodeError, KeyError):
            output = authored(spec, run.stderr.strip()[-500:])
            raise TaskError(f"pyrefly cannot check the module of '{spec.name}': {output}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    last = config.module.text.count("\n") + 1
    of_class = [error for error in errors if error["path"] == f"{AUTHOR}/{config.path}" and error["line"] > last]
    issues = [_issue(spec, error) for error in errors if error not in of_class and _matters(error)]
    return list(dict.fromkeys([*issues, *_class_issues(spec, of_class)]))


def _with_class_check(spec: DerivationSpec) -> bytes:
    """Return the module, with lines that check its class unless the module has an error of syntax."""
    text = module_of(spec).text
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return text.encode()
    return (text + "\n" + _CLASS_CHECK.format(package=types_package(spec)).lstrip("\n")).encode()


def _class_issues(spec: DerivationSpec, errors: Sequence[dict[str, Any]]) -> list[Issue]:
    """Return the issues of errors in the lines that check the class."""
    package, position = types_package(spec), member_position(spec, "Derivation")
    names = {error["name"] for error in errors}
    hint = f"write 'class Derivation(IDerivation):' after 'from {package} import IDerivation'"
    if "unknown-name" in names:
        return [Issue("E531", "the module defines no class 'Derivation'", module_of(spec).position, hint)]
    if "bad-assignment" in names:
        return [Issue("E531", "'Derivation' does not extend the class 'IDerivation'", position, hint)]
    abstract = {name for error in errors if error["name"] == "bad-instantiation" for name in _quoted(error)}
    return [
        Issue(
            "E531",
            f"class 'Derivation' has no method '{method_of(transform.name)}' for transform '{transform.name}'",
            position,
            f"write 'async def {method_of(transform.name)}(self, read: Request.{read_of(transform.name)})"
            " -> AsyncIterator[Document]:'",
        )
        for transform in spec.transforms
        if method_of(transform.name) in abstract
    ]


def _quoted(error: dict[str, Any]) -> list[str]:
    return re.findall(r"`([^`]*)`", error["description"])


def _hidden_types(spec: DerivationSpec, project: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the package of types at a place below the author's files, if a file of the author's hides the package."""
    names = types_package(spec).split(".")
    folders = [f"{AUTHOR}/{'/'.join(names[:count])}" for count in range(1, len(names) + 1)]
    if not any(path == f"{folders[0]}.py" or path.startswith(f"{folders[0]}/") for path in project):
        return {}
    packages = {f"{folder}/__init__.py": b"" for folder in folders if f"{folder}.py" in project}
    return {**packages, f"{folders[-1]}/__init__.py": project[f"{TYPES}/{'/'.join(names)}/__init__.py"]}


def _is_code(path: str) -> bool:
    return path.endswith(".py")


def _settings(spec: DerivationSpec) -> bytes:
    interpreter = interpreter_of(config_of(spec))
    lines = [
        'preset = "strict"',
        f'search-path = ["{AUTHOR}", "{TYPES}"]',
        f"python-interpreter-path = {orjson.dumps(interpreter).decode()}",
        "disable-search-path-heuristics = true",
    ]
    return "\n".join(lines).encode()


def _matters(error: dict[str, Any]) -> bool:
    """Return whether an error can change results: a missing annotation or decorator cannot.

    The runtime calls the methods `flush`, `reset` and `start_commit` with as many arguments as they take.
    """
    name = error["name"]
    if error["severity"] != "error" or name.startswith("implicit-any") or name == "missing-override-decorator":
        return False
    if name == "missing-attribute" and "`pyarrow.compute`" in error["description"]:
        return False  # pyarrow makes these functions when it is imported
    member = re.match(r"Class member `\w+\.(\w+)`", error["description"])
    return not (name.startswith("bad-override") and member and member[1] in RESERVED)


def _arrow_issue(spec: DerivationSpec, line: int) -> Issue | None:
    """Return the issue of a method whose decorator `@arrow` is at a line, and whose return type is no table.

    Return None if the method takes another number of arguments, which may be the error.
    """
    for node in ast.walk(ast.parse(module_of(spec).text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.returns is None:
            continue
        if line in {decorator.lineno for decorator in node.decorator_list} and len(node.args.args) == 2:
            returned = node.returns
            length = (returned.end_col_offset or 0) - returned.col_offset
            text = module_of(spec).text.splitlines()[returned.lineno - 1].encode()
            column = len(text[: returned.col_offset].decode()) + 1
            return Issue(
                "E531",
                f"the method '{node.name}' with @arrow returns '{ast.unparse(returned)}', which is no table",
                place_in(spec, config_of(spec).path, returned.lineno, column, max(length, 0)),
                "return a table of pyarrow, polars or pandas",
            )
    return None


def _issue(spec: DerivationSpec, error: dict[str, Any]) -> Issue:
    if error["path"] == f"{AUTHOR}/{config_of(spec).path}" and _ARROW in error["description"]:
        issue = _arrow_issue(spec, error["line"])
        if issue:
            return issue
    message = re.sub(r"`([^`]*)`", r"'\1'", error["concise_description"])
    path = os.path.relpath(error["path"], AUTHOR) if error["path"].startswith(f"{AUTHOR}/") else error["path"]
    length = error["stop_column"] - error["column"] if error["stop_line"] == error["line"] else 0
    is_types = not error["path"].startswith(f"{AUTHOR}/")
    position = module_of(spec).position if is_types else place_in(spec, path, error["line"], error["column"], length)
    hint = None
    missing, types = re.search(r"module `([\w.]+)`", error["description"]), types_package(spec)
    if error["name"] == _UNKNOWN_LIBRARY and missing and missing[1].split(".")[0] == types.split(".")[0]:
        hint = f"the types of '{spec.name}' are the package '{types}'"
    elif error["name"] == _UNKNOWN_LIBRARY:
        hint = library_hint(config_of(spec))
    if error["name"].startswith("bad-override"):
        hint = "a method takes 'read', and yields or returns documents; a method with @arrow takes and returns columns"
    suggestion = re.search(r"Did you mean `([^`]*)`", error["description"])
    if suggestion:
        hint = f"did you mean '{suggestion[1]}'?"
    unknown = re.fullmatch(r"Could not find name '(arrow|Document|IDerivation|Request|Response)'", message)
    if unknown:
        hint = f"write 'from {types} import {unknown[1]}'"
    return Issue("E531", message, position, hint)
