"""The folder Deno runs in: the author's module, the types it imports, and the harness."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import orjson

from connectors.derive_typescript.place import AUTHOR, MODULE, authored, position_in
from connectors.derive_typescript.types import generate_interfaces
from derive.errors import TaskError
from derive.position import Script
from derive.protocol.sandbox import Permissions
from derive.protocol.specs import DerivationSpec, ImportedFile

CHECK = "check.ts"
"""The file that `deno check` begins with; its lines are known to `check.py`."""

_ENTRY = "derivation.ts"
"""What the harness imports: without permission to read, Deno loads only what it finds written in an import."""

_PREFIX = "flowctl-deno-"
_HARNESS = ("main.ts", "frames.ts", "say.ts", "present.ts", "timers.ts", "documents.ts", "absent.ts", "node.ts")
_MARKS = (b"node:", b"npm:", b"jsr:", b"https:", b"http:")
"""One of them is in every module that uses libraries, or what Node has and Deno imitates."""

_UNUSED_SECONDS = 30 * 86_400.0


def module_of(spec: DerivationSpec) -> Script:
    """The module of a TypeScript derivation.

    Raises:
        TaskError: the derivation has none.
    """
    if spec.module is None:
        raise TaskError(f"'{spec.name}' names no TypeScript module", position=spec.collection.position)
    return spec.module


def write_project(spec: DerivationSpec, parent: Path | None = None) -> Path:
    """Write the project of a derivation into a new folder; the caller removes it.

    Args:
        spec: the derivation.
        parent: where the folder is; None for where temporary files are.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    for name, content in _files(spec).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def project_folder(spec: DerivationSpec, digest: str) -> Path:
    """The project of a derivation, in a folder that stays: its path, which a module can see, is always the same.

    Args:
        spec: the derivation.
        digest: of it, by `digest_of`.
    """
    parent = cache_folder() / "projects"
    folder = parent / f"{_PREFIX}{digest}"
    if folder.exists():
        os.utime(folder)
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    for each in parent.iterdir():
        with suppress(OSError):  # somebody else may be faster
            if time.time() - each.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(each)
    written = write_project(spec, parent)
    try:
        written.rename(folder)
    except OSError:  # it is there by now
        shutil.rmtree(written)
    return folder


def digest_of(spec: DerivationSpec) -> str:
    """Names what a process that runs this derivation runs."""
    files = {**_files(spec), "": orjson.dumps(command_line(spec))}
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:32]


def _files(spec: DerivationSpec) -> dict[str, bytes]:
    imports = {**dict(spec.libraries), f"flow/{spec.name}.ts": "./interfaces.ts"}
    options = {"noImplicitOverride": False}  # `flush` and its kin, with or without `override`
    return {
        AUTHOR + MODULE: module_of(spec).text.encode(),
        **{_place_of(each): _content_of(each) for each in spec.imports},
        "interfaces.ts": generate_interfaces(spec).encode(),
        CHECK: _check_text().encode(),
        _ENTRY: _entry_text(spec).encode(),
        "deno.json": orjson.dumps({"imports": imports, "lock": False, "compilerOptions": options}),
        **_harness(),
    }


def _place_of(file: ImportedFile) -> str:
    place = posixpath.normpath(AUTHOR + file.path)
    if not place.startswith("author/"):
        raise TaskError(f"the module imports '{file.path}', which is too far above it")
    return place


def _content_of(file: ImportedFile) -> bytes:
    return f"export * from './{MODULE}';\n".encode() if file.content is None else file.content


@cache
def _harness() -> dict[str, bytes]:
    return {name: Path(__file__).with_name(name).read_bytes() for name in _HARNESS}


def _entry_text(spec: DerivationSpec) -> str:
    texts = [module_of(spec).text.encode(), *(each.content or b"" for each in spec.imports)]
    node = bool(spec.libraries) or any(mark in text for text in texts for mark in _MARKS)
    lines = [
        *(["import './node.ts';"] if node else []),
        "import * as interfaces from './interfaces.ts';",
        f"import * as module from './{AUTHOR}{MODULE}';",
        "export { interfaces, module };",
    ]
    return "\n".join(lines) + "\n"


def _check_text() -> str:
    lines = [
        f"import {{ Derivation }} from './{AUTHOR}{MODULE}';",
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


def command_line(spec: DerivationSpec) -> list[str]:
    """Options of `deno run` for a derivation: what it may use, and no more."""
    permissions = spec.permissions if spec.limits.allows_permissions else Permissions()
    granted = {"net": permissions.net, "read": permissions.read, "env": permissions.env}
    options = ["--no-check", "--no-prompt", "--cached-only", "--quiet"]
    options += [f"--allow-{name}={','.join(values)}" for name, values in granted.items() if values]
    return [*options, f"--v8-flags=--max-old-space-size={spec.limits.heap_megabytes}"]


def environment(spec: DerivationSpec | None = None) -> dict[str, str]:
    """Environment for Deno: no colours, no update checks, nothing fetched, and one time zone everywhere (law L1)."""
    granted = spec.permissions.env if spec and spec.limits.allows_permissions else ()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", *granted) if name in os.environ}
    fixed = {"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "TZ": "UTC", "LANG": "en_US.UTF-8"}
    return {**kept, **fixed, "DENO_DIR": str(cache_folder())}


@cache
def cache_folder() -> Path:
    """Where Deno keeps libraries and compiled modules: `DENO_DIR`, or a folder among this user's caches.

    A user without a folder to write to gets one where temporary files are.
    """
    if named := os.environ.get("DENO_DIR"):
        return Path(named).absolute()
    with suppress(OSError, RuntimeError):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home).absolute() / "flowctl" / "deno"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.gettempdir()) / f"flowctl-deno-cache-{os.getuid()}"


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
        TaskError: a library cannot be fetched.
    """
    module = module_of(spec)
    folder = write_project(spec)
    settings = {name: value for name, value in os.environ.items() if name.upper() in _REGISTRY}
    try:
        run = subprocess.run(
            [deno(), "cache", AUTHOR + MODULE],
            cwd=folder,
            env={"DENO_TLS_CA_STORE": "system,mozilla", **environment(), **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if run.returncode != 0:
        said = authored(module, run.stderr.strip()[-1_000:])
        raise TaskError(
            f"libraries of '{spec.name}' cannot be fetched: {said}",
            position=position_in(module, run.stderr) or module.position,
        )
    return [line for line in run.stderr.splitlines() if line.startswith("Download ")]
