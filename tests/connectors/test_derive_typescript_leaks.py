"""No way leads to the real clock or to real chance, however a module asks for them.

Each attempt is made twice, in processes of their own; what it gives must be the same, and no time of today.
"""

from __future__ import annotations

import pytest
from typescript_derivation import HEAD, derivation, lambdas, run

from connectors.derive_typescript.runtime.project import guard_imports
from connectors.module_kit.process import POOL
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.specs import DerivationSpec

pytestmark = [pytest.mark.deno, pytest.mark.usefixtures("empty_pool")]

NOW = 1_700_000_000_123
UTC = "2023-11-14T22:13:20.123Z"


def answer(body: str, head: str = "") -> JSON:
    """What a method body returns as `value`, in a process of its own; the error if it fails."""
    text = (
        f"{HEAD}{head}\nexport class Derivation extends IDerivation {{\n    async fromIn(read: any): Promise<any> {{\n"
    )
    spec: DerivationSpec = derivation(f"{text}{body}\n    }}\n}}\n")
    POOL.close()
    try:
        return run(spec, [{"id": 1}])[0][1]["value"]
    except LambdaError as exc:
        return exc.message


# Ways to the clock that come out at the document's time.
CLOCKS = [
    ("Object.getPrototypeOf(Date) === Function.prototype", True),
    ("Date.prototype.constructor === Date && new Date(0).constructor === Date", True),
    ("[Date.UTC(2024, 0), Date.parse('2024-01-01'), Date.length, Date.name]", [1704067200000] * 2 + [7, "Date"]),
    ("Reflect.construct(Date, []).getTime()", NOW),
    ("Reflect.construct(Object, [], Date) instanceof Date", True),
    ("new (class extends Date {})().getTime()", NOW),
    ("structuredClone(new Date()).getTime()", NOW),
    ("new (structuredClone(new Date()).constructor as any)().getTime()", NOW),
    ("Date.prototype.constructor().slice(0, 24)", "Tue Nov 14 2023 22:13:20"),
    ("Object.getPrototypeOf(performance).now.call(performance)", NOW),
    ("[Performance.prototype.timeOrigin, performance.toJSON()]", [0, {}]),
    ("[typeof PerformanceMark, typeof PerformanceMeasure, typeof PerformanceObserver]", ["undefined"] * 3),
    ("new File([], 'x').lastModified", NOW),
    ("new File([], 'x', { lastModified: 5 }).lastModified", 5),
    ("new (File.prototype.constructor as any)([], 'x').lastModified", NOW),
    ("new CustomEvent('x').timeStamp", NOW),
    ("Intl.DateTimeFormat('en', { year: 'numeric' }).format()", "2023"),
    ("[1].map(new Intl.DateTimeFormat('en', { year: 'numeric' }).format as any)", ["1970"]),
    ("String((globalThis as any).Temporal.Now.instant())", UTC),
    ("String((globalThis as any).Temporal.Now.plainDateISO())", "2023-11-14"),
    ("typeof (Deno as any)[(Deno as any).internal]", "undefined"),
    ("Object.getOwnPropertySymbols(Deno).length", 0),
    ("typeof (Atomics as any).waitAsync", "undefined"),
    ("[typeof FormData, typeof (console as any).context, typeof (navigator as any).locks]", ["undefined"] * 3),
    ("Object.getOwnPropertyDescriptor(Object.getPrototypeOf(navigator), 'hardwareConcurrency')!.value", 1),
    ("[process.uptime(), process.memoryUsage.rss(), (process as any).availableMemory()]", [0, 0, 0]),
    ("[typeof process.pid, typeof process.ppid]", ["undefined"] * 2),
    ("await new Promise((done) => AbortSignal.timeout(9e9).onabort = () => done(Date.now()))", NOW),
    ("await import(import.meta.url.replace(/author.*/, 'main.ts')).then((it) => Object.keys(it).length)", 0),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("expression", "value"), CLOCKS)
def test_clocks_all_show_the_documents_time(expression: str, value: JSON) -> None:
    assert answer(f"return [{{ value: {expression} }}];") == value


