"""The folder Deno runs in: the author's module, the types it imports, and the harness."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import orjson

from connectors.derive_typescript.types import generate_interfaces
from derive.errors import TaskError
from derive.position import Script
from derive.protocol.specs import DerivationSpec

CHECK = "check.ts"
"""The file that `deno check` begins with; its lines are known to `check.py`."""

_HARNESS = ("main.ts", "frames.ts", "present.ts")


def module_of(spec: DerivationSpec) -> Script:
    """The module of a TypeScript derivation.

    Raises:
        TaskError: the derivation has none.
    """
    if spec.module is None:
        raise TaskError(f"'{spec.name}' names no TypeScript module", position=spec.collection.position)
    return spec.module


def write_project(spec: DerivationSpec) -> Path:
    """Write the project of a derivation into a new temporary folder; the caller removes it."""
    module = module_of(spec)
    folder = Path(tempfile.mkdtemp(prefix="flowctl-deno-"))
    (folder / "module.ts").write_text(module.text, encoding="utf-8")
    (folder / "interfaces.ts").write_text(generate_interfaces(spec), encoding="utf-8")
    (folder / CHECK).write_text(_check_text(), encoding="utf-8")
    for name in _HARNESS:
        shutil.copy(Path(__file__).with_name(name), folder / name)
    imports = {f"flow/{spec.name}.ts": "./interfaces.ts"}
    options = {"noImplicitOverride": False}  # `flush` and its kin, with or without `override`
    (folder / "deno.json").write_bytes(orjson.dumps({"imports": imports, "lock": False, "compilerOptions": options}))
    return folder


def _check_text() -> str:
    lines = [
        "import { Derivation } from './module.ts';",
        "import { IDerivation } from './interfaces.ts';",
        "export const derivation: IDerivation = new Derivation({ state: {} });",
    ]
    return "\n".join(lines) + "\n"


def deno() -> str:
    """Path of the Deno binary that the package `deno` ships.

    Raises:
        TaskError: there is none for this platform.
    """
    try:
        from deno import find_deno_bin

        return str(find_deno_bin())
    except (ImportError, FileNotFoundError) as exc:
        raise TaskError("the Deno runtime, which runs TypeScript, is not installed", hint="pip install deno") from exc


def environment() -> dict[str, str]:
    """Environment for Deno: no colours, no update checks, nothing fetched, and one time zone everywhere (law L1)."""
    cache = Path(tempfile.gettempdir()) / f"flowctl-deno-cache-{os.getuid()}"
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    fixed = {"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "DENO_DIR": str(cache), "TZ": "UTC", "LANG": "en_US.UTF-8"}
    return {**kept, **fixed}
