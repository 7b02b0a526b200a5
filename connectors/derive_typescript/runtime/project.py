"""The folder Deno runs in: the author's module, its types, and the harness."""

from __future__ import annotations

import hashlib
import posixpath
import tempfile
from functools import cache
from pathlib import Path

import orjson

from connectors.derive_typescript.catalog.config import ImportedFile, config_of
from connectors.derive_typescript.runtime.bundle import bundle
from connectors.derive_typescript.runtime.command import command_line, needs_guards
from connectors.derive_typescript.runtime.guards import guard_files, guard_imports, guard_scopes
from connectors.derive_typescript.runtime.place import AUTHOR, MODULE
from connectors.derive_typescript.types.interfaces import generate_interfaces
from derive.errors import TaskError
from derive.protocol.specs import DerivationSpec

CHECK = "check.ts"
"""The root file of `deno check`; `check.py` knows its lines."""

INTERFACES = "interfaces.ts"
"""The file of the types that the author's module imports."""

_ENTRY = "derivation.ts"
"""The file that the harness imports: without read permission, Deno loads only modules with literal imports."""

PREFIX = "flowctl-deno-"
"""Prefix of project folders' names."""

_HARNESS = ("frames", "documents", "say", "present", "timers", "columns", "absent", "main")
"""The harness's files, each after the files that it imports."""

_GUARDS = ("node/guard.ts", "node/workers.ts")


def write_project(spec: DerivationSpec, parent: Path | None = None) -> Path:
    """Write the project of a derivation into a new folder; the caller removes it.

    Args:
        spec: the derivation.
        parent: parent of the folder; None for the folder of temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    for name, content in _files(spec).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def digest_of(spec: DerivationSpec) -> str:
    """Return a digest of the files and options with which a derivation runs."""
    files = {**_files(spec), "": orjson.dumps(command_line(spec))}
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:32]


def _files(spec: DerivationSpec) -> dict[str, bytes]:
    options = {"noImplicitOverride": False}  # allows `flush`, `startCommit` and `reset` without `override`
    settings = {"imports": _imports(spec), "scopes": guard_scopes(), "lock": False, "compilerOptions": options}
    config = config_of(spec)
    return {
        AUTHOR + MODULE: config.module.text.encode(),
        **{path_of(file): _content_of(file) for file in config.imports if not file.outside},
        INTERFACES: generate_interfaces(spec).encode(),
        CHECK: _check_text().encode(),
        _ENTRY: _entry_text(spec).encode(),
        "deno.json": orjson.dumps(settings),
        **guard_files(),
        **_harness(),
    }


def path_of(file: ImportedFile) -> str:
    """Return the path of an imported file in the project.

    Raises:
        TaskError: the file is too many folders above the module.
    """
    path = posixpath.normpath(AUTHOR + file.path)
    if not path.startswith("author/") and not file.outside:
        raise TaskError(f"the module imports '{file.path}', which is too far above it")
    return path


def _imports(spec: DerivationSpec) -> dict[str, str]:
    """Return the import map: Node's modules lead to their guards, also by the author's names."""
    guards = guard_imports()
    named = {name: guards.get(target, _settled(target)) for name, target in config_of(spec).import_map}
    fixed = {name: path for name, path in guards.items() if name.startswith("node:")}
    return {**guards, **named, **fixed, f"flow/{spec.name}.ts": f"./{INTERFACES}"}


def _settled(target: str) -> str:
    """Return the target of an import name, relative to the project's folder."""
    if not target.startswith("."):
        return target
    end = "/" if target.endswith("/") else ""
    return f"./{posixpath.normpath(AUTHOR + target)}{end}"


def _content_of(file: ImportedFile) -> bytes:
    return f"export * from './{MODULE}';\n".encode() if file.content is None else file.content


@cache
def _harness() -> dict[str, bytes]:
    folder = Path(__file__).parent
    texts = {name: (folder / f"{name}.ts").read_text() for name in _HARNESS}
    return {"main.ts": bundle(texts).encode(), **{name: (folder / name).read_bytes() for name in _GUARDS}}


def _entry_text(spec: DerivationSpec) -> str:
    lines = [
        *(["import './node/all.ts';"] if needs_guards(spec) else []),
        # Dynamic imports: static imports would be resolved before the guards run.
        "export const load = async () => ({",
        "    interfaces: await import('./interfaces.ts'),",
        f"    module: await import('./{AUTHOR}{MODULE}'),",
        "});",
    ]
    return "\n".join(lines) + "\n"


def _check_text() -> str:
    lines = [
        f"import {{ Derivation }} from './{AUTHOR}{MODULE}';",
        "import { IDerivation } from './interfaces.ts';",
        "export const derivation: IDerivation = new Derivation({ state: {} });",
    ]
    return "\n".join(lines) + "\n"