# What is replaced, to see what the harness calls or is given, and what shows if there was anything to see.
SPIES = [
    ("Reflect.construct = ((made: any) => (seen = made)) as any; new Date(); new File([], 'x')", "seen?.now?.()"),
    (
        "Function.prototype.call = function (this: any) { seen = this; }; new Intl.DateTimeFormat().formatToParts()",
        "(seen && Reflect.apply(seen, new Intl.DateTimeFormat(), []))",
    ),
    ("Function.prototype.apply = function (this: any) { seen = this; }; new Intl.DateTimeFormat().format()", "seen"),
    ("WeakMap.prototype.get = (() => { seen = 1; }) as any; new File([], 'x').lastModified", "seen"),
]


@pytest.mark.parametrize(("spying", "seen"), SPIES)
def test_replaced_builtins_see_no_calls_of_the_harness(spying: str, seen: str) -> None:
    assert answer(f"let seen: any; {spying}; return [{{ value: {seen} ?? 'nothing' }}];") == "nothing"


# Ways to chance that come out the same each time.
CHANCES = [
    ("", "[...Crypto.prototype.getRandomValues.call(crypto, new Uint8Array(4) as any) as any]"),
    ("", "Crypto.prototype.randomUUID.call(crypto)"),
    ("", "String(Math.random()) + String(Object.getOwnPropertyDescriptor(Math, 'random')!.value())"),
    ("import { randomUUID } from 'node:crypto';", "randomUUID()"),
    ("import * as all from 'crypto';", "[all.randomInt(1e9), all.default.randomInt(1e9)]"),
    ("import { randomBytes, randomFillSync } from 'node:crypto';",
     "[randomBytes(4).toString('hex'), [...randomFillSync(new Uint8Array(4))]]"),
    ("import { webcrypto } from 'node:crypto';", "[...webcrypto.getRandomValues(new Uint8Array(4))]"),
    ("import { getRandomValues } from 'node:crypto';", "[...getRandomValues(new Uint8Array(4))]"),
    ("import { createRequire } from 'node:module';", "createRequire('/x/')('crypto').randomUUID()"),
    ("import 'node:module';", "(process as any).getBuiltinModule('crypto').randomUUID()"),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("head", "expression"), CHANCES)
def test_random_values_repeat(head: str, expression: str) -> None:
    first, second = (answer(f"return [{{ value: {expression} }}];", head) for _ in range(2))
    assert first == second
    assert "acme/out" not in str(first)


