"""What Node's modules offer that tells the real time, real chance or the machine, and what takes its place.

A guard stands for such a module wherever it is imported: it has all of its names, and these in another form, which
`node/guard.ts` gives them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = "node"
"""Folder of the guards in a project."""

GUARDED = f"{FOLDER}/guarded_"
"""The beginning of the paths of the guards of single modules."""

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
"""For each of Node's modules that is guarded, the names that are; what is made of others comes first."""

UNGUARDED = "node:worker_threads"
"""Written so, a module that Deno finds before it looks at the import map."""

_PREFIXED_ONLY = ("sqlite",)
"""Modules that have no name but one that begins with `node:`."""


@cache
def guard_files() -> dict[str, bytes]:
    """The guards, by path in the project."""
    return {_path(module): _text(module, names.split()).encode() for module, names in _GUARDED.items()} | {
        f"{FOLDER}/all.ts": _all().encode(),
        f"{FOLDER}/libraries.ts": _libraries().encode(),
    }


@cache
def guard_imports() -> dict[str, str]:
    """What an import map makes of the modules' names."""
    return {name: f"./{_path(module)}" for module in _GUARDED for name in _names(module)}


@cache
def guard_scopes() -> dict[str, dict[str, str]]:
    """The guards' own import map: they are given what they guard."""
    return {f"./{FOLDER}/": {name: f"node:{module}" for module in _GUARDED for name in _names(module)}}


def _names(module: str) -> list[str]:
    return [f"node:{module}", *([] if module in _PREFIXED_ONLY else [module])]


def _path(module: str) -> str:
    return f"{GUARDED}{module.replace('/', '_')}.ts"


def _text(module: str, names: list[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    exported = "\n".join(f"export const {name} = guarded['{name}'];" for name in names)
    # Whoever can ask for modules by their names finds all of them guarded.
    all_of_them = "import './all.ts';\n" if module == "module" else ""
    return (
        f"{all_of_them}import original from 'node:{module}';\n"
        "import { guard } from './guard.ts';\n"
        f"export * from 'node:{module}';\n"
        f"const guarded = guard('{module}', original, [{listed}]);\n"
        f"{exported}\nexport default guarded;\n"
    )


def _all() -> str:
    """A module that loads every guard, and tells libraries' imports which one to take."""
    imports = "".join(f"import './{_file(module)}';\n" for module in _GUARDED)
    return f"import './workers.ts';\n{imports}import './libraries.ts';\n"


def _libraries() -> str:
    """The module that leads libraries to the guards: it holds which there are, and exports nothing to change that."""
    table = ", ".join(f"['{module}', '{_file(module)}']" for module in _GUARDED)
    text = (Path(__file__).parent / FOLDER / "libraries.ts").read_text()
    return text.replace("/* each module, and the file of its guard */", table)


def _file(module: str) -> str:
    return _path(module).partition("/")[2]
