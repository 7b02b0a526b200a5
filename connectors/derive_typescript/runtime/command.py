"""Runs Deno: its binary, its permissions, and its environment."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from connectors.derive_typescript.config import Permissions, config_of
from connectors.module_kit.projects import user_cache
from derive.errors import TaskError
from derive.protocol.specs import DerivationSpec

_LIBRARY = re.compile(rb"""["'`](?:npm|jsr|https?):""")

_BY_NAME = re.compile(rb"""["'`](?:node:)?module["'`]""")
"""Names of Node's module that returns all other modules."""

NO_NETWORK = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
"""Environment without a network for `deno check`: a proxy that does not exist, because options are ignored."""


def deno() -> str:
    """Return the path of the Deno binary in the package `deno`.

    Raises:
        TaskError: there is no binary for this platform.
    """
    try:
        from deno import find_deno_bin

        return str(find_deno_bin())
    except (ImportError, FileNotFoundError) as exc:
        raise TaskError("the Deno runtime, which runs TypeScript, is not installed", hint="pip install deno") from exc


def run_deno(
    arguments: Sequence[str], folder: Path, settings: Mapping[str, str] = NO_NETWORK
) -> subprocess.CompletedProcess[str]:
    """Run Deno until it ends, without input.

    Args:
        arguments: its command line arguments.
        folder: its working folder.
        settings: additional environment variables.
    """
    return subprocess.run(
        [deno(), *arguments],
        cwd=folder,
        env={**environment(), **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def needs_guards(spec: DerivationSpec) -> bool:
    """Return whether a module may load Node's modules by name, or may use libraries; both cases need all guards."""
    config = config_of(spec)
    texts = [config.module.text.encode(), *(file.content or b"" for file in config.imports)]
    return uses_libraries(spec) or any(_BY_NAME.search(text) for text in texts)


def uses_libraries(spec: DerivationSpec) -> bool:
    """Return whether a module may use libraries: it has an import map, or a file of it names a library."""
    config = config_of(spec)
    texts = [config.module.text.encode(), *(file.content or b"" for file in config.imports)]
    return bool(config.import_map) or any(_LIBRARY.search(text) for text in texts)


def command_line(spec: DerivationSpec) -> list[str]:
    """Return the options of `deno run` with the permissions of a derivation."""
    permissions = config_of(spec).permissions if spec.limits.allows_permissions else Permissions()
    granted = {"net": permissions.net, "read": permissions.read, "env": permissions.env}
    options = ["--no-check", "--no-prompt", "--cached-only", "--quiet"]
    options += [] if uses_libraries(spec) else ["--no-npm", "--no-remote"]
    options += [f"--allow-{name}={','.join(values)}" for name, values in granted.items() if values]
    return [*options, f"--v8-flags=--max-old-space-size={spec.limits.heap_megabytes}"]


def environment(spec: DerivationSpec | None = None) -> dict[str, str]:
    """Return the environment for Deno: no colours, no update checks, no downloads, and a fixed time zone (law L1)."""
    granted = config_of(spec).permissions.env if spec and spec.limits.allows_permissions else ()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", *granted) if name in os.environ}
    fixed = {"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "TZ": "UTC", "LANG": "en_US.UTF-8"}
    return {**kept, **fixed, "DENO_DIR": str(cache_folder())}


@cache
def cache_folder() -> Path:
    """Return Deno's folder of libraries and compiled modules: `DENO_DIR`, or a folder in this user's caches.

    A user without a writable folder gets a temporary folder.
    """
    if named := os.environ.get("DENO_DIR"):
        return Path(named).absolute()
    return user_cache("deno")
