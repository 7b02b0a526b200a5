"""A module cannot forge or read frames, fill flowctl's memory with them, or import what makes them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typescript_derivation import HEAD, derivation, invoke, open_session, run

from connectors.derive_typescript.runtime.project import bundle
from connectors.module_kit.process import ANSWER, LOG, Foreign, Late, Wire
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.specs import LambdaLimits

pytestmark = pytest.mark.deno

TOKEN = bytes(range(16))
SOCKET = "import net from 'node:net';"
FILES = "import fs from 'node:fs';"
MODULE = "import { createRequire } from 'node:module';"


def answer(body: str, head: str = "", seconds: float = 10.0) -> JSON:
    """Return the documents that a module publishes for one document."""
    text = (
        f"{HEAD}{head}\nexport class Derivation extends IDerivation {{\n"
        f"    async fromIn(read: any): Promise<any[]> {{ {body} }}\n}}\n"
    )
    spec = replace(derivation(text), limits=LambdaLimits(answer_seconds=seconds))
    [(_, document)] = run(spec, [{"id": 1}])
    return document


WROTE = "wrote to standard output, which is reserved for the runtime, so its process was stopped; the output was b'"


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "7\\n",
        "[[7]]\\n",
        '{"error": 7}\\n',
        '{"log":["error","a forged frame"]}\\n',
        '{"columns":["id"],"counts":[1,1]}\\n[1,1]\\n',
        "\\0".replace("\\0", "\\u0000") * 23,
    ],
)
def test_module_output_on_the_pipe_is_no_frame(text: str) -> None:
    body = f"const w = new net.Socket({{ fd: 1 }}); await new Promise((done) => w.end('{text}', done)); return [{{ id: 1 }}];"
    with pytest.raises(LambdaError) as caught:
        answer(body, SOCKET)
    assert WROTE in caught.value.message
    assert 'the document was {"id":1}' in caught.value.message
    assert caught.value.hint == "write to the task's log with 'console'"
    assert caught.value.position is not None
    assert (caught.value.position.file, caught.value.position.line) == ("acme.ts", 4)


def test_endless_output_is_not_stored() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = "const w = new net.Socket({ fd: 1 }); const b = new Uint8Array(1 << 20).fill(120); for (;;) { await new Promise((done) => w.write(b, done)); }"
    with pytest.raises(LambdaError, match="wrote to standard output"):
        answer(body, SOCKET)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_output_on_standard_descriptors_is_logged() -> None:
    reporting: list[tuple[str, str]] = []
    body = "fs.writeSync(1, 'one\\n'); fs.writeFileSync(2, 'two'); fs.writeSync(1, new Uint8Array([65, 66, 67]), 1, 1); return [{ id: 1 }];"
    text = f"{HEAD}{FILES}\nexport class Derivation extends IDerivation {{\n    fromIn(read: any) {{ {body} }}\n}}\n"
    session = open_session(derivation(text), log=lambda level, message: reporting.append((level, message)))
    assert invoke(session, [{"id": 1}]) == [(0, {"id": 1})]
    session.close()
    assert reporting == [("info", "one"), ("error", "two"), ("info", "B")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("call", "descriptor"),
    [
        ("closeSync(1)", 1),
        ("close(2, () => {})", 2),
        ("readSync(0, new Uint8Array(1))", 0),
        ("read(0, new Uint8Array(1), () => {})", 0),
        ("readFileSync(0)", 0),
        ("writeSync(0, 'x')", 0),
        ("writevSync(1, [new Uint8Array(1)])", 1),
        ("ftruncateSync(1)", 1),
        ("createWriteStream('x', { fd: 1 })", 1),
        ("createReadStream('x', { fd: 0 })", 0),
    ],
)
def test_module_cannot_use_standard_descriptors(call: str, descriptor: int) -> None:
    with pytest.raises(LambdaError, match=f"descriptor {descriptor} is the runtime's"):
        answer(f"fs.{call}; return [{{ id: 1 }}];", FILES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("expression", "head", "keys"),
    [
        ("await import(at('main.ts'))", "", []),
        (
            "(await import('data:text/javascript,' + encodeURIComponent(`export * as x from '${at('main.ts')}'`))).x",
            "",
            [],
        ),
        ("await import(at('derivation.ts'))", "", ["load"]),
        ("await import(at('interfaces.ts'))", "", ["IDerivation"]),
        ("await import(at('node/all.ts'))", MODULE, []),
        ("await import(at('node/libraries.ts'))", MODULE, []),
        ("await import(at('node/workers.ts'))", MODULE, []),
        ("await import(at('node/guard.ts'))", MODULE, ["guard"]),
    ],
)
def test_harness_exports_nothing_to_modules(expression: str, head: str, keys: list[str]) -> None:
    at = "const at = (file: string) => new URL('../'.repeat(9) + file, import.meta.url).href;"
    assert answer(f"{at} return [{{ id: 1, keys: Object.keys({expression}) }}];", head) == {"id": 1, "keys": keys}


@pytest.mark.parametrize("file", ["absent.ts", "frames.ts", "present.ts", "main.ts?again", "main.ts#again", "check.ts"])
def test_unloaded_modules_cannot_be_imported(file: str) -> None:
    url = f"new URL('../'.repeat(9) + '{file}', import.meta.url).href"
    if "#" in file:
        return  # a fragment names the same module, which has nothing
    with pytest.raises(LambdaError, match="Requires read access"):
        answer(f"return [{{ id: 1, keys: Object.keys(await import({url})) }}];")


@pytest.mark.parametrize(
    "statement",
    [
        "URL.createObjectURL(new Blob(['export const x = 1']))",
        "process.getBuiltinModule('vm')",
        "process.binding('fs')",
        "process.exit(0)",
        "Deno.exit(0)",
    ],
)
def test_bypasses_of_the_guards_are_refused(statement: str) -> None:
    with pytest.raises(LambdaError, match="failed: Error: "):
        answer(f"const process = (globalThis as any).process; {statement}; return [{{ id: 1 }}];")


POLLUTION = """
const no = () => { throw new Error('seen'); };
for (const [target, names] of [
    [Uint8Array.prototype, ['subarray', 'set', 'slice', 'indexOf', 'fill']],
    [TextEncoder.prototype, ['encode', 'encodeInto']],
    [TextDecoder.prototype, ['decode']],
    [JSON, ['parse', 'stringify']],
    [Math, ['floor', 'imul', 'random']],
    [Reflect, ['apply', 'construct']],
    [Function.prototype, ['call', 'apply', 'bind']],
    [Array.prototype, ['push', 'pop', 'map', 'join', 'slice', 'concat']],
    [String.prototype, ['replace', 'charCodeAt', 'slice', 'split', 'toWellFormed', 'padStart']],
    [Object, ['keys', 'entries', 'getPrototypeOf', 'hasOwn', 'defineProperty']],
    [Promise.prototype, []],
] as any[]) {
    for (const name of names) {
        Object.defineProperty(target, name, { value: no, writable: true, configurable: true });
    }
}
Reflect.ownKeys(globalThis);
Uint8Array = no as any;
TextEncoder = no as any;
TextDecoder = no as any;
"""


def test_replaced_builtins_do_not_affect_the_harness() -> None:
    assert answer("return [{ id: read.doc.id, at: read.publishedAt }];", POLLUTION) == {
        "id": 1,
        "at": "2023-11-14T22:13:20.123456Z",
    }


@contextmanager
def piped(data: bytes) -> Iterator[Wire]:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    try:
        yield Wire(reading, TOKEN)
    finally:
        os.close(reading)


def frame(text: bytes, kind: bytes = ANSWER) -> bytes:
    return TOKEN + kind + len(text).to_bytes(6, "big") + text + TOKEN


def received(data: bytes) -> list[tuple[bytes, bytes]]:
    with piped(data) as wire:
        frames = []
        while (got := wire.receive(time.monotonic() + 5)) != (b"", b""):
            frames.append(got)
        return frames


def test_frames_survive_encoding() -> None:
    assert received(frame(b"[1]") + frame(b"", LOG) + frame(b"x" * 5000)) == [
        (ANSWER, b"[1]"),
        (LOG, b""),
        (ANSWER, b"x" * 5000),
    ]


@given(st.binary(min_size=1, max_size=60), st.data())
def test_foreign_bytes_in_frames_are_always_detected(noise: bytes, data: st.DataObject) -> None:
    """Each frame that is taken is one that was sent, in order, whatever stands between or within them."""
    sent = [b'[[{"id":1}]]', b"", b"[[]]" * 9]
    stream = b"".join(map(frame, sent))
    place = data.draw(st.integers(0, len(stream)))
    taken = []
    with piped(stream[:place] + noise + stream[place:]) as wire:
        try:
            while (got := wire.receive(time.monotonic() + 5)) != (b"", b""):
                taken.append(got[1])
        except Foreign:
            pass
    assert taken == sent[: len(taken)]


@pytest.mark.parametrize(
    "head",
    [
        bytes(16) + ANSWER + bytes(6),
        TOKEN + b"X" + bytes(6),
        TOKEN + ANSWER + b"\xff" * 6,
        TOKEN[:15] + b"\0" + ANSWER + bytes(6),
    ],
)
def test_invalid_frame_head_is_refused_before_the_body_is_read(head: bytes) -> None:
    with pytest.raises(Foreign):
        received(head)


def test_missing_frame_is_reported_after_the_time_limit() -> None:
    reading, writing = os.pipe()
    os.write(writing, frame(b"[1]")[:-1])
    with pytest.raises(Late):
        Wire(reading, TOKEN).receive(time.monotonic() + 0.01)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("data", [b"", TOKEN[:5], frame(b"[1]")[:-1], frame(b"[1]")[:20]])
def test_frame_cut_by_the_end_of_the_process_is_discarded(data: bytes) -> None:
    assert received(data) == []


@pytest.mark.parametrize(
    "text",
    ["import x from './a.ts';\n", "export default 1;\n", "export * from './a.ts';\n", "import * as x from './a.ts';\n"],
)
def test_a_harness_that_cannot_be_bundled_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be bundled"):
        bundle({"a": "export const one = 1;\n", "main": text})
