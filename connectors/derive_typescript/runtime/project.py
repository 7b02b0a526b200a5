"""Projects: the folders in which Deno runs, with the files of a module, a checked import graph and cached libraries.

Deno loads every file that an import names, without permission, and its type checker shows parts of such a file. So the
import graph is checked before a module is type-checked or run, and before its libraries are fetched.

Each file of the harness becomes a function that returns the file's exports; imports from other files read these
results.

Some modules of Node reveal the real time, randomness or the machine. A guard replaces such a module in all imports: the
guard has all names of the module, and the listed names in the form that `node/guard.ts` defines.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import orjson

from connectors.derive_typescript.author_files import generate_interfaces
from connectors.derive_typescript.config import ImportedFile, config_of, module_of
from connectors.derive_typescript.runtime.command import cache_folder, command_line, needs_guards, run_deno
from connectors.module_kit.projects import keep_project
from connectors.module_kit.projects import write_project as write_files
from derive.errors import Issue, LambdaError, TaskError
from derive.position import Position, Script
from derive.protocol.collection import owner_of_version
from derive.protocol.specs import DerivationSpec
from derive.recently_used import cached_by_identity

_ELSEWHERE = ("npm", "jsr", "https", "http", "node", "data")
_HINT = "a module imports files of its own project, and libraries"


@dataclass(frozen=True, slots=True)
class Graph:
    """The import graph of one module.

    Attributes:
        issues: E535 issues, imports of files outside the project.
        complete: whether all imported modules exist.
        libraries: identity of the fetched libraries, as JSON; empty if an imported module is missing.
    """

    issues: tuple[Issue, ...]
    complete: bool
    libraries: str = ""


def look_into(projects: Mapping[Path, DerivationSpec], root: Path) -> list[Graph]:
    """Return the import graph of each module, without downloads.

    Args:
        projects: derivations by project folder.
        root: a file that imports the file `CHECK` of each folder.
    """
    run = run_deno(["info", "--json", "--quiet", root.name], root.parent)
    try:
        answer = orjson.loads(run.stdout)
    except orjson.JSONDecodeError:
        return [_failure(spec, run.stderr) for spec in projects.values()]
    modules = {module["specifier"]: module for module in answer["modules"]}
    graphs = [_Walk(modules, answer["redirects"], folder, spec).graph() for folder, spec in projects.items()]
    libraries = _used_libraries(answer)
    return [replace(graph, libraries=libraries) if graph.complete else graph for graph in graphs]


def _used_libraries(answer: Mapping[str, Any]) -> str:
    """Return the identity of the libraries in an answer of `deno info`: versions of packages, and stamps of files."""
    packages = answer.get("npmPackages", {}).items()
    used = [[name, package.get("dependencies"), _stamp(package.get("localPath"))] for name, package in packages]
    for module in answer["modules"]:
        if not module["specifier"].startswith("file:"):
            used.append([module["specifier"], module.get("size"), _stamp(module.get("local"))])
    return orjson.dumps(sorted(used, key=repr)).decode()


def _stamp(path: str | None) -> int:
    """Return the time of the last change of a file or folder, in nanoseconds; 0 without one."""
    with suppress(OSError):
        return os.stat(path).st_mtime_ns if path else 0
    return 0


def _failure(spec: DerivationSpec, output: str) -> Graph:
    module = module_of(spec)
    message = f"'deno info' failed: {authored(module, output.strip()[-500:])}"
    return Graph((Issue("E531", message, module.position),), complete=False)


class _Walk:
    """A traversal of the imports of one project's module."""

    def __init__(
        self, modules: Mapping[str, Any], redirects: Mapping[str, str], folder: Path, spec: DerivationSpec
    ) -> None:
        self._modules = modules
        self._redirects = redirects
        self._spec = spec
        self._module = module_of(spec)
        self._folder = os.path.realpath(folder)
        self._left_out = {path_of(file) for file in config_of(spec).imports if file.outside}

    def graph(self) -> Graph:
        issues: dict[Issue, None] = {}
        complete = True
        begin = (Path(self._folder) / CHECK).as_uri()
        seen = {begin}
        pending = [(begin, self._module.position)]
        while pending:
            specifier, position = pending.pop()
            node = self._modules.get(specifier, {})
            complete = complete and bool(node) and "error" not in node
            for written, target, span in _dependencies(node):
                at = self._position(specifier, span) or position
                reached = self._redirects.get(target, target)
                if written == UNGUARDED:
                    issues.setdefault(Issue("E535", f"'{written}' is not available to derivations", at))
                elif not self._is_fine(reached):
                    message = f"'{written}' is neither a file of the project nor a library"
                    issues.setdefault(Issue("E535", message, at, _HINT))
                elif reached not in seen and not (self._path(reached) or "").startswith(f"{FOLDER}/"):
                    seen.add(reached)
                    pending.append((reached, at))
        return Graph(tuple(issues), complete and not issues)

    def _is_fine(self, specifier: str) -> bool:
        """Return whether a module may import a file; add an issue otherwise."""
        scheme, _, rest = specifier.partition(":")
        if scheme == "npm":  # the path of a file in a package may lead outside the package
            return ".." not in unquote(rest).replace("\\", "/").split("/")
        path = self._path(specifier)
        if path is None:
            return scheme in _ELSEWHERE
        return (
            path in (CHECK, INTERFACES)
            or path.startswith(GUARDED)
            or (path.startswith("author/") and path not in self._left_out)
        )

    def _path(self, specifier: str) -> str | None:
        """Return the path of a `file:` URL in the project, with `..` if it is outside; None for other URLs."""
        if not specifier.startswith("file:"):
            return None
        return os.path.relpath(os.path.realpath(unquote(urlsplit(specifier).path)), self._folder)

    def _position(self, specifier: str, span: Mapping[str, Any] | None) -> Position | None:
        """Return the position of an import; None if it is not in a file of the author's."""
        path = self._path(specifier) or ""
        if not path.startswith("author/") or span is None:
            return None
        begin, end = span["start"], span["end"]
        length = end["character"] - begin["character"] if end["line"] == begin["line"] else 0
        return place_in(self._module, path, begin["line"] + 1, begin["character"] + 1, length)


