"""Every source of chance, time, place and history in Deno follows the document, is refused, or is on the page (L1).

The table of the page is gone through, name by name; besides, all that can be reached is looked at in two processes of
different histories, and whatever differs must be on the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typescript_derivation import HEAD, derivation, invoke, open_session

from connectors.module_kit.process import POOL
from derive.document.pointer import JSON
from derive.errors import LambdaError

pytestmark = [pytest.mark.deno, pytest.mark.usefixtures("empty_pool")]

PAGE = (Path(__file__).parents[2] / "docs" / "typescript-runtime.md").read_text()
TABLE = PAGE.partition("| source | in a derivation |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()


def answer(expression: str, *, before: int = 0, head: str = "") -> JSON:
    """Return the value of an expression in a process that has worked on so many documents; the error if it fails."""
    text = (
        f"{HEAD}{head}\nexport class Derivation extends IDerivation {{\n    async fromIn(read: any): Promise<any> {{\n"
        "        const process = (globalThis as any).process;\n"
        "        if (read.doc.id === 0) { await new Promise((done) => setTimeout(done, 1)); Math.random(); return []; }\n"
        f"        return [{{ id: 1, value: await ({expression}) }}];\n    }}\n}}\n"
    )
    session = open_session(derivation(text))
    try:
        return invoke(session, [{"id": 0}] * before + [{"id": 1}])[-1][1]["value"]
    except LambdaError as exc:
        return exc.message.removeprefix("transform 'fromIn' of 'acme/out' failed: ")
    finally:
        session.close()
        POOL.close()


CRYPTO = "import * as crypto_ from 'node:crypto';"
OS = "import * as os from 'node:os';"
# For each row of the page, by its beginning: an expression, imports, and what it gives; None if only the page tells.
ROWS: dict[str, tuple[str, str, str] | None] = {
    "`Date`, `Temporal.Now`": (
        (
            "[Date.now(), (globalThis as any).Temporal.Now.instant().epochMilliseconds, new Intl.DateTimeFormat('en').format(),"
            " performance.now(), process.hrtime()[0], new Event('x').timeStamp, new File([], 'x').lastModified].join()"
        ),
        "",
        "1700000000123,1700000000123,11/14/2023,1700000000123,1700000000,1700000000123,1700000000123",
    ),
    "the time zone": (
        "[new Date(0).toLocaleString(), Intl.DateTimeFormat().resolvedOptions().timeZone, navigator.language].join()",
        "",
        "1/1/1970, 12:00:00 AM,UTC,en-US",
    ),
    "`Math.random`": (
        "[Math.random(), crypto.getRandomValues(new Uint8Array(2)), crypto.randomUUID(), crypto_.randomInt(99)].length",
        CRYPTO,
        "4",
    ),
    "random bytes that a library": None,  # tested with a library, in test_derive_typescript_project.py
    "keys, and signatures": (
        "crypto.subtle.generateKey('Ed25519', true, ['sign'])",
        "",
        "Error: crypto.subtle.generateKey of ED25519 gives something else each time",
    ),
    "`URL.createObjectURL`": (
        "typeof FormData + URL.createObjectURL(new Blob([]))",
        "",
        "Error: URL.createObjectURL gives something else each time",
    ),
    "`setTimeout`": ("new Promise((done) => setTimeout(() => done(Date.now()), 9e9))", "", "1700000000123"),
    "`WeakRef`": ("new WeakRef({ a: 1 }).deref()!.a", "", "1"),
    "`process.pid`": (
        (
            "[typeof process.pid, process.uptime(), process.memoryUsage().rss, process.cpuUsage().user,"
            " typeof Deno.memoryUsage].join()"
        ),
        "",
        "undefined,0,0,0,undefined",
    ),
    "`process.argv`": ("[process.argv.length, process.execPath, Deno.execPath()].join()", "", "0,deno,deno"),
    "`Deno.env`": ("Deno.hostname()", "", "NotCapable: Requires sys access"),
    "files, the network": ("Deno.readTextFileSync('/etc/hosts')", "", "NotCapable: Requires read access"),
    "`Worker`": (
        "[typeof Worker, typeof BroadcastChannel, typeof localStorage, typeof caches].join()",
        "",
        "undefined",
    ),
    "`node:vm`": (
        "vm.runInNewContext('1')",
        "import * as vm from 'node:vm';",
        "Error: 'runInNewContext' of node:vm would show more than documents",
    ),
    "standard input": ("Deno.stdin.readSync(new Uint8Array(1)) === null", "", "True"),
    "the path of the module": None,
    "the kind of the machine": None,
    "counters of the process": None,
    "how deep a recursion": None,
    "the order of what runs": None,
    "variables of modules": None,
}


def test_source_table_and_tests_have_the_same_rows() -> None:
    assert len(TABLE) == len(ROWS)
    for row, begin in zip(TABLE, ROWS, strict=True):
        assert row.startswith(f"| {begin}")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("begin", [begin for begin, row in ROWS.items() if row is not None])
def test_sources_behave_as_the_table_states(begin: str) -> None:
    expression, head, expected = ROWS[begin] or ("", "", "")
    value = str(answer(expression, head=head))
    assert value.startswith(expected)
    assert value == str(answer(expression, head=head, before=7))


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (
            "globalThis",
            ("Symbol() Symbol([[webidl.brand]]) Symbol(flow.present) Symbol(flow.sleeping) atob btoa clearImmediate"
            " clearInterval clearTimeout close closed console createImageBitmap crypto decodeURI decodeURIComponent"
            " encodeURI encodeURIComponent escape eval fetch global globalThis isFinite isNaN location name navigator"
            " nodeBootstrap onbeforeunload onerror onload onunhandledrejection onunload parseFloat parseInt performance"
            " process queueMicrotask reportError self setImmediate setInterval setTimeout structuredClone undefined"
            " unescape"),
        ),
        (
            "Deno",
            ("addSignalListener bench build chdir chmod chmodSync chown chownSync connect connectTls copyFile"
            " copyFileSync create createHttpClient createSync cwd dlopen env errors execPath exit exitCode gid hostname"
            " inspect isatty jupyter kill link linkSync lint listen listenTls loadavg lstat lstatSync mainModule"
            " makeTempDir makeTempDirSync makeTempFile makeTempFileSync mkdir mkdirSync networkInterfaces noColor open"
            " openSync osRelease osUptime permissions readDir readDirSync readFile readFileSync readLink readLinkSync"
            " readTextFile readTextFileSync realPath realPathSync refTimer remove removeSignalListener removeSync rename"
            " renameSync resolveDns run serve serveHttp spawn spawnAndWait spawnAndWaitSync startTls stat statSync"
            " stderr stdin stdout symlink symlinkSync systemMemoryInfo test truncate truncateSync uid umask unrefTimer"
            " upgradeWebSocket utime utimeSync version watchFs writeFile writeFileSync writeTextFile writeTextFileSync"),
        ),
        (
            "Math",
            ("Symbol(Symbol.toStringTag) abs acos acosh asin asinh atan atan2 atanh cbrt ceil clz32 cos cosh exp expm1"
            " f16round floor fround hypot imul log log10 log1p log2 max min pow random round sign sin sinh sqrt"
            " sumPrecise tan tanh trunc"),
        ),
        ("Crypto.prototype", ("Symbol(Deno.privateCustomInspect) Symbol(Symbol.toStringTag) constructor getRandomValues"
         " randomUUID subtle")),
        (
            "SubtleCrypto.prototype",
            ("Symbol(Deno.privateCustomInspect) Symbol(Symbol.toStringTag) constructor decapsulateBits decapsulateKey"
            " decrypt deriveBits deriveKey digest encapsulateBits encapsulateKey encrypt exportKey generateKey"
            " getPublicKey importKey sign unwrapKey verify wrapKey"),
        ),
        (
            "Performance.prototype",
            ("Symbol(Deno.privateCustomInspect) Symbol(Symbol.toStringTag) clearMarks clearMeasures clearResourceTimings"
            " constructor getEntries getEntriesByName getEntriesByType mark measure now setResourceTimingBufferSize"
            " timeOrigin toJSON"),
        ),
        (
            "(globalThis as any).Temporal.Now",
            "Symbol(Symbol.toStringTag) instant plainDateISO plainDateTimeISO plainTimeISO timeZoneId zonedDateTimeISO",
        ),
    ],
)  # fmt: skip
def test_new_global_name_of_deno_is_noticed(target: str, names: str) -> None:
    """A name is added here once somebody has looked whether it follows the document."""
    found = answer(
        f"Reflect.ownKeys({target}).map(String).filter((name) => /^Symbol\\(/.test(name) || !/^[A-Z]/.test(name)).sort().join(' ')"
    )
    assert isinstance(found, str)
    assert sorted(set(found.split(" ")) - set(names.split(" "))) == []


def test_new_node_module_of_deno_is_noticed() -> None:
    known = [
        "_http_agent",
        "_http_common",
        "_http_outgoing",
        "_http_server",
        "_stream_duplex",
        "_stream_passthrough",
        "_stream_readable",
        "_stream_transform",
        "_stream_writable",
        "_tls_common",
        "_tls_wrap",
        "assert",
        "assert/strict",
        "async_hooks",
        "buffer",
        "child_process",
        "cluster",
        "console",
        "constants",
        "crypto",
        "dgram",
        "diagnostics_channel",
        "dns",
        "dns/promises",
        "domain",
        "events",
        "fs",
        "fs/promises",
        "http",
        "http2",
        "https",
        "inspector",
        "inspector/promises",
        "module",
        "net",
        "node:sqlite",
        "node:test",
        "node:test/reporters",
        "os",
        "path",
        "path/posix",
        "path/win32",
        "perf_hooks",
        "process",
        "punycode",
        "querystring",
        "readline",
        "readline/promises",
        "repl",
        "stream",
        "stream/consumers",
        "stream/promises",
        "stream/web",
        "string_decoder",
        "sys",
        "timers",
        "timers/promises",
        "tls",
        "trace_events",
        "tty",
        "url",
        "util",
        "util/types",
        "v8",
        "vm",
        "wasi",
        "worker_threads",
        "zlib",
    ]
    found = answer("builtinModules.sort().join(' ')", head="import { builtinModules } from 'node:module';")
    assert isinstance(found, str)
    assert set(found.split(" ")) - set(known) == set()


WALK = Path(__file__).with_name("reachable.ts").read_text()
OF_THE_PROCESS = {"stack of an error", "id of an async resource"}
"""The values that differ between two processes; the page names both."""

OF_THE_MACHINE = re.compile(
    r"path(/posix)?(\.posix|\.win32)*\.resolve\(\)|sys\.getCallSites\(\)|os\.(machine|platform|arch)|process\.cwd\(\)"
    r"|Deno\.(cwd\(\)|version\.|build\.|mainModule)|import\.meta|stack of an error|process\.(version|arch|platform|config)"
    r"|navigator\.|process\.release"
)


def test_reachable_values_are_equal_in_two_processes() -> None:
    """Thousands of values and results: none is of the time, the process or what was processed before, but those named."""
    seen: list[dict[str, str]] = []
    for before in (0, 37):
        session = open_session(derivation(HEAD + WALK))
        [*_, (_, document)] = invoke(session, [{"id": 0}] * before + [{"id": 1, "walk": True}])
        session.close()
        POOL.close()
        seen.append(document["reached"])
    first, second = seen
    assert len(first) > 5_000
    assert {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)} <= OF_THE_PROCESS
    here = [name for name, value in first.items() if re.search(r"/flowctl-deno-|x86_64|aarch64|linux|darwin", value)]
    assert [name for name in here if not OF_THE_MACHINE.search(name)] == []
