"""The folder Deno runs in: the author's module, the types it imports, and the harness."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import orjson

from connectors.derive_typescript.types import generate_interfaces
from derive.errors import TaskError
from derive.protocol.specs import DerivationSpec

HEAP_MEGABYTES = 512
"""How large the heap of a module may grow."""


def write_project(spec: DerivationSpec) -> Path:
    """Write the project of a derivation into a new temporary folder; the caller removes it."""
    assert spec.module is not None
    folder = Path(tempfile.mkdtemp(prefix="flowctl-deno-"))
    (folder / "module.ts").write_text(spec.module.text)
    (folder / "interfaces.ts").write_text(generate_interfaces(spec))
    shutil.copy(Path(__file__).with_name("main.ts"), folder / "main.ts")
    imports = {f"flow/{spec.name}.ts": "./interfaces.ts"}
    (folder / "deno.json").write_bytes(orjson.dumps({"imports": imports, "lock": False}))
    return folder


def deno() -> str:
    """Path of the Deno binary that the package `deno` ships.

    Raises:
        TaskError: there is none for this platform.
    """
    from deno import find_deno_bin

    try:
        return str(find_deno_bin())
    except FileNotFoundError as exc:
        raise TaskError("the Deno runtime is not installed", hint="pip install deno") from exc


def environment() -> dict[str, str]:
    """Environment for Deno: no colours, no update checks, nothing fetched."""
    cache = Path(tempfile.gettempdir()) / f"flowctl-deno-cache-{os.getuid()}"
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "DENO_DIR": str(cache)}