def _dependencies(node: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any] | None]]:
    """Yield the imports of a module: specifier as written, resolved specifier, and position."""
    for dependency in node.get("dependencies", ()):
        for kind in ("code", "type"):
            target = dependency.get(kind, {})
            if "specifier" in target:
                is_other = kind == "type" and "code" in dependency  # a comment names the types of the import
                yield (
                    target["specifier"] if is_other else dependency["specifier"],
                    target["specifier"],
                    target.get("span"),
                )


_COMPLETE = "complete"
"""Name of the file that marks a project whose import graph is checked and complete."""


def project_folder(spec: DerivationSpec, digest: str) -> Path:
    """Return the folder of a derivation's project, created if needed.

    The path is constant, because a module can see it.

    Args:
        spec: the derivation.
        digest: its digest by `digest_of`.

    Raises:
        LambdaError: the module imports a file outside the project.
    """
    folder = cache_folder() / "projects" / f"{PREFIX}{digest}"
    keep_project(folder, lambda parent: write_project(spec, parent))
    if not (folder / _COMPLETE).exists():
        [graph] = look_into({folder: spec}, folder / CHECK)
        for issue in graph.issues:
            raise LambdaError(f"'{spec.name}': {issue.message}", position=issue.position, hint=issue.hint)
        if graph.complete:
            (folder / _COMPLETE).touch()
    return folder


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

    The libraries stay in `cache_folder`; `deno check` and `deno run` use them without a network.

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
        output = authored(module, run.stderr.strip()[-1_000:])
        raise TaskError(
            f"libraries of '{spec.name}' cannot be fetched: {output}",
            position=position_in(module, run.stderr) or module.position,
        )
    return [line for line in run.stderr.splitlines() if line.startswith("Download ")]


