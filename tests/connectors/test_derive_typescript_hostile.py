"""Modules that hang, fill their memory, write garbage or replace what is built in: each gets a clear error."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS
from typescript_derivation import HEAD, derivation, invoke, lambdas, open_session, run

from connectors.derive_typescript.runtime.session import TypeScriptSession
from derive.errors import LambdaError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import LambdaLimits

pytestmark = [pytest.mark.deno, pytest.mark.usefixtures("empty_pool")]


def test_heap_exhaustion_of_a_module_reports_the_heap_size() -> None:
    with pytest.raises(LambdaError, match=r"'acme/out' exceeded its heap limit of 512 MB; the document was"):
        run(lambdas("const all: number[][] = []; for (;;) all.push(new Array(1_000_000).fill(1.5));"), [{"id": 1}])


PATCHES = [
    "JSON.stringify = () => 'x'; JSON.parse = () => 7;",
    "Array.prototype.push = () => 0; Array.prototype.join = () => '';",
    "Array.isArray = () => false as any; Object.getPrototypeOf = () => null; Object.keys = () => [];",
    "Uint8Array.prototype.subarray = () => 1 as any; Uint8Array.prototype.indexOf = () => -1;",
    "TextDecoder.prototype.decode = () => ''; TextEncoder.prototype.encode = () => new Uint8Array() as any;",
    "String.prototype.slice = () => ''; String.prototype.padStart = () => ''; Date.prototype.toISOString = () => '';",
    "Function.prototype.call = () => 1; Function.prototype.bind = () => 1 as any; Reflect.construct = () => 1 as any;",
    "globalThis.setTimeout = 1 as any; globalThis.queueMicrotask = 1 as any; globalThis.console = 1 as any;",
    "Math.floor = () => 7; Math.imul = () => 7; Date.now = () => 7; performance.now = () => 7;",
]


def test_module_that_replaces_builtins_changes_only_its_own_results() -> None:
    text = (
        f"{HEAD}{' '.join(PATCHES)}\nexport class Derivation extends IDerivation {{\n"
        "    fromIn(read: any) { return [{ id: read.doc.id, at: read.publishedAt, list: [1] }]; }\n}\n"
    )
    published = run(derivation(text), [{"id": number} for number in range(1_200)])
    assert published[1_199] == (1_199, {"id": 1_199, "at": "2023-11-14T22:13:20.123456Z", "list": [1]})
    assert len(published) == 1_200


# Prototypes that change what JSON is of everything.
GARBAGE = [
    ("(Object.prototype as any).toJSON = () => 5;", "", "it published a number, which is no document"),
    ("(Array.prototype as any).toJSON = () => 5;", "", None),
    (
        "Array.prototype[Symbol.iterator] = () => { throw 'broken'; };",
        "",
        'ended with status 1: error: Uncaught "broken"',
    ),
]


@pytest.mark.parametrize(("head", "body", "reason"), GARBAGE)
def test_invalid_answers_are_reported_as_such(head: str, body: str, reason: str | None) -> None:
    text = (
        f"{HEAD}{head}\nexport class Derivation extends IDerivation {{\n"
        f"    fromIn(read: any) {{ {body} return [{{ id: 1, list: [1] }}]; }}\n}}\n"
    )
    if reason is None:
        assert run(derivation(text), [{"id": 1}]) == [(0, {"id": 1, "list": 5})]
        return
    with pytest.raises(LambdaError) as caught:
        run(derivation(text), [{"id": 1}])
    assert reason in caught.value.message
    assert caught.value.position is not None
    assert caught.value.position.file == "acme.ts"


# A module that does not answer: its body, and where it is said to be.
STUCK = [
    ("if (read.doc.id === 7) for (;;);", 3),
    ("if (read.doc.id === 7) return new Promise((_, no) => setInterval(() => {}, 1));", 3),
]


# How many documents there are, and how many of them were sent together with the first.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("count", "sent"), [(20, 20), (1_000, 100)])
@pytest.mark.parametrize(("body", "line"), STUCK)
def test_endless_method_is_ended_and_its_document_is_reported(body: str, line: int, count: int, sent: int) -> None:
    spec = replace(lambdas(f"{body} return [read.doc];"), limits=LambdaLimits(answer_seconds=1.5))
    session = open_session(spec)
    with pytest.raises(LambdaError) as caught:
        invoke(session, [{"id": number} for number in range(count)])
    process = session._process
    session.close()
    assert process is not None
    assert not process.alive
    assert caught.value.message == (
        "transform 'fromIn' of 'acme/out' gave no answer within 1.5 s, so its process was stopped;"
        f' the document was {{"id":0}}, or one of the {sent - 1} after it'
    )
    position = caught.value.position
    assert position is not None
    assert (position.file, position.line) == ("acme.ts", line)
    assert caught.value.hint == "to raise the limit: --deno-timeout SECONDS"


def test_endless_constructor_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TypeScriptSession, "language", replace(TypeScriptSession.language, start_seconds=0.7))
    spec = replace(lambdas("return [];", " x = (() => { for (;;); })();"), limits=LambdaLimits(answer_seconds=0.5))
    with pytest.raises(LambdaError, match="the TypeScript module of 'acme/out' gave no answer within 0.7 s"):
        run(spec, [{"id": 1}])


def test_a_module_that_reads_frames_itself_is_refused() -> None:
    text = (
        f"{HEAD}import {{ readSync }} from 'node:fs';\nexport class Derivation extends IDerivation {{\n"
        "    fromIn(read: any): any { readSync(0, new Uint8Array(1)); return [read.doc]; }\n}\n"
    )
    with pytest.raises(LambdaError, match="transform 'fromIn' of 'acme/out' failed: Error: fs.readSync: descriptor 0"):
        run(derivation(text), [{"id": 1}])


ORPHAN = """\
import sys
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
from typescript_derivation import invoke, lambdas, open_session
from derive.protocol.specs import LambdaLimits
session = open_session(replace(lambdas("for (;;);"), limits=LambdaLimits(answer_seconds=1)))
print(session._open().pid, flush=True)
invoke(session, [{"id": 1}])
"""


def test_orphaned_hanging_process_ends_itself() -> None:
    command = [sys.executable, "-c", ORPHAN, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as python:
        assert python.stdout is not None
        deno = Path("/proc") / python.stdout.readline().decode().strip()
        time.sleep(0.5)  # it is at work by now
        assert deno.exists()
        python.kill()
    seconds, _ = resource.prlimit(int(deno.name), resource.RLIMIT_CPU)
    assert 0 < seconds < 300
    resource.prlimit(int(deno.name), resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))  # a shorter wait
    deadline = time.monotonic() + PATIENCE_SECONDS
    while deno.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_error_after_slow_documents_names_its_document() -> None:
    wait = "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 120);"
    spec = lambdas(f"{wait} if (read.doc.id === 7) throw new Error('seven'); return [read.doc];")
    session = open_session(spec)
    published = []
    with pytest.raises(LambdaError, match='Error: seven; the document was {"id":7}$'):
        for each in session.invoke(ReadBatch([0] * 9, [1] * 9, [1] * 9, [{"id": number} for number in range(9)])):
            published.append(each)
    session.close()
    assert published[:3] == [(0, {"id": 0}), (1, {"id": 1}), (2, {"id": 2})]


def test_time_limit_does_not_add_up_over_documents() -> None:
    wait = "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 150);"
    spec = replace(lambdas(f"{wait} return [read.doc];"), limits=LambdaLimits(answer_seconds=1.2))
    assert len(run(spec, [{"id": number} for number in range(12)])) == 12