MESSAGE = """\
(http: any) => {
    const message = new (Object.getPrototypeOf(http.ClientRequest.prototype).constructor)();
    message.sendDate = true;
    message._storeHeader('HTTP/1.1 200 OK\\r\\n', {});
    return message._header.includes('Date');
}"""
# Node's modules, by name: an import, an expression, and its value or what its error says.
NODE = [
    ("import { performance } from 'node:perf_hooks';", "performance.now()", NOW),
    ("import { hrtime } from 'node:process';", "hrtime()", [1_700_000_000, 123_000_000]),
    ("import process from 'node:process';", "[process.uptime(), process.hrtime()[0]]", [0, 1_700_000_000]),
    ("import process from 'node:process';", "(process as any).report.getReport().header", "Requires sys access"),
    ("import { setTimeout } from 'node:timers/promises';", "await setTimeout(9e9, Date.now())", NOW),
    ("import { setTimeout, promises } from 'timers';", "await new Promise((done) => setTimeout(done, 9e9, 5))", 5),
    ("import { availableParallelism } from 'node:os';", "availableParallelism()", 1),
    ("import vm from 'node:vm';", "vm.runInNewContext('Date.now()')", "'runInNewContext' of node:vm would show"),
    ("import { Script } from 'vm';", "new Script('1')", "'Script' of node:vm would show"),
    ("import { Worker } from 'node:worker_threads';", "new Worker('')", "'node:worker_threads' is not available"),
    ("import { Worker } from 'node:worker\\u005fthreads';", "new Worker('')", "'node:worker_threads' is not available"),
    ("import { Worker } from 'worker_threads';", "new Worker('')", "'Worker' of node:worker_threads would show"),
    ("import 'node:module';",
     "new ((process as any).getBuiltinModule('worker_threads').Worker)('')", "'Worker' of node:worker_threads would show"),
    ("import { fstatSync } from 'node:fs';", "fstatSync(0).mtimeMs", "'fstatSync' of node:fs would show"),
    ("import v8 from 'node:v8';", "v8.getHeapStatistics()", "'getHeapStatistics' of node:v8 would show"),
    ("import { DatabaseSync } from 'node:sqlite';", "new DatabaseSync(':memory:')", "'DatabaseSync' of node:sqlite"),
    ("import { Console } from 'node:console';", "new Console(1 as any)", "'Console' of node:console would show"),
    ("import { registerHooks } from 'node:module';", "registerHooks({})", "'registerHooks' of node:module would show"),
    ("import { createRequire } from 'node:module';", "createRequire('/x/')('vm').runInNewContext('Date.now()')", "of node:vm"),
    ("import { generatePrimeSync } from 'node:crypto';", "generatePrimeSync(64)", "'generatePrimeSync' of node:crypto"),
    ("import { createECDH } from 'node:crypto';", "createECDH('secp256k1')", "'createECDH' of node:crypto would show"),
    ("import http from 'node:http';", "new http.ServerResponse({} as any)", "'ServerResponse' of node:http would show"),
    ("import http from 'node:http';",
     f"({MESSAGE})(http)", False),
    ("", "(process as any).getBuiltinModule('vm')", "is not available to derivations"),
    ("", "await import('no' + 'de:vm')", "Requires read access"),
    ("", "await import('v' + 'm')", "Requires read access"),
    ("", "await import('n' + 'pm:left-pad@1.3.0')", "--no-npm is specified"),
    ("", "await import('h' + 'ttps://jsr.io/x.ts')", "--no-remote is specified"),
    ("", "URL.createObjectURL(new Blob([]))", "URL.createObjectURL gives something else each time"),
    ("", "await new Response('a=1', { headers: { 'content-type': 'application/x-www-form-urlencoded' } }).formData()",
     "there are no forms without permission"),
    ("", "await SubtleCrypto.prototype.generateKey.call(crypto.subtle, { name: 'HMAC', hash: 'SHA-1' } as any, true, [])",
     "gives something else each time"),
    ("", "await crypto.subtle.sign({ at: 0, get name() { return this.at++ ? 'ECDSA' : 'HMAC'; } } as any, 1 as any, 1 as any)",
     "can not be converted to a CryptoKey"),
]  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("head", "expression", "value"), NODE)
def test_node_modules_depend_only_on_the_document(head: str, expression: str, value: JSON) -> None:
    found = answer(f"return [{{ value: {expression} }}];", head)
    if isinstance(value, str) and " " in value:
        assert value in str(found)
    else:
        assert found == value


def test_modules_of_the_installed_deno_are_all_classified() -> None:
    """A newer Deno that brings another of Node's modules must be looked at before it is used."""
    modules = answer("return [{ value: [...builtinModules] }];", "import { builtinModules } from 'node:module';")
    harmless = """
        buffer diagnostics_channel events path/posix path/win32 path sys url util assert async_hooks cluster constants
        dns dns/promises domain punycode string_decoder util/types _http_agent _http_common child_process dgram zlib
        _tls_common _tls_wrap fs/promises node:test/reporters assert/strict readline readline/promises stream/web net
        stream stream/consumers stream/promises tty querystring node:test _stream_duplex _stream_passthrough
        _stream_readable _stream_transform _stream_writable
    """
    guarded = {name.removeprefix("node:") for name in guard_imports()}
    assert {each for each in modules if each.removeprefix("node:") not in guarded} <= set(harmless.split())


def test_clock_test_detects_a_real_clock() -> None:
    """Other tests of this file rely on it: time that is read outside of a document's is 1970, and never today."""
    spec = lambdas(
        "return [{ value: this.made }];", " made = [Date.now(), performance.now(), new Date().getFullYear()];"
    )
    assert run(spec, [{"id": 1}]) == [(0, {"value": [0, 0, 1970]})]