_IMPORT = re.compile(r"^import (?:\{([^}]*)\} from )?'\./(\w+)\.ts';\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|let|class) )(\w+)", re.MULTILINE)
_EXPORTED_TYPE = re.compile(r"^export (?=interface |type )", re.MULTILINE)
_LISTED = re.compile(r"^export \{([^}]*)\};\n", re.MULTILINE)


def bundle(files: Mapping[str, str]) -> str:
    r"""Join files into one module.

    >>> print(bundle({"a": "export const one = 1;\n", "main": "import { one as first } from './a.ts';\nfirst;\n"}))
    const from_a = (() => {
    const one = 1;
    return { one };
    })();
    const { one: first } = from_a;
    first;
    <BLANKLINE>

    Args:
        files: texts by name, each after the files that it imports; the last one exports nothing.

    Raises:
        ValueError: an import or export has an unsupported form.
    """
    parts = []
    for place, (name, text) in enumerate(files.items(), start=1):
        body, exported = _unwrapped(text)
        if place < len(files):
            body = f"const from_{name} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"
        parts.append(body)
    return "".join(parts)


def _unwrapped(text: str) -> tuple[str, list[str]]:
    """Return the text of a file without its imports and exports, and the names that it exports."""
    exported = [match[2] for match in _EXPORT.finditer(text)]
    for listed in _LISTED.finditer(text):
        exported += [name.strip() for name in listed[1].split(",") if name.strip()]
    body = _LISTED.sub("", _EXPORTED_TYPE.sub("", _EXPORT.sub(r"\1\2", text)))
    body = _IMPORT.sub(lambda match: _taken(match[1] or "", match[2]), body)
    if re.search(r"^(?:import|export)\b(?! ?\()", body, re.MULTILINE):
        raise ValueError("the harness imports or exports in a way that cannot be bundled")
    return body, exported


def _taken(names: str, file: str) -> str:
    """Return the statement that replaces an import."""
    written = [name.strip() for name in names.split(",")]
    values = [name.replace(" as ", ": ") for name in written if name and not name.startswith("type ")]
    return f"const {{ {', '.join(values)} }} = from_{file};\n" if values else ""


FOLDER = "node"
"""Folder of the guards in a project."""

GUARDED = f"{FOLDER}/guarded_"
"""Prefix of the paths of single modules' guards."""

