"""Projects that are ready to run: what they lead to has been looked into, and libraries have been fetched."""

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
"""A file that is in the folder once everything that the module leads to has been looked into."""


def project_folder(spec: DerivationSpec, digest: str) -> Path:
    """The project of a derivation, in a folder that stays: its path, which a module can see, is always the same.

    Args:
        spec: the derivation.
        digest: of it, by `digest_of`.

    Raises:
        LambdaError: the module leads to what is not the project's.
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
    """Write a project, and remove those that nobody has used for long."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        with suppress(OSError):  # somebody else may be faster
            if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(other)
    written = write_project(spec, folder.parent)
    try:
        written.rename(folder)
    except OSError:  # it is there by now
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
"""What tells Deno where to fetch libraries from."""


def cache_modules(spec: DerivationSpec) -> list[str]:
    """Fetch the libraries that a module imports (`npm:`, `jsr:` and `https:`), which is the only time anything is.

    They stay in `cache_folder`; checking and running use what is there, and no network.

    Returns:
        What Deno said of it, a line for each thing fetched.

    Raises:
        TaskError: a library cannot be fetched, or the module leads to what is not the project's.
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
