"""Projects that are ready to run: their import graph is checked, and their libraries are fetched."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from connectors.derive_typescript.catalog.config import module_of
from connectors.derive_typescript.runtime.command import cache_folder, run_deno
from connectors.derive_typescript.runtime.graph import look_into
from connectors.derive_typescript.runtime.place import AUTHOR, MODULE, authored, position_in
from connectors.derive_typescript.runtime.project import CHECK, PREFIX, write_project
from derive.errors import LambdaError, TaskError
from derive.protocol.specs import DerivationSpec

_UNUSED_SECONDS = 30 * 86_400.0
_COMPLETE = "complete"
"""A file that marks a project whose import graph is checked and complete."""


def project_folder(spec: DerivationSpec, digest: str) -> Path:
    """Return the folder of a derivation's project, created if needed; the path, which a module can see, never changes.

    Args:
        spec: the derivation.
        digest: its digest by `digest_of`.

    Raises:
        LambdaError: the module imports a file outside the project.
    """
    folder = cache_folder() / "projects" / f"{PREFIX}{digest}"
    if folder.exists():
        os.utime(folder)
    else:
        _make(spec, folder)
    if not (folder / _COMPLETE).exists():
        [graph] = look_into({folder: spec}, folder / CHECK)
        for issue in graph.issues:
            raise LambdaError(f"'{spec.name}': {issue.message}", position=issue.position, hint=issue.hint)
        if graph.complete:
            (folder / _COMPLETE).touch()
    return folder


def _make(spec: DerivationSpec, folder: Path) -> None:
    """Write a project, and remove projects that have not been used for long."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        with suppress(OSError):  # another process may be faster
            if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(other)
    written = write_project(spec, folder.parent)
    try:
        written.rename(folder)
    except OSError:  # another process has created the folder
        shutil.rmtree(written)


_REGISTRY = (
    "NPM_CONFIG_REGISTRY",
    "JSR_URL",
    "DENO_CERT",
    "DENO_TLS_CA_STORE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
"""Environment variables that configure how Deno fetches libraries."""


def cache_modules(spec: DerivationSpec) -> list[str]:
    """Fetch the libraries that a module imports (`npm:`, `jsr:` and `https:`); no other function fetches.

    The libraries stay in `cache_folder`; checking and running use them without a network.

    Returns:
        Deno's output, a line for each fetched library.

    Raises:
        TaskError: a library cannot be fetched, or the module imports a file outside the project.
    """
    module = module_of(spec)
    folder = write_project(spec)
    settings = {name: value for name, value in os.environ.items() if name.upper() in _REGISTRY}
    try:
        [graph] = look_into({folder: spec}, folder / CHECK)
        for issue in graph.issues:
            raise TaskError(f"'{spec.name}': {issue.message}", position=issue.position, hint=issue.hint)
        run = run_deno(["cache", AUTHOR + MODULE], folder, {"DENO_TLS_CA_STORE": "system,mozilla", **settings})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if run.returncode != 0:
        said = authored(module, run.stderr.strip()[-1_000:])
        raise TaskError(
            f"libraries of '{spec.name}' cannot be fetched: {said}",
            position=position_in(module, run.stderr) or module.position,
        )
    return [line for line in run.stderr.splitlines() if line.startswith("Download ")]
