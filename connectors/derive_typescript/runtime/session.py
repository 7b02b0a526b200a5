"""A TypeScript module in Deno: its process, and its session."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import orjson

from connectors.derive_typescript.author_files import method_of
from connectors.derive_typescript.config import config_of, module_of, refusal_of
from connectors.derive_typescript.runtime.command import command_line, deno, environment, needs_guards
from connectors.derive_typescript.runtime.project import (
    authored,
    digest_of,
    member_position,
    position_in,
    project_folder,
)
from connectors.module_kit.process import POOL, Launch, ModuleProcess
from connectors.module_kit.session import Language, ModuleSession
from derive.errors import FlowError
from derive.position import Position
from derive.protocol.derive import Log
from derive.protocol.specs import DerivationSpec

if TYPE_CHECKING:
    import apsw

_FETCH = "fetch libraries ahead of time: flowctl generate --cache"


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


class TypeScriptSession(ModuleSession):
    """Methods of a derivation's class, running under Deno.

    Args:
        spec: the derivation.
        database: the shard's database, inside an open transaction.
        log: receives the module's messages.
    """

    language: ClassVar[Language] = Language(
        name="TypeScript",
        runtime="Deno",
        state_table="flow_typescript",
        commit_method="startCommit",
        timeout_option="--deno-timeout",
        log_hint="write to the task's log with 'console'",
    )

    def __init__(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> None:
        super().__init__(spec, database, log, module_of(spec), digest_of(spec), refusal_of(spec))

    def _start(self) -> DenoProcess:
        return DenoProcess(self._spec, self._digest)

    def _time_limit(self) -> float:
        return self._spec.limits.answer_seconds

    def _method_of(self, transform: str) -> str:
        return method_of(transform)

    def _member_position(self, name: str) -> Position:
        return member_position(self._module, name)

    def _position_in(self, text: str) -> Position | None:
        return position_in(self._module, text)

    def _authored(self, text: str) -> str:
        return authored(self._module, text)

    def _hint_of(self, message: str) -> str | None:
        return _FETCH if "--cached-only" in message else None