_GUARDED = {
    "crypto": "DiffieHellman DiffieHellmanGroup ECDH Sign createDiffieHellman createDiffieHellmanGroup createECDH"
    " createSign diffieHellman generateKey generateKeyPair generateKeyPairSync generateKeySync generatePrime"
    " generatePrimeSync getDiffieHellman getRandomValues pseudoRandomBytes publicEncrypt randomBytes randomFill"
    " randomFillSync randomInt randomUUID secureHeapUsed sign",
    "perf_hooks": "PerformanceObserver PerformanceObserverEntryList createHistogram enqueueNodePerformanceEntry"
    " eventLoopUtilization monitorEventLoopDelay performance timerify",
    "vm": "Module Script SourceTextModule SyntheticModule compileFunction createContext createScript measureMemory"
    " runInContext runInNewContext runInThisContext",
    "worker_threads": "BroadcastChannel Worker locks moveMessagePortToContext postMessageToThread",
    "v8": "GCProfiler getHeapCodeStatistics getHeapSnapshot getHeapSpaceStatistics getHeapStatistics queryObjects"
    " setFlagsFromString setHeapSnapshotNearHeapLimit startupSnapshot stopCoverage takeCoverage writeHeapSnapshot",
    "timers": "clearImmediate clearInterval clearTimeout promises setImmediate setInterval setTimeout",
    "timers/promises": "scheduler setImmediate setInterval setTimeout",
    "console": "Console assert clear count countReset debug dir dirxml error group groupCollapsed groupEnd info log"
    " profile profileEnd table time timeEnd timeLog timeStamp trace warn",
    "os": "availableParallelism",
    "sqlite": "DatabaseSync StatementSync backup",
    "inspector/promises": "Session console open waitForDebugger",
    "inspector": "Session console open waitForDebugger",
    "_http_outgoing": "OutgoingMessage",
    "_http_server": "Server ServerResponse _connectionListener",
    "http": "OutgoingMessage Server ServerResponse _connectionListener createServer",
    "https": "Server createServer",
    "http2": "Http2ServerResponse connect createSecureServer createServer performServerHandshake",
    "tls": "CryptoStream SecurePair Server TLSSocket connect createSecurePair createServer",
    "module": "register registerHooks runMain",
    "wasi": "WASI",
    "repl": "REPLServer start",
    "trace_events": "createTracing",
    "fs": "fstat fstatSync appendFile appendFileSync close closeSync createReadStream createWriteStream fchmod"
    " fchmodSync fchown fchownSync fdatasync fdatasyncSync fsync fsyncSync ftruncate ftruncateSync futimes futimesSync"
    " read readFile readFileSync readSync readv readvSync write writeFile writeFileSync writeSync writev writevSync",
    "tty": "ReadStream WriteStream",
    "process": "_debugProcess _getActiveHandles _getActiveRequests _kill abort argv availableMemory binding"
    " constrainedMemory cpuUsage execPath exit getActiveResourcesInfo getBuiltinModule hrtime kill memoryUsage"
    " reallyExit resourceUsage stderr stdin stdout threadCpuUsage uptime",
}
"""For each guarded module of Node, its guarded names; modules that others are built from come first."""

UNGUARDED = "node:worker_threads"
"""A specifier that Deno resolves before it consults the import map."""

_PREFIXED_ONLY = ("sqlite",)
"""Modules that can be imported only with the prefix `node:`."""


@cache
def guard_files() -> dict[str, bytes]:
    """Return the guards, by path in the project."""
    return {_path(module): _text(module, names.split()).encode() for module, names in _GUARDED.items()} | {
        f"{FOLDER}/all.ts": _all().encode(),
        f"{FOLDER}/libraries.ts": _libraries().encode(),
    }


@cache
def guard_imports() -> dict[str, str]:
    """Return the import map entries of the guarded modules."""
    return {name: f"./{_path(module)}" for module in _GUARDED for name in _names(module)}


@cache
def guard_scopes() -> dict[str, dict[str, str]]:
    """Return the import map of the guards, which import the original modules."""
    return {f"./{FOLDER}/": {name: f"node:{module}" for module in _GUARDED for name in _names(module)}}


def _names(module: str) -> list[str]:
    return [f"node:{module}", *([] if module in _PREFIXED_ONLY else [module])]


def _path(module: str) -> str:
    return f"{GUARDED}{module.replace('/', '_')}.ts"


