"""The process of a TypeScript module in Deno.

A process may start ahead of its session, before the libraries of a run are imported, so this module imports little.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import orjson

from connectors.derive_typescript.author_files import method_of
from connectors.derive_typescript.config import config_of, refusal_of
from connectors.derive_typescript.runtime.command import command_line, deno, environment, needs_guards
from connectors.derive_typescript.runtime.project import digest_of, project_folder
from connectors.module_kit.process import POOL, Launch, ModuleProcess
from derive.errors import FlowError
from derive.protocol.specs import DerivationSpec

_OUTSIDE_MEGABYTES, _CORE_MEGABYTES = 1024, 32
"""Address space that Deno itself reserves, fixed and per core: about 550 MB on two cores, mostly unused."""


class DenoProcess(ModuleProcess):
    """The harness with one derivation's module.

    Args:
        spec: the derivation.
        digest: its digest by `digest_of`.
    """

    def __init__(self, spec: DerivationSpec, digest: str) -> None:
        folder = project_folder(spec, digest)
        # outside V8's heap: buffers, and WebAssembly memory
        megabytes = 2 * spec.limits.heap_megabytes + _OUTSIDE_MEGABYTES + _CORE_MEGABYTES * (os.cpu_count() or 1)
        command, working = command_of(spec, folder), _working_folder(spec, folder)
        super().__init__(Launch("Deno", command, working, environment(spec), megabytes))


def start_ahead(spec: DerivationSpec) -> None:
    """Start a process for the next session of a derivation that opens without a state; the session reports errors."""
    if refusal_of(spec) is None:
        with suppress(FlowError, OSError):
            digest = digest_of(spec)
            POOL.give(digest, DenoProcess(spec, digest))


def command_of(spec: DerivationSpec, folder: Path) -> list[str]:
    """Return the command that runs a derivation's project in `folder`."""
    methods = [method_of(transform.name) for transform in spec.transforms]
    net = bool(config_of(spec).permissions.net) and spec.limits.allows_permissions
    argument = orjson.dumps({"methods": methods, "net": net, "guarded": needs_guards(spec)}).decode()
    return [deno(), "run", *command_line(spec), str(folder / "main.ts"), argument]


def _working_folder(spec: DerivationSpec, folder: Path) -> Path:
    """Return the working folder: beside the catalog for a module with permission to read there."""
    permissions = config_of(spec).permissions
    beside = permissions.folder
    return Path(beside) if permissions.read and beside and Path(beside).is_dir() else folder
