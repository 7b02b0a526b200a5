"""The process of a Python module.

A process may start ahead of its session, before the libraries of a run are imported, so this module imports little.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import Any

from connectors.derive_python.columns import columns_of, settings_of
from connectors.derive_python.config import Permissions, config_of, refusal_of
from connectors.derive_python.environment import find_missing, interpreter_of
from connectors.derive_python.models import method_of, read_of, source_of
from connectors.derive_python.runtime.project import (
    AUTHOR,
    HARNESS,
    TYPES,
    digest_of,
    keeps_state,
    project_folder,
    types_package,
)
from connectors.module_kit.process import POOL, Launch, ModuleProcess
from derive.document.pointer import parse_pointer
from derive.errors import FlowError
from derive.protocol.specs import DerivationSpec, TransformSpec

_KEPT_BYTES = 16 << 20

_FLAGS = ("-s", "-P", "-X", "utf8")
"""Options of Python. With `-I` or `-E`, Python would ignore `PYTHONHASHSEED`, and hashes would differ by process."""

_START = "import sys; sys.path.insert(0, sys.argv[1]); from flow_harness.main import main; main()"


class PythonProcess(ModuleProcess):
    """The harness with one derivation's module.

    Args:
        spec: the derivation.
        digest: its digest by `digest_of`.
    """

    def __init__(self, spec: DerivationSpec, digest: str) -> None:
        folder = project_folder(spec, digest)
        config, permissions = config_of(spec), granted(spec)
        settings = {
            "folder": str(folder),
            "author": str(folder / AUTHOR),
            "types": str(folder / TYPES),
            "harness": str(HARNESS),
            "package": types_package(spec),
            "module": config.path,
            "transforms": [transform.name for transform in spec.transforms],
            "methods": [method_of(transform.name) for transform in spec.transforms],
            "reads": [read_of(transform.name) for transform in spec.transforms],
            "sources": [source_of(transform.name) for transform in spec.transforms],
            "columns": [
                settings_of(columns_of(spec.sources[transform.input.source].read_schema))
                for transform in spec.transforms
            ],
            "published": settings_of(columns_of(spec.collection.write_schema)),
            "keys": [_key_pointers(transform) for transform in spec.transforms],
            "keeps_state": keeps_state(config),
            "config": config.config if config.config is not None else {},
            "readable": [os.path.realpath(path) for path in permissions.read],
            "network": permissions.net,
        }
        command = [interpreter_of(config), *_FLAGS, "-c", _START, str(HARNESS), json.dumps(settings)]
        super().__init__(
            Launch(
                name="Python",
                command=command,
                folder=folder / AUTHOR,
                environment=_environment(permissions),
                megabytes=spec.limits.python_megabytes,
                hang_signal=signal.SIGABRT,
            )
        )


def start_ahead(spec: DerivationSpec) -> None:
    """Start a process for the next session of a derivation that opens without a state; the session reports errors."""
    if refusal_of(spec) is None and find_missing(config_of(spec)) is None:
        with suppress(FlowError, OSError):
            digest = digest_of(spec)
            POOL.give(digest, PythonProcess(spec, digest))


def granted(spec: DerivationSpec) -> Permissions:
    """Return the permissions that a module has."""
    return config_of(spec).permissions if spec.limits.allows_permissions else Permissions()


def _environment(permissions: Permissions) -> dict[str, str]:
    """Return the environment of a process: a fixed time zone and language, and the variables that are granted."""
    kept = {name: os.environ[name] for name in ("PATH", *permissions.env) if name in os.environ}
    # freed memory is kept, because the system takes long to give it again
    memory = {"MALLOC_MMAP_THRESHOLD_": str(_KEPT_BYTES), "MALLOC_TRIM_THRESHOLD_": str(2 * _KEPT_BYTES)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**memory, **threads, **kept, "TZ": "UTC", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "HOME": "/nonexistent"}


def _key_pointers(transform: TransformSpec) -> list[tuple[list[str], Any]] | None:
    """Return the locations of a transform's shuffle key, each with its default; None without locations."""
    shuffle = transform.shuffle
    if shuffle.kind != "key":
        return None
    return [
        (list(parse_pointer(pointer)), default)
        for pointer, default in zip(shuffle.key, shuffle.key_defaults, strict=True)
    ]
