"""Members of Node's modules that reveal the real time, randomness or the machine, and their replacements.

A guard replaces such a module in all imports: it has all of its names, and the listed ones in the form that
`node/guard.ts` gives them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
"""Modules whose only name begins with `node:`."""


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
    """Return the guards' own import map: they import the original modules."""
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
    """Return a module that loads every guard, and directs libraries' imports to the guards."""
    imports = "".join(f"import './{_file(module)}';\n" for module in _GUARDED)
    return f"import './workers.ts';\n{imports}import './libraries.ts';\n"


def _libraries() -> str:
    """Return the module that directs libraries to the guards; its table is not exported, so it cannot be changed."""
    table = ", ".join(f"['{module}', '{_file(module)}']" for module in _GUARDED)
    text = (Path(__file__).parent / FOLDER / "libraries.ts").read_text()
    return text.replace("/* each module, and the file of its guard */", table)


def _file(module: str) -> str:
    return _path(module).partition("/")[2]