def _text(module: str, names: list[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    exported = "\n".join(f"export const {name} = guarded['{name}'];" for name in names)
    # A module that can load modules by name needs all guards.
    all_of_them = "import './all.ts';\n" if module == "module" else ""
    return (
        f"{all_of_them}import original from 'node:{module}';\n"
        "import { guard } from './guard.ts';\n"
        f"export * from 'node:{module}';\n"
        f"const guarded = guard('{module}', original, [{listed}]);\n"
        f"{exported}\nexport default guarded;\n"
    )


def _all() -> str:
    """Return a module that loads every guard, and that directs the imports of libraries to the guards."""
    imports = "".join(f"import './{_file(module)}';\n" for module in _GUARDED)
    return f"import './workers.ts';\n{imports}import './libraries.ts';\n"


def _libraries() -> str:
    """Return the module that directs libraries to the guards.

    Modules cannot change its table, which is not exported.
    """
    table = ", ".join(f"['{module}', '{_file(module)}']" for module in _GUARDED)
    text = (Path(__file__).parent / FOLDER / "libraries.ts").read_text()
    return text.replace("/* each module, and the file of its guard */", table)


def _file(module: str) -> str:
    return _path(module).partition("/")[2]


AUTHOR = "author/" + 8 * "up/"
"""Folder of the author's module in the project; it is nested, so that imports from parent folders have a place."""

MODULE = "module.ts"
"""The module's name in this folder."""

_URL = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/(author/[^\s'\":()]+)(?::(\d+):(\d+))?")
_NEIGHBOUR = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/")
_HARNESS_LINE = re.compile(r"\s+at .*(?:/flowctl-deno-[^/\s]+/(?!author/)|\bext:)")


def position_in(module: Script, text: str, length: int = 0) -> Position | None:
    """Return the author's position that a message or stack of Deno names first; None if missing."""
    for written in _URL.finditer(text):
        if written[2]:
            return place_in(module, written[1], int(written[2]), int(written[3]), length)
    return None


def place_in(module: Script, path: str, line: int, column: int, length: int = 0) -> Position:
    """Return the position in one of the author's files; `path` is its path in the project."""
    if path == AUTHOR + MODULE:
        return module.locate_line(line, column, length)
    return Position(_shown(module, path), line, column, length)


def _shown(module: Script, path: str) -> str:
    """Return the path by which the author knows a file of the project."""
    if path == AUTHOR + MODULE:
        return module.position.file
    beside = posixpath.relpath(path, AUTHOR)
    if "://" in module.position.file:
        return urljoin(module.position.file, beside)
    return posixpath.normpath(posixpath.join(posixpath.dirname(module.position.file), beside))


def member_position(module: Script, name: str) -> Position:
    """Return the probable position of a class member with this name; the module's beginning if it is not found."""
    member = re.search(rf"(?<![\w.]){re.escape(name)}(?=\s*[(=])", module.text)
    return module.locate(member.start(), len(name)) if member else module.position


def authored(module: Script, text: str) -> str:
    """Return a message of Deno with the author's files and positions, without stack lines of the harness."""

    def replaced(written: re.Match[str]) -> str:
        if written[2]:
            return str(place_in(module, written[1], int(written[2]), int(written[3])))
        return _shown(module, written[1])

    lines = [line for line in text.split("\n") if not _HARNESS_LINE.match(line)]
    return _NEIGHBOUR.sub("./", _URL.sub(replaced, "\n".join(lines)))


CHECK = "check.ts"
"""The root file of `deno check`; `check.py` depends on its lines."""

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
    return write_files(_files(spec), PREFIX, parent)


@cached_by_identity
def digest_of(spec: DerivationSpec) -> str:
    """Return a digest of the files and options with which a derivation runs."""
    files = {**_files(spec), "": orjson.dumps(command_line(spec))}
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:32]


def _files(spec: DerivationSpec) -> dict[str, bytes]:
    options = {"noImplicitOverride": False}  # permits `flush`, `startCommit` and `reset` without `override`
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
        raise TaskError(
            f"the module imports '{file.path}', which is too many folders above the module",
            hint="move the file to the folder of the catalog, or below",
        )
    return path


def _imports(spec: DerivationSpec) -> dict[str, str]:
    """Return the import map: Node's modules lead to their guards, also if the author gives them names."""
    guards = guard_imports()
    named = {name: guards.get(target, _settled(target)) for name, target in config_of(spec).import_map}
    fixed = {name: path for name, path in guards.items() if name.startswith("node:")}
    name = owner_of_version(spec.name) or spec.name  # authors import the types of the collection, also in a shadow
    return {**guards, **named, **fixed, f"flow/{name}.ts": f"./{INTERFACES}"}


def _settled(target: str) -> str:
    """Return the target of an import name, as a path relative to the project's folder."""
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
